// SPDX-License-Identifier: Apache-2.0
//
// Where options come from, as a user meets it: a call's config over the environment over a file,
// and what the log says of it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "api/world.h"
#include "inccl/ccl.h"

namespace inccl::test {
namespace {

// Other ones in every test: the library keeps a log open.
std::string Temporary(const char* name) {
  return ::testing::TempDir() + "inccl-config-" + std::to_string(getpid()) + "-" +
         ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" + name;
}

std::string Content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() : file_(Temporary("conf")), log_(Temporary("log")) {
    setenv("INCCL_CONF_FILE", file_.c_str(), 1);
    setenv("INCCL_DEBUG_FILE", log_.c_str(), 1);
  }
  ~ConfigTest() override {
    for (const char* name : {"INCCL_CONF_FILE", "INCCL_DEBUG_FILE"}) unsetenv(name);
    std::remove(file_.c_str());
    std::remove(log_.c_str());
  }
  void Write(const std::string& text) const {
    std::ofstream(file_) << text;
    chmod(file_.c_str(), 0600);  // whatever the umask of who runs this
  }

  // One rank that joins itself; what the log says of it, or the error.
  std::string Join(const ccl_config_t* config) {
    std::ofstream(log_, std::ios::trunc).close();
    ccl_unique_id_t id{};
    ccl_comm_t comm = nullptr;
    if (ccl_get_unique_id(&id) != CCL_SUCCESS ||
        ccl_comm_init_rank_config(&comm, 1, id, 0, config) != CCL_SUCCESS) {
      return ccl_get_last_error(nullptr);
    }
    EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    const std::string text = Content(log_);
    const size_t joined = text.find("joined over");
    return joined == text.npos ? text : text.substr(joined, text.find('\n', joined) - joined);
  }

