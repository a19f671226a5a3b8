// SPDX-License-Identifier: Apache-2.0
//
// Runs inccl-status beside jobs: a late rank, ranks of other hosts, a stopped rank, a failed one,
// killed ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "build_paths.h"
#include "inccl/ccl.h"
#include "tools/run_program.h"
#include "world/clock.h"
#include "world/hosts.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

using Json = nlohmann::json;

constexpr int kRanks = 4, kLate = 2;
constexpr int kJoined = 1, kReleased = 2;
constexpr double kLimit = 60.0 * kSlowness;

class StatusProgramTest : public ::testing::Test {
 protected:
  StatusProgramTest()
      : root_(MakeRoot()),
        runtime_({{"XDG_RUNTIME_DIR", root_.c_str()}, {"INCCL_DEAD_TIMEOUT_MS", "0"}}) {}
  ~StatusProgramTest() override { std::filesystem::remove_all(root_); }

  ProgramResult Run(const std::string& arguments) const {
    return RunProgram(INCCL_BINARY_DIR "/tools/inccl-status",
                      "--directory " + root_ + "/inccl " + arguments);
  }
  Json RunJson() const {
    Json json = Json::parse(Run("--json").out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(json.is_discarded());
    return json;
  }
  // What it prints once it shows what the test waits for.
  Json Await(const std::function<bool(const Json&)>& shows) const {
    const double end = Seconds() + kLimit;
    Json json = RunJson();
    while (!shows(json) && Seconds() < end) {
      usleep(10000);
      json = RunJson();
    }
    EXPECT_TRUE(shows(json)) << json.dump(2);
    return json;
  }
  bool LeftBehind() const {
    return std::filesystem::exists(root_ + "/inccl") &&
           !std::filesystem::is_empty(root_ + "/inccl");
  }

  const std::string root_;

 private:
  static std::string MakeRoot() {
    std::string root = ::testing::TempDir() + "inccl-status-XXXXXX";
    EXPECT_NE(mkdtemp(root.data()), nullptr);
    return root;
  }
  const ScopedEnv runtime_;
};

ccl_config_t Config() {
  ccl_config_t config = CCL_CONFIG_INIT;
  config.name = "gradients";
  return config;
}

ccl_result_t Sum(ccl_comm_t comm, size_t count) {
  const std::vector<float> in(count, 1);
  std::vector<float> out(count);
  return ccl_allreduce(in.data(), out.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// Two all-reduces; the late rank comes to the second when it is released.
int LateBody(const Side& side) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, Config()) != CCL_SUCCESS) return 10;
  if (Sum(comm, 1000) != CCL_SUCCESS) return 11;
  side.mine().stage = kJoined;
  if (side.rank() == kLate && !side.Await(0, kReleased, kLimit)) return 12;
  if (Sum(comm, 2000) != CCL_SUCCESS) return 13;
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 14;
}

bool NamesTheLateRank(const Json& json) {
  return json.size() == 1 && json[0]["late"].size() == 1 &&
         json[0]["late"][0]["waiting"].size() == kRanks - 1;
}

TEST_F(StatusProgramTest, NamesTheLateRankItsOperationAndThoseThatWait) {
  ProcessWorld world({.nranks = kRanks, .deadline_seconds = kLimit}, LateBody);
  const Json json = Await(NamesTheLateRank);
  const Json& communicator = json[0];
  EXPECT_EQ(communicator["name"], "gradients");
  EXPECT_EQ(communicator["late"], Json::parse(R"([{"rank":2,"waiting":[0,1,3]}])"));
  ASSERT_EQ(communicator["ranks"].size(), size_t{kRanks});
  for (const Json& rank : communicator["ranks"]) {
    SCOPED_TRACE(rank.dump());
    const bool late = rank["rank"] == kLate;
    EXPECT_EQ(rank["state"], "answered");
    EXPECT_EQ(rank["op"], late ? 1 : 2);
    EXPECT_EQ(rank["in_call"], !late);
    EXPECT_EQ(rank["pid"], world.pid(rank["rank"]));
    EXPECT_EQ(rank["error"], nullptr);
    EXPECT_EQ(rank["completed"], 1);
    if (!late) {
      EXPECT_NE(rank["place"].get<std::string>().find("allreduce(count=2000"), std::string::npos);
    }
    EXPECT_EQ(rank["connections"].size(), size_t{kRanks - 1});
  }
  const ProgramResult text = Run("");
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("late: rank 2 ("), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("outside the library, after op 1; ranks 0, 1, 3 wait for it in op 2 "
                          "allreduce(count=2000"),
            std::string::npos)
      << text.out;
  world.report(0).stage = kReleased;
  world.Wait();
  world.ExpectAllExited();
  EXPECT_FALSE(LeftBehind());
  EXPECT_EQ(Run("").status, 1);
}

// Only rank 0 is asked, as if the others were on hosts where inccl-status does not run.
TEST_F(StatusProgramTest, SaysOfOtherRanksWhatTheirControlThreadsAnswer) {
  ProcessWorld world({.nranks = kRanks, .deadline_seconds = kLimit}, [](const Side& side) {
    if (side.rank() != 0) setenv("INCCL_STATUS", "0", 1);
    return LateBody(side);
  });
  const Json json = Await(NamesTheLateRank);
  EXPECT_EQ(json[0]["late"], Json::parse(R"([{"rank":2,"waiting":[0,1,3]}])"));
  for (const Json& rank : json[0]["ranks"]) {
    EXPECT_EQ(rank["itself"], rank["rank"] == 0);
    EXPECT_EQ(rank["op"], rank["rank"] == kLate ? 1 : 2);
  }
  // A stopped process does not answer.
  world.Kill(3, SIGSTOP);
  Await([](const Json& now) { return now[0]["ranks"][3]["state"] == "silent"; });
  world.Kill(3, SIGCONT);
  world.report(0).stage = kReleased;
  world.Wait();
  world.ExpectAllExited();
}

