// SPDX-License-Identifier: Apache-2.0
//
// Faults where control connections do not join all pairs of ranks: each rank is on a host of its
// own, and of 8 ranks those at distances of 3 and 5 have no connection. While ranks are outside
// the library, they learn of each other over control connections only.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "faults/network_faults.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 8;

constexpr int kDone = 2, kGone = 3;  // stages after kJoined

class FarRanksTest : public FaultTest {
 protected:
  FarRanksTest()
      : FaultTest({.op_seconds = 30.0 * kSlowness, .dead_seconds = kDeadSeconds}),
        env_({{"INCCL_TRANSPORT", "tcp"}, {"INCCL_TEST_CONTROL_ALL_PAIRS", "1"}}) {}

  // `body` runs on each rank when all have joined.
  static std::unique_ptr<ProcessWorld> Start(
      int nranks, const std::function<int(const Side&, ccl_comm_t)>& body, bool baseline = true) {
    return std::make_unique<ProcessWorld>(
        WorldOptions{.nranks = nranks, .deadline_seconds = 60.0 * kSlowness, .baseline = baseline},
        [body](const Side& side) {
          setenv("INCCL_HOSTID", std::to_string(side.rank()).c_str(), 1);
          ccl_comm_t comm = nullptr;
          if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
          side.mine().stage = kJoined;
          for (int rank = 0; rank < side.nranks(); ++rank) {
            if (!side.Await(rank, kJoined)) return 11;
          }
          return body(side, comm);
        });
  }

  // Outside the library, until the communicator has an error; the report has it.
  static void IdleUntilError(const Side& side, ccl_comm_t comm) {
    ccl_result_t error = CCL_SUCCESS;
    const double start = Seconds(), limit = start + 30.0 * kSlowness;
    while (error == CCL_SUCCESS && Seconds() < limit) {
      usleep(1000);
      ccl_comm_get_async_error(comm, &error);
    }
    side.mine().seconds = Seconds() - start;
    side.mine().result = error;
    side.mine().SetText(ccl_get_last_error(comm));
  }

  static void AwaitJoined(ProcessWorld& world) {
    for (int rank = 0; rank < world.nranks(); ++rank) {
      ASSERT_TRUE(world.side(rank).Await(rank, kJoined));
    }
    usleep(100000);  // all idle
  }

  // All ranks but the victims have been told within `seconds`, and of a victim.
  static void ExpectNamed(ProcessWorld& world, const std::vector<int>& victims, double seconds) {
    for (int rank = 0; rank < world.nranks(); ++rank) {
      if (std::count(victims.begin(), victims.end(), rank) != 0) continue;
      Report& report = world.report(rank);
      EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
      EXPECT_LT(report.seconds, seconds + SlackSeconds()) << report.text;
      EXPECT_EQ(MissingFromError(report.text, CCL_REMOTE_ERROR,
                                 {.rank = rank, .nranks = world.nranks(), .peers = victims}),
                "")
          << report.text;
    }
  }

 private:
  const ScopedEnv env_;
};

bool SumIsRight(ccl_comm_t comm, int rank, int nranks) {
  std::vector<uint64_t> data(1000, static_cast<uint64_t>(rank + 1));
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), data.size(), CCL_UINT64, CCL_SUM, comm, nullptr);
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
  const auto sum = static_cast<uint64_t>(nranks * (nranks + 1) / 2);
  return result == CCL_SUCCESS &&
         std::all_of(data.begin(), data.end(), [&](uint64_t value) { return value == sum; });
}

// Idle until the error, then shrink; the survivors' sum over the new communicator is right.
int IdleThenShrink(const Side& side, ccl_comm_t comm, int survivors,
                   const std::function<void(const Side&, ccl_comm_t)>& idle) {
  idle(side, comm);
  if (side.mine().result != CCL_REMOTE_ERROR) return 12;
  ccl_comm_t smaller = nullptr;
  const ccl_result_t shrunk =
      ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT);
  EXPECT_EQ(shrunk, CCL_SUCCESS) << ccl_get_last_error(comm);
  if (shrunk != CCL_SUCCESS) return 13;
  int rank = -1, nranks = 0;
  ccl_comm_user_rank(smaller, &rank);
  ccl_comm_count(smaller, &nranks);
  EXPECT_EQ(nranks, survivors);
  if (nranks != survivors || !SumIsRight(smaller, rank, nranks)) return 14;
  if (ccl_comm_destroy(smaller) != CCL_SUCCESS) return 15;
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 16;
}

