// SPDX-License-Identifier: Apache-2.0
//
// Which transport joins processes, as a user meets it: the fallback where shared memory files are
// limited, errors that name every reason, and the end of communicators over each.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "api/world.h"

namespace inccl::test {
namespace {

constexpr rlim_t kFileLimit = 1 << 20;

// As `ulimit -f`: no memory file is large enough any more.
void LimitFileSize() {
  const rlimit limit{kFileLimit, kFileLimit};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

std::string LogFile() {
  return ::testing::TempDir() + "inccl-transports-" + std::to_string(getpid());
}

std::string Content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" lacks \"%s\"\n", text.c_str(), part.c_str());
  return false;
}

bool Sums(int n, int rank, ccl_comm_t comm) {
  std::vector<float> data(100001, static_cast<float>(rank + 1));
  if (ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr) !=
      CCL_SUCCESS) {
    return false;
  }
  const auto expected = static_cast<float>(n * (n + 1) / 2);
  for (const float x : data) {
    if (x != expected) return false;
  }
  return true;
}

void ExpectAllZero(const std::vector<ProcessExit>& exits) {
  for (size_t rank = 0; rank < exits.size(); ++rank) {
    EXPECT_FALSE(exits[rank].timed_out) << "rank " << rank;
    EXPECT_EQ(exits[rank].status, 0) << "rank " << rank;
  }
}

// `limited`: the ranks whose files are limited.
std::vector<ProcessExit> Limited(const std::vector<int>& limited,
                                 const std::function<int(int, ccl_result_t, ccl_comm_t)>& body) {
  return RunRawProcesses(3, 60000, [&](int rank, const ccl_unique_id_t& id) {
    if (std::find(limited.begin(), limited.end(), rank) != limited.end()) LimitFileSize();
    ccl_comm_t comm = nullptr;
    const ccl_result_t result = ccl_comm_init_rank(&comm, 3, id, rank);
    return body(rank, result, comm);
  });
}

TEST(TransportsTest, SharedMemoryThatIsRefusedFallsBack) {
  const std::string log = LogFile();
  for (const std::vector<int>& limited : {std::vector<int>{0, 1, 2}, {1}}) {
    const ScopedEnv env({{"INCCL_DEBUG", "WARN"}, {"INCCL_DEBUG_FILE", log.c_str()}});
    const std::vector<ProcessExit> exits =
        Limited(limited, [&](int rank, ccl_result_t result, ccl_comm_t comm) {
          const std::string text = ccl_get_last_error(nullptr);
          if (INCCL_TEST_UCX == 0) {  // nothing to fall back to: both reasons
            if (result != CCL_SYSTEM_ERROR && result != CCL_INVALID_USAGE) return 1;
            return Contains(text, "shm: on rank " + std::to_string(limited.front())) &&
                           Contains(text, "1048576") && Contains(text, "ucx: on rank 0") &&
                           Contains(text, "built without UCX")
                       ? 0
                       : 2;
          }
          if (result != CCL_SUCCESS) return Contains(text, "success") ? 3 : 4;
          const bool right = Sums(3, rank, comm);
          return ccl_comm_destroy(comm) == CCL_SUCCESS && right ? 0 : 5;
        });
    ExpectAllZero(exits);
    if (INCCL_TEST_UCX != 0) {
      const std::string text = Content(log);
      // Pairs without the limited rank keep shm.
      const std::string joined = limited.size() == 3 ? "ucx" : "shm+ucx";
      EXPECT_TRUE(Contains(text, "joined over " + joined + ", because shm: on rank " +
                                     std::to_string(limited.front())));
      EXPECT_TRUE(Contains(text, "1048576"));
    }
    std::remove(log.c_str());
  }
}

// Also on the ranks that could, and at once.
TEST(TransportsTest, AForcedTransportThatIsRefusedIsAnErrorOnAllRanks) {
  const ScopedEnv env({{"INCCL_TRANSPORT", "shm"}});
  for (const std::vector<int>& limited : {std::vector<int>{0, 1, 2}, {1}}) {
    ExpectAllZero(Limited(limited, [&](int rank, ccl_result_t result, ccl_comm_t) {
      const std::string text = ccl_get_last_error(nullptr);
      if (result != CCL_SYSTEM_ERROR) return 1;
      return Contains(text, "rank " + std::to_string(rank) + "/3: init:") &&
                     Contains(text, "INCCL_TRANSPORT=shm") &&
                     Contains(text, "shm: on rank " + std::to_string(limited.front())) &&
                     Contains(text, "1073741824") && Contains(text, "1048576")
                 ? 0
                 : 2;
    }));
  }
}

TEST(TransportsTest, LoopbackDoesNotJoinProcesses) {
  const ScopedEnv env({{"INCCL_TRANSPORT", "loopback"}});
  ExpectAllZero(Limited({}, [](int, ccl_result_t result, ccl_comm_t) {
    return result == CCL_INVALID_USAGE &&
                   Contains(ccl_get_last_error(nullptr), "loopback joins threads of one process")
               ? 0
               : 1;
  }));
}

// A rank that is ready leaves; the others, who need what it sent, come late.
TEST(TransportsTest, WhatARankHasSentOutlivesItsCommunicator) {
  for (const char* transport : TransportSelections()) {
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    SCOPED_TRACE(transport);
    RunProcesses(3, [](int rank, ccl_comm_t comm) {
      std::vector<float> data(300000, rank == 0 ? 7.0f : 0.0f);
      if (rank != 0) usleep(300000);
      EXPECT_EQ(ccl_broadcast(data.data(), data.data(), data.size(), CCL_FLOAT32, 0, comm, nullptr),
                CCL_SUCCESS)
          << ccl_get_last_error(comm);
      EXPECT_EQ(data.front() + data.back(), 14.0f);
    });
  }
}

TEST(TransportsTest, ManyCommunicatorsOneAfterTheOther) {
  for (const char* transport : TransportSelections()) {
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    SCOPED_TRACE(transport);
    for (int i = 0; i < 5; ++i) {
      RunProcesses(2, [](int rank, ccl_comm_t comm) { EXPECT_TRUE(Sums(2, rank, comm)); });
    }
    const ScopedEnv threads({{"INCCL_TRANSPORT", transport}});
    for (int i = 0; i < 5; ++i) {
      RunThreads(3, [](int rank, ccl_comm_t comm) { EXPECT_TRUE(Sums(3, rank, comm)); });
    }
  }
}

}  // namespace
}  // namespace inccl::test