  const std::string file_, log_;
};

#define EXPECT_HAS(text, part)                    \
  EXPECT_NE((text).find(part), std::string::npos) \
      << "no \"" << (part) << "\" in \"" << (text) << "\""

TEST_F(ConfigTest, CallsAndChoicesAreLoggedForWhoAsks) {
  Write("");
  const auto log_of = [&](const char* subsystems) {
    const ScopedEnv env({{"INCCL_DEBUG", "INFO"}, {"INCCL_DEBUG_SUBSYS", subsystems}});
    std::ofstream(log_, std::ios::trunc).close();
    RunThreads(2, [](int rank, ccl_comm_t comm) {
      std::vector<float> data(1000, 1.0f);
      EXPECT_EQ(ccl_allreduce(data.data(), data.data(), 1000, CCL_FLOAT32, CCL_MAX, comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(ccl_allreduce_compressed(data.data(), data.data(), 1000, CCL_FLOAT32, CCL_SUM,
                                         nullptr, comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(rank == 0 ? ccl_send(data.data(), 7, CCL_FLOAT32, 1, comm, nullptr)
                          : ccl_recv(data.data(), 7, CCL_FLOAT32, 0, comm, nullptr),
                CCL_SUCCESS);
    });
    return Content(log_);
  };
  std::string log = log_of("COLL");
  EXPECT_HAS(log, "INFO rank 1/2 op 1 allreduce(count=1000, float32, max): algorithm ");
  EXPECT_HAS(log, ", codec none");
  EXPECT_HAS(log, "INFO rank 0/2 op 2 allreduce(count=1000, float32, sum, codec=hbi:");
  EXPECT_HAS(log, "INFO rank 0/2 after op 2: send(count=7, float32, peer=1)");
  EXPECT_EQ(log.find(" takes "), std::string::npos) << log;
  log = log_of("TUNING");
  EXPECT_HAS(log, "INFO rank 0/2 op 1 allreduce of 4000 bytes takes direct_one_shot: up to ");
  EXPECT_EQ(log.find("count="), std::string::npos) << log;
  log = log_of("INIT");
  EXPECT_EQ(log.find(" op "), std::string::npos) << log;
}

TEST_F(ConfigTest, CallOverEnvironmentOverFile) {
  Write("INCCL_DEBUG=INFO\nINCCL_CHANNELS=3\nINCCL_ALGO=tree\nINCCL_SLICE_BYTES=8192\n");
  std::string line = Join(nullptr);
  EXPECT_HAS(line, " channels=3 ");
  EXPECT_HAS(line, " algorithm=tree ");
  const ScopedEnv environment({{"INCCL_CHANNELS", "4"}, {"INCCL_ALGO", "ring"}});
  line = Join(nullptr);
  EXPECT_HAS(line, " channels=4 ");
  EXPECT_HAS(line, " algorithm=ring ");
  EXPECT_HAS(line, " slice_bytes=8192 ");
  ccl_config_t config = CCL_CONFIG_INIT;
  config.channels = 5;
  line = Join(&config);
  EXPECT_HAS(line, " channels=5 ");
  EXPECT_HAS(line, " algorithm=ring ");
}

TEST_F(ConfigTest, ErrorsNameThePlace) {
  Write("# mine\nINCCL_CHANNELS=many\n");
  EXPECT_EQ(Join(nullptr),
            "INCCL_CHANNELS (" + file_ + ":2): \"many\" is not a whole number; it takes 1 to 32");
  Write("INCCL_ALGO=quick\n");
  EXPECT_HAS(Join(nullptr), "INCCL_ALGO (" + file_ + ":1): algorithm \"quick\"");
  Write("INCCL_CODEC=zip\n");
  EXPECT_HAS(Join(nullptr), "INCCL_CODEC (" + file_ + ":1): ");
  Write("INCCL_TEST_SIMD=mmx\n");
  EXPECT_HAS(Join(nullptr), "INCCL_TEST_SIMD (" + file_ + ":1): instruction set \"mmx\"");
  {
    const ScopedEnv environment({{"INCCL_TEST_SIMD", "sse9"}});
    EXPECT_HAS(Join(nullptr), "INCCL_TEST_SIMD (environment): instruction set \"sse9\"");
  }
  Write("nonsense\n");
  EXPECT_EQ(Join(nullptr), file_ + ":1: \"nonsense\" is not of the form NAME=value");
  std::remove(file_.c_str());
  EXPECT_HAS(Join(nullptr), "INCCL_CONF_FILE: configuration file " + file_);
}

// Ranks as threads that meet by an id; `body` also gets what creation returned.
void JoinThreads(int nranks, int coming, const ccl_config_t& config,
                 const std::function<void(int rank, ccl_comm_t comm, ccl_result_t made)>& body) {
  ccl_unique_id_t id{};
  ASSERT_EQ(ccl_get_unique_id(&id), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < coming; ++rank) {
    threads.emplace_back([=, &config] {
      ccl_comm_t comm = nullptr;
      const ccl_result_t made = ccl_comm_init_rank_config(&comm, nranks, id, rank, &config);
      body(rank, comm, made);
      EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ConfigTest, AnAlgorithmThatServesOtherCollectivesIsNoErrorOfTheCreation) {
  Write("INCCL_DEBUG=WARN\n");
  std::ofstream(log_, std::ios::trunc).close();
  ccl_config_t config = CCL_CONFIG_INIT;
  config.algorithm = "broadcast:ring";
  JoinThreads(3, 3, config, [](int rank, ccl_comm_t comm, ccl_result_t made) {
    ASSERT_EQ(made, CCL_SUCCESS);
    EXPECT_STREQ(ccl_get_last_error(nullptr), "");
    float value = static_cast<float>(rank);
    EXPECT_EQ(ccl_broadcast(&value, &value, 1, CCL_FLOAT32, 2, comm, nullptr), CCL_SUCCESS);
    EXPECT_EQ(value, 2.0f);
  });
  config.algorithm = "hierarchical";  // of several hosts, so none for an all-reduce here
  JoinThreads(3, 3, config, [](int, ccl_comm_t, ccl_result_t made) {
    ASSERT_EQ(made, CCL_SUCCESS);
    EXPECT_STREQ(ccl_get_last_error(nullptr), "");
  });
  EXPECT_EQ(Content(log_), "");
}

TEST_F(ConfigTest, TheNameIsInMessages) {
  Write("INCCL_DEBUG=INFO\nINCCL_DEBUG_SUBSYS=INIT,COLL\n");
  ccl_config_t config = CCL_CONFIG_INIT;
  config.name = "grad\x1b[2Jients";  // what a terminal acts on is shown
  const std::string of = " of \"grad\\x1b[2Jients\"";
  JoinThreads(3, 3, config, [&](int rank, ccl_comm_t comm, ccl_result_t made) {
    ASSERT_EQ(made, CCL_SUCCESS) << ccl_get_last_error(nullptr);
    const std::string self = "rank " + std::to_string(rank) + "/3" + of;
    float data[8] = {};
    ASSERT_EQ(ccl_allreduce(nullptr, data, 8, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(ccl_get_last_error(nullptr)).rfind(self + ": send: ", 0), 0u)
        << ccl_get_last_error(nullptr);
    ASSERT_EQ(ccl_allreduce(data, data, 8, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
    // A child has its parent's name, or one of its own.
    ccl_comm_t child = nullptr;
    ASSERT_EQ(ccl_comm_split(comm, 0, -rank, &child, nullptr), CCL_SUCCESS);
    ASSERT_EQ(ccl_send(data, 8, CCL_FLOAT32, 3, child, nullptr), CCL_INVALID_ARGUMENT);
    EXPECT_HAS(std::string(ccl_get_last_error(nullptr)),
               "rank " + std::to_string(2 - rank) + "/3" + of + ": peer: 3");
    EXPECT_EQ(ccl_comm_destroy(child), CCL_SUCCESS);
    ccl_config_t other = CCL_CONFIG_INIT;
    other.name = "experts";
    ASSERT_EQ(ccl_comm_split(comm, 0, 0, &child, &other), CCL_SUCCESS);
    ASSERT_EQ(ccl_send(data, 8, CCL_FLOAT32, 3, child, nullptr), CCL_INVALID_ARGUMENT);
    EXPECT_HAS(std::string(ccl_get_last_error(nullptr)), "/3 of \"experts\": peer: 3");
    EXPECT_EQ(ccl_comm_destroy(child), CCL_SUCCESS);
    // The sticky error, which also names the two ranks that differ.
    EXPECT_EQ(ccl_allreduce(data, data, rank == 1 ? 7 : 8, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_INVALID_USAGE);
    const std::string error = ccl_get_last_error(comm);
    EXPECT_EQ(error.rfind(self + " in op ", 0), 0u) << error;
    EXPECT_HAS(error, "ranks disagree at op ");
    EXPECT_HAS(error, "rank 1/3 calls allreduce(count=7");
  });
  const std::string log = Content(log_);
  EXPECT_HAS(log, "INFO rank 2/3" + of + " joined over ");
  EXPECT_HAS(log, "INFO rank 1/3" + of + " op 1 allreduce(count=8");
}

TEST_F(ConfigTest, TheNameIsInErrorsOfCreation) {
  Write("");
  ccl_config_t config = CCL_CONFIG_INIT;
  config.name = "gradients";
  config.init_timeout_ms = 300;
  JoinThreads(3, 2, config, [&](int rank, ccl_comm_t, ccl_result_t made) {
    EXPECT_EQ(made, CCL_TIMEOUT);
    const std::string error = ccl_get_last_error(nullptr);
    EXPECT_EQ(error.rfind("rank " + std::to_string(rank) + "/3 of \"gradients\": init: ", 0), 0u)
        << error;
    EXPECT_HAS(error, "rank 2 of 3");
  });
  const std::string longest(128, 'n');
  config.name = longest.c_str();
  EXPECT_EQ(Join(&config), "");
  const std::string too_long = longest + "n";
  config.name = too_long.c_str();
  EXPECT_EQ(Join(&config), "config->name: longer than 128 bytes");
}

TEST_F(ConfigTest, TheInterfaceIsCheckedAndUsedWhereARankListens) {
  Write("");
  ccl_config_t config = CCL_CONFIG_INIT;
  config.socket_ifname = "nosuch0";
  const std::string wrong =
      "config->socket_ifname (INCCL_SOCKET_IFNAME): \"nosuch0\" matches no interface";
  EXPECT_HAS(Join(&config), wrong);
  EXPECT_HAS(Join(&config), " lo");  // what there is
  config.socket_ifname = "=lo";
  EXPECT_EQ(Join(&config), "");
  // A child's first rank listens: where its config says, else where its environment says.
  std::atomic<int> met{0};
  const auto meet = [&](int times) {
    ++met;
    while (met < 3 * times) std::this_thread::yield();
  };
  JoinThreads(3, 3, config, [&](int rank, ccl_comm_t comm, ccl_result_t made) {
    ASSERT_EQ(made, CCL_SUCCESS) << ccl_get_last_error(nullptr);
    meet(1);
    if (rank == 0) setenv("INCCL_SOCKET_IFNAME", "nosuch1", 1);
    meet(2);
    ccl_comm_t child = nullptr;
    EXPECT_EQ(ccl_comm_split(comm, 0, 0, &child, &config), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    EXPECT_EQ(ccl_comm_destroy(child), CCL_SUCCESS);
    const ccl_config_t none = CCL_CONFIG_INIT;
    EXPECT_NE(ccl_comm_split(comm, 0, 0, &child, &none), CCL_SUCCESS);
    const std::string error = ccl_get_last_error(nullptr);
    EXPECT_HAS(error, rank == 0 ? "socket_ifname (INCCL_SOCKET_IFNAME): \"nosuch1\""
                                : "split: rank 0 cannot join: socket_ifname (INCCL_SOCKET_IFNAME): "
                                  "\"nosuch1\"");
    // That was the child's: the parent is as before.
    int ones = 1;
    EXPECT_EQ(ccl_allreduce(&ones, &ones, 1, CCL_INT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
    EXPECT_EQ(ones, 3);
    meet(3);
    if (rank == 0) unsetenv("INCCL_SOCKET_IFNAME");
    meet(4);
  });
}

TEST_F(ConfigTest, AFailedCallIsALineInTheLog) {
  Write("INCCL_DEBUG=WARN\n");
  ASSERT_EQ(Join(nullptr), "");
  ccl_comm_t comm = nullptr;
  ASSERT_EQ(ccl_comm_init_all(&comm, 4097, nullptr), CCL_INVALID_ARGUMENT);
  EXPECT_HAS(Content(log_), std::string(" inccl WARN ") +
                                ccl_get_error_string(CCL_INVALID_ARGUMENT) + ": nranks: 4097");
}

TEST_F(ConfigTest, OnlyWarningsAreLoggedByDefault) {
  Write("");
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Join(nullptr), "");
  EXPECT_EQ(Content(log_), "");  // nothing has gone wrong
  ccl_comm_t comm = nullptr;
  EXPECT_EQ(ccl_comm_init_all(&comm, 4097, nullptr), CCL_INVALID_ARGUMENT);
  EXPECT_HAS(Content(log_), ": nranks: 4097");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // there is a file for it
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(ConfigTest, NoneIsSilent) {
  Write("INCCL_DEBUG=NONE\n");
  EXPECT_EQ(Join(nullptr), "");
  ccl_comm_t comm = nullptr;
  EXPECT_EQ(ccl_comm_init_all(&comm, 4097, nullptr), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(Content(log_), "");
}

}  // namespace
}  // namespace inccl::test