TEST_F(FarRanksTest, Row01_24_AKilledRankIsNamedByAllWhoThenShrink) {
  ForRow("1,24", "tcp");
  constexpr int kVictim = 3;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    return IdleThenShrink(side, comm, kRanks - 1, IdleUntilError);
  });
  AwaitJoined(*world);
  const double before = Seconds();
  world->Kill(kVictim, SIGKILL);
  world->ExpectAllExited({kVictim});
  EXPECT_LT(Seconds() - before, 5.0 + SlackSeconds());
  ExpectNamed(*world, {kVictim}, 2.0);
}

TEST_F(FarRanksTest, Row01_24_TwoRanksDieAtOnce) {
  ForRow("1,24", "tcp");
  // Neighbours of each other, and far from each other.
  for (const int other : {4, 6}) {
    SCOPED_TRACE(other);
    const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
      return IdleThenShrink(side, comm, kRanks - 2, IdleUntilError);
    });
    AwaitJoined(*world);
    world->Kill(3, SIGKILL);
    world->Kill(other, SIGKILL);
    world->ExpectAllExited({3, other});
    ExpectNamed(*world, {3, other}, 2.0);
  }
}

// Of 6 ranks, 0 and 3 have no connection. The others die one after the other: as long as one
// is left, both agree with it; then each has lost the other one, too.
TEST_F(FarRanksTest, Row01_24_RanksBetweenOthersDie) {
  ForRow("1,24", "tcp");
  for (const std::vector<int>& victims :
       {std::vector<int>{1, 2, 4}, std::vector<int>{1, 2, 4, 5}}) {
    const bool apart = victims.size() == 4;
    const int together = apart ? 1 : 3;
    const auto world = Start(
        6,
        [together](const Side& side, ccl_comm_t comm) {
          return IdleThenShrink(side, comm, together, [](const Side& s, ccl_comm_t c) {
            IdleUntilError(s, c);
            for (int victim : {1, 2, 4}) s.Await(victim, kGone);
            s.Await(0, kGone);
          });
        },
        /*baseline=*/false);
    AwaitJoined(*world);
    for (const int victim : victims) world->Kill(victim, SIGKILL);
    for (const int victim : victims) world->report(victim).stage = kGone;
    usleep(200000);
    world->report(0).stage = kGone;
    world->ExpectAllExited(victims);
    ExpectNamed(*world, victims, 2.0);
  }
}

TEST_F(FarRanksTest, Row02_AStoppedRankIsDeadAfterItsTimeAndLearnsItWhenResumed) {
  ForRow("2", "tcp");
  constexpr int kVictim = 5;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    IdleUntilError(side, comm);
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  AwaitJoined(*world);
  world->Kill(kVictim, SIGSTOP);
  for (int rank = 0; rank < kRanks; ++rank) {
    while (rank != kVictim && world->Running(rank)) usleep(1000);
  }
  ExpectNamed(*world, {kVictim}, kDeadSeconds + 2);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    EXPECT_TRUE(Matches(world->report(rank).text, "no sign of life for [0-9]+ ms"))
        << world->report(rank).text;
  }
  world->Kill(kVictim, SIGCONT);
  world->ExpectAllExited();
  EXPECT_EQ(world->report(kVictim).result, CCL_REMOTE_ERROR) << world->report(kVictim).text;
  EXPECT_TRUE(Matches(world->report(kVictim).text, "peer [0-9]@")) << world->report(kVictim).text;
}