TEST_F(StatusProgramTest, ShowsEveryCommunicatorOfAProcess) {
  ProcessWorld world({.nranks = 2, .deadline_seconds = kLimit}, [](const Side& side) {
    ccl_comm_t comm = nullptr, half = nullptr, threads[3] = {};
    if (side.Init(&comm, Config()) != CCL_SUCCESS) return 10;
    if (ccl_comm_split(comm, side.rank(), 0, &half, nullptr) != CCL_SUCCESS) return 11;
    if (side.rank() == 0 && ccl_comm_init_all(threads, 3, nullptr) != CCL_SUCCESS) return 12;
    side.mine().stage = kJoined;
    if (!side.Await(0, kReleased, kLimit)) return 13;
    for (ccl_comm_t thread : threads) ccl_comm_destroy(thread);
    ccl_comm_destroy(half);
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 14;
  });
  ASSERT_TRUE(world.side(0).Await(0, kJoined, kLimit) && world.side(0).Await(1, kJoined, kLimit));
  // A busy process may answer too late for one run.
  const Json json = Await([](const Json& now) {
    std::multiset<size_t> sizes;
    bool all_answered = true;
    for (const Json& communicator : now) {
      sizes.insert(communicator["ranks"].size());
      for (const Json& rank : communicator["ranks"]) {
        all_answered = all_answered && rank["itself"] == true;
      }
    }
    return all_answered && sizes == std::multiset<size_t>{1, 1, 2, 3};
  });
  for (const Json& communicator : json) EXPECT_EQ(communicator["late"].size(), 0u);
  world.report(0).stage = kReleased;
  world.Wait();
  world.ExpectAllExited();
}

TEST_F(StatusProgramTest, FailuresShowAndKilledRanksLeaveNothing) {
  ProcessWorld world({.nranks = 2, .deadline_seconds = kLimit}, [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, Config()) != CCL_SUCCESS) return 10;
    side.mine().stage = kJoined;
    if (side.rank() == 1) pause();
    const ccl_result_t result = Sum(comm, 100);
    if (!side.Await(0, kReleased, kLimit)) return 11;
    ccl_comm_destroy(comm);
    return result == CCL_REMOTE_ERROR ? 0 : 12;
  });
  ASSERT_TRUE(world.side(0).Await(0, kJoined, kLimit) && world.side(0).Await(1, kJoined, kLimit));
  world.Kill(1, SIGKILL);
  const Json json = Await(
      [](const Json& now) { return now.size() == 1 && now[0]["ranks"][0]["error"].is_string(); });
  EXPECT_NE(json[0]["ranks"][0]["error"].get<std::string>().find("control connection closed"),
            std::string::npos);
  EXPECT_NE(Run("").out.find("failed: rank 0/2"), std::string::npos);
  world.report(0).stage = kReleased;
  world.Wait();
  world.ExpectAllExited({1});
  EXPECT_EQ(Run("").status, 1);
  EXPECT_FALSE(LeftBehind());
}

TEST_F(StatusProgramTest, ConnectionsBetweenHostsHaveCounters) {
  if (const std::string missing = Hosts::Missing(); !missing.empty()) GTEST_SKIP() << missing;
  const ScopedEnv interface({{"INCCL_SOCKET_IFNAME", "e0"}});
  Hosts hosts({.count = 2});
  ProcessWorld world(
      {.nranks = 2, .deadline_seconds = kLimit, .id_maker = 0, .enter = hosts.Ranks(1)},
      [](const Side& side) {
        ccl_comm_t comm = nullptr;
        if (side.Init(&comm, Config()) != CCL_SUCCESS) return 10;
        if (Sum(comm, 1 << 20) != CCL_SUCCESS) return 11;
        side.mine().stage = kJoined;
        if (!side.Await(0, kReleased, kLimit)) return 12;
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 13;
      });
  ASSERT_TRUE(world.side(0).Await(0, kJoined, kLimit) && world.side(0).Await(1, kJoined, kLimit))
      << world.report(0).text << world.report(1).text;
  const Json json = Await([](const Json& now) {
    return now.size() == 1 && now[0]["ranks"][0]["itself"] == true &&
           now[0]["ranks"][1]["itself"] == true;
  });
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["ranks"][1]["host"], 1);
  for (const Json& rank : json[0]["ranks"]) {
    std::multiset<std::string> uses;
    for (const Json& connection : rank["connections"]) {
      SCOPED_TRACE(connection.dump());
      uses.insert(connection["use"]);
      EXPECT_EQ(connection["over"], "tcp");
      EXPECT_EQ(connection["peer"], 1 - rank["rank"].get<int>());
      // Half of the data goes each way, twice.
      if (connection["use"] == "data") {
        EXPECT_GE(connection["sent"], 4 << 20);
        EXPECT_LT(connection["sent"], 5 << 20);
        EXPECT_GE(connection["received"], 4 << 20);
      }
    }
    EXPECT_EQ(uses, (std::multiset<std::string>{"control", "data"}));
  }
  EXPECT_NE(Run("--connections").out.find("0 - 1: data, tcp, sent "), std::string::npos);
  world.report(0).stage = kReleased;
  world.Wait();
  world.ExpectAllExited();
}

TEST_F(StatusProgramTest, CommandLine) {
  EXPECT_EQ(Run("--no-such-option").status, 2);
  EXPECT_EQ(Run("--late-ms 0").status, 2);
  const ProgramResult none = Run("");
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("no communicator"), std::string::npos);
  EXPECT_EQ(Run("--json").out, "[]\n");
}

}  // namespace
}  // namespace inccl::test