// Data connections are made in the first call: the victim dies on its way to a peer or with one at
// its door.
TEST_F(FarRanksTest, Row01_ARankThatDiesWhileItConnectsIsNamedByAll) {
  ForRow("1", "tcp");
  constexpr int kVictim = 3;
  for (const char* point :
       {"call.before_begin", "mesh.after_accept", "mesh.after_connect", "mesh.after_handshake"}) {
    SCOPED_TRACE(point);
    const auto world = Start(
        kRanks,
        [point](const Side& side, ccl_comm_t comm) {
          if (side.rank() == kVictim) {
            fault::Arm({.point = fault::IndexOf(point), .action = fault::Action::kKill});
          }
          if (!SumUntilError(side, comm)) return 13;
          return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
        },
        /*baseline=*/false);
    world->ExpectAllExited({kVictim});
    ExpectNamed(*world, {kVictim}, 2.0);
  }
}

// The rank that has no descriptors left names itself: its peers are well.
TEST_F(FarRanksTest, Row16_ARankWithoutDescriptorsToConnectFailsTheCall) {
  ForRow("16", "tcp");
  for (const int victim : {0, 3, kRanks - 1}) {  // accepts, does both, connects
    SCOPED_TRACE(victim);
    const auto world = Start(kRanks, [victim](const Side& side, ccl_comm_t comm) {
      rlimit limit{};
      EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
      const rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, side.rank() == victim ? &none : &limit), 0);
      if (!SumUntilError(side, comm)) return 13;
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
    world->ExpectAllExited();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Report& report = world->report(rank);
      EXPECT_EQ(report.result, CCL_SYSTEM_ERROR) << report.text;
      EXPECT_TRUE(
          Matches(report.text, fmt::format("rank {}/8 in op .*Too many open files", victim)))
          << report.text;
      EXPECT_FALSE(Matches(report.text, "is lost")) << report.text;
    }
  }
}

TEST_F(FarRanksTest, Row02_ARankThatStopsWhileItConnectsIsDeadAfterItsTime) {
  ForRow("2", "tcp");
  constexpr int kVictim = 3;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    if (side.rank() == kVictim) {
      fault::Arm({.point = fault::IndexOf("mesh.after_accept"), .action = fault::Action::kStop});
    }
    if (!SumUntilError(side, comm)) return 13;
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    while (rank != kVictim && world->Running(rank)) usleep(1000);
  }
  ExpectNamed(*world, {kVictim}, kDeadSeconds + 2);
  world->Kill(kVictim, SIGCONT);
  world->ExpectAllExited();
  EXPECT_EQ(world->report(kVictim).result, CCL_REMOTE_ERROR) << world->report(kVictim).text;
}

// Abort while ranks wait for the connection of one that has not come.
TEST_F(FarRanksTest, Row23_AnAbortEndsACallThatConnects) {
  ForRow("23", "tcp");
  constexpr int kLate = 3;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    if (side.rank() == kLate) {
      usleep(300000);
      return ccl_comm_abort(comm) == CCL_SUCCESS ? 0 : 12;
    }
    if (!SumUntilError(side, comm)) return 13;
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 14;
  });
  world->ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kLate) continue;
    Report& report = world->report(rank);
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
    EXPECT_LT(report.seconds, 1.3 + SlackSeconds());
    EXPECT_TRUE(Matches(report.text, "rank 3/8 aborted")) << report.text;
  }
}

// Ranks that leave in order disturb nobody, until somebody waits for them.
TEST_F(FarRanksTest, Row03_ARankThatLeavesInOrderIsMissedOnlyByThoseThatWaitForIt) {
  ForRow("3", "tcp");
  constexpr int kLeaver = 2, kWaiter = 5;  // they have no connection
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    const int rank = side.rank();
    if (!SumIsRight(comm, rank, kRanks)) return 12;
    const auto leave = [&] {
      const bool left = ccl_comm_destroy(comm) == CCL_SUCCESS;
      side.mine().stage = kGone;
      return left ? 0 : 13;
    };
    if (rank == kLeaver) return leave();
    if (!side.Await(kLeaver, kGone)) return 14;
    float value = 1;
    if (rank == 0 || rank == 3) {  // two that are far from each other go on
      for (int i = 0; i < 200; ++i) {
        const ccl_result_t result = rank == 0 ? ccl_send(&value, 1, CCL_FLOAT32, 3, comm, nullptr)
                                              : ccl_recv(&value, 1, CCL_FLOAT32, 0, comm, nullptr);
        EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
        if (result != CCL_SUCCESS) return 15;
        usleep(1000);
      }
      side.mine().stage = kDone;
    }
    if (rank != kWaiter) {
      if (!side.Await(0, kDone) || !side.Await(3, kDone)) return 16;
      return leave();
    }
    if (!side.Await(0, kGone) || !side.Await(3, kGone)) return 17;
    const double start = Seconds();
    side.mine().result = ccl_recv(&value, 1, CCL_FLOAT32, kLeaver, comm, nullptr);
    side.mine().seconds = Seconds() - start;
    side.mine().SetText(ccl_get_last_error(comm));
    ccl_comm_destroy(comm);
    return 0;
  });
  world->ExpectAllExited();
  Report& waiter = world->report(kWaiter);
  EXPECT_EQ(waiter.result, CCL_REMOTE_ERROR) << waiter.text;
  EXPECT_LT(waiter.seconds, 2.0 + SlackSeconds());
  EXPECT_TRUE(Matches(waiter.text, "peer 2@.* closed its communicator")) << waiter.text;
}

// The ids of the parts go to their members over other ranks, some of which leave at once.
TEST_F(FarRanksTest, SplitsOfRanksThatAreFarFromEachOther) {
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    const int rank = side.rank();
    // Ranks 0, 3 and 6 in one part, 2 and 5 in another one; the rest takes no part.
    const int color = rank % 3 == 0 ? 0 : rank % 3 == 2 && rank < 7 ? 1 : CCL_SPLIT_NOCOLOR;
    for (int round = 0; round < 3; ++round) {
      ccl_comm_t part = nullptr;
      const ccl_result_t split = ccl_comm_split(comm, color, 0, &part, nullptr);
      EXPECT_EQ(split, CCL_SUCCESS) << ccl_get_last_error(comm);
      if (split != CCL_SUCCESS) return 12;
      if (color < 0 && part == nullptr) continue;
      int place = -1, members = 0;
      ccl_comm_user_rank(part, &place);
      ccl_comm_count(part, &members);
      EXPECT_EQ(members, color == 0 ? 3 : 2);
      if (!SumIsRight(part, place, members)) return 13;
      if (ccl_comm_destroy(part) != CCL_SUCCESS) return 14;
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 15;
  });
  world->ExpectAllExited();
}

TEST_F(FarRanksTest, Row12_TheLateRankIsNamedByAll) {
  ForRow("12", "tcp");
  constexpr int kLate = 3;
  const ShortWatchdog watchdog;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    if (!SumIsRight(comm, side.rank(), kRanks)) return 12;
    if (side.rank() == kLate) {
      IdleUntilError(side, comm);
    } else {
      float value = 1;
      side.mine().result = ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      side.mine().SetText(ccl_get_last_error(comm));
    }
    ccl_comm_destroy(comm);
    return 0;
  });
  world->ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kLate) continue;
    Report& report = world->report(rank);
    EXPECT_EQ(report.result, CCL_TIMEOUT) << report.text;
    EXPECT_TRUE(Matches(report.text, "peer 3@[^:]*:[0-9]+: it is alive, outside the library"))
        << report.text;
  }
}

TEST_F(FarRanksTest, Row11_CallsThatDifferAreFound) {
  ForRow("11", "tcp");
  constexpr int kOdd = 6;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    std::vector<float> data(1000, 1.0f);
    const double start = Seconds();
    side.mine().result = side.rank() == kOdd ? ccl_broadcast(data.data(), data.data(), data.size(),
                                                             CCL_FLOAT32, 0, comm, nullptr)
                                             : ccl_allreduce(data.data(), data.data(), data.size(),
                                                             CCL_FLOAT32, CCL_SUM, comm, nullptr);
    side.mine().seconds = Seconds() - start;
    side.mine().SetText(ccl_get_last_error(comm));
    ccl_comm_destroy(comm);
    return 0;
  });
  world->ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    Report& report = world->report(rank);
    EXPECT_EQ(report.result, CCL_INVALID_USAGE) << report.text;
    EXPECT_LT(report.seconds, 2.0 + SlackSeconds());
    EXPECT_TRUE(Matches(report.text, "rank 6/8")) << report.text;
  }
}

TEST_F(FarRanksTest, Row23_AnAbortReachesAll) {
  ForRow("23", "tcp");
  constexpr int kAborts = 1;
  const auto world = Start(kRanks, [](const Side& side, ccl_comm_t comm) {
    if (side.rank() == kAborts) {
      usleep(100000);
      return ccl_comm_abort(comm) == CCL_SUCCESS ? 0 : 12;
    }
    IdleUntilError(side, comm);
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 13;
  });
  world->ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kAborts) continue;
    Report& report = world->report(rank);
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
    EXPECT_LT(report.seconds, 1.1 + SlackSeconds());
    EXPECT_TRUE(Matches(report.text, "rank 1/8 aborted")) << report.text;
  }
}

// A rank dies while the transport is chosen, or before that or after it: all others end soon, and
// name it.
TEST_F(FarRanksTest, Row09_ARankThatDiesInCreationIsNamedByAll) {
  ForRow("9", "tcp");
  constexpr int kVictim = 2;
  std::vector<std::unique_ptr<ProcessWorld>> worlds;
  for (const char* point : {"mesh.after_connect", "bootstrap.after_done", "bootstrap.after_go",
                            "init.after_attach", "control.before_start", "init.before_return"}) {
    const std::string plan = "rank=2;action=kill;point=" + std::string(point);
    const ScopedEnv env({{"INCCL_TEST_FAULT", plan.c_str()}});
    worlds.push_back(std::make_unique<ProcessWorld>(
        WorldOptions{.nranks = kRanks, .deadline_seconds = 60.0 * kSlowness, .baseline = false},
        [](const Side& side) {
          setenv("INCCL_HOSTID", std::to_string(side.rank()).c_str(), 1);
          ccl_comm_t comm = nullptr;
          const double start = Seconds();
          ccl_result_t result = side.Init(&comm, CCL_CONFIG_INIT);
          side.mine().counters[0] = result == CCL_SUCCESS ? 0 : 1;
          if (result == CCL_SUCCESS) {
            IdleUntilError(side, comm);
            ccl_comm_destroy(comm);
          }
          side.mine().seconds = Seconds() - start;
          return 0;
        }));
  }
  for (const auto& world : worlds) {
    world->ExpectAllExited({kVictim});
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kVictim) continue;
      Report& report = world->report(rank);
      EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
      EXPECT_LT(report.seconds, 5.0 + SlackSeconds()) << report.text;
      EXPECT_TRUE(Matches(report.text, "2@|rank 2")) << report.text;
    }
  }
}

class FarHostsTest : public NetworkFaultTest {
 protected:
  FarHostsTest()
      : NetworkFaultTest({.op_seconds = 30.0 * kSlowness, .dead_seconds = kDeadSeconds}),
        env_({{"INCCL_TEST_CONTROL_ALL_PAIRS", "1"}}) {}

 private:
  const ScopedEnv env_;
};

// Two hosts of 4 ranks: 0 and 5, for instance, have no connection.
TEST_F(FarHostsTest, Row04_BothSidesOfAPartitionNameARankOfTheOther) {
  ForRow("4", "tcp");
  MakeHosts(2);
  ProcessWorld& world = Start(4, {}, SummingRanks());
  AwaitCalls(3);
  hosts().Partition(1);
  world.ExpectAllExited();
  for (int rank = 0; rank < 8; ++rank) {
    ExpectNames(world, rank, rank < 4 ? std::vector<int>{4, 5, 6, 7} : std::vector<int>{0, 1, 2, 3},
                kDeadSeconds + 2);
  }
}

}  // namespace
}  // namespace inccl::test
