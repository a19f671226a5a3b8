// SPDX-License-Identifier: Apache-2.0
//
// Ranks and hosts that end, stop, or can no longer be reached while calls run over TCP between
// hosts: who is named, and that the others go on.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faults/network_faults.h"

namespace inccl::test {
namespace {

class NetworkDeathTest : public NetworkFaultTest {
 protected:
  NetworkDeathTest()
      : NetworkFaultTest({.op_seconds = 30.0 * kSlowness, .dead_seconds = kDeadSeconds}) {}
};

// An end of file, which crosses the network at once.
TEST_F(NetworkDeathTest, Row01_AKilledRankIsNamedByAllHosts) {
  ForRow("1", "tcp");
  MakeHosts(3);
  constexpr int kVictim = 1;
  for (const NetworkMode& mode : kNetworkModes) {
    for (const char* point : {"executor.before_publish", "executor.before_release"}) {
      const fault::Plan kill = {
          .point = fault::IndexOf(point), .hit = 5, .action = fault::Action::kKill};
      Start(1, mode, SummingRanks(kVictim, kill));
    }
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited({kVictim});
    for (const int rank : {0, 2}) {
      ExpectNames(*world, rank, {kVictim}, 2.0, world->pid(kVictim));
    }
  }
}

TEST_F(NetworkDeathTest, Row02_AStoppedRankIsDeadAfterItsTimeAndLearnsItWhenResumed) {
  ForRow("2", "tcp");
  MakeHosts(3);
  constexpr int kVictim = 2;
  const fault::Plan stop = {
      .point = fault::IndexOf("executor.before_publish"), .hit = 5, .action = fault::Action::kStop};
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks(kVictim, stop));
  for (const auto& world : worlds()) {
    while (world->Running(0) || world->Running(1)) usleep(1000);
    for (const int rank : {0, 1}) {
      ExpectNames(*world, rank, {kVictim}, kDeadSeconds + 2, world->pid(kVictim));
      EXPECT_GT(world->report(rank).seconds, 0.9 * kDeadSeconds);
    }
    world->Kill(kVictim, SIGCONT);
    world->ExpectAllExited();
    ExpectNames(*world, kVictim, {0, 1}, 1000);
    EXPECT_LE(world->report(kVictim).calls, world->report(0).calls + 1);
  }
}

TEST_F(NetworkDeathTest, Row02_AStopShorterThanTheDeadTimeIsNoError) {
  ForRow("2", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks());
  AwaitCalls(3);
  for (int i = 0; i < 3; ++i) {
    for (const auto& world : worlds()) world->Kill(1, SIGSTOP);
    usleep(static_cast<useconds_t>(0.3e6 * kDeadSeconds));
    for (const auto& world : worlds()) world->Kill(1, SIGCONT);
    AwaitCalls(2);
  }
  for (const auto& world : worlds()) world->report(0).stage = kStopped;
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world->report(rank).result, CCL_SUCCESS) << world->report(rank).text;
    }
  }
}

TEST_F(NetworkDeathTest, Row03_ARankThatExitsInsideACallIsNamed) {
  ForRow("3", "tcp");
  MakeHosts(3);
  const fault::Plan exits = {
      .point = fault::IndexOf("call.after_begin"), .hit = 3, .action = fault::Action::kExit};
  for (const NetworkMode& mode : kNetworkModes) {
    Start(1, mode, SummingRanks(0, exits));
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (const int rank : {1, 2}) {
      ExpectNames(*world, rank, {0}, 2.0, world->pid(0));
      EXPECT_TRUE(Matches(world->report(rank).text, "closed without finalize"))
          << world->report(rank).text;
    }
  }
}

// Two ranks on a host that vanishes: each host left names a rank of it, and it one of theirs.
TEST_F(NetworkDeathTest, Row04_AHostThatVanishesIsNamedByTheOthers) {
  ForRow("4", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(2, mode, SummingRanks());
  AwaitCalls(3);
  hosts().Partition(1);
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (const int rank : {0, 1, 4, 5}) ExpectNames(*world, rank, {2, 3}, kDeadSeconds + 2);
    for (const int rank : {2, 3}) ExpectNames(*world, rank, {0, 1, 4, 5}, kDeadSeconds + 2);
  }
}

TEST_F(NetworkDeathTest, Row04_APartitionBetweenGroupsOfHosts) {
  ForRow("4", "tcp");
  MakeHosts(4);
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks());
  AwaitCalls(3);
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) {
      hosts().Cut(a, b);
      hosts().Cut(b, a);
    }
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (const int rank : {0, 1}) ExpectNames(*world, rank, {2, 3}, kDeadSeconds + 2);
    for (const int rank : {2, 3}) ExpectNames(*world, rank, {0, 1}, kDeadSeconds + 2);
  }
}

// Rank 1 reaches both others, and passes on the report of the one that is first.
TEST_F(NetworkDeathTest, Row04_TwoHostsThatLoseEachOtherOnly) {
  ForRow("4", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks());
  AwaitCalls(3);
  hosts().Cut(0, 2);
  hosts().Cut(2, 0);
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      ExpectNames(*world, rank, {0, 2}, kDeadSeconds + 2);
      const std::string text = world->report(rank).text;
      EXPECT_TRUE(Matches(text, "rank 0/3.* peer 2@host2") ||
                  Matches(text, "rank 2/3.* peer 0@host0"))
          << text;
    }
  }
}

TEST_F(NetworkDeathTest, Row04_ALinkThatIsDown) {
  ForRow("4", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks());
  AwaitCalls(3);
  hosts().Unplug(2);
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (const int rank : {0, 1}) ExpectNames(*world, rank, {2}, kDeadSeconds + 2);
    ExpectNames(*world, 2, {0, 1}, kDeadSeconds + 2);
  }
}

// The root's call returns when its sockets have taken the data; it then leaves, and a host of those
// that should get the data cannot be reached any more.
TEST_F(NetworkDeathTest, Row23_DestroyEndsWhereAPeerCannotBeReached) {
  ForRow("4,23", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) {
    Start(1, mode, [](const Side& side) {
      ccl_comm_t comm = JoinAll(side);
      std::vector<char> data(60000);
      for (int call = 0; call < 3; ++call) {
        if (call == 2) side.mine().stage = 2;
        while (call == 2 && side.of(0).stage != kStopped) usleep(500);
        std::fill(data.begin(), data.end(), side.rank() == 0 ? static_cast<char>(call + 1) : '-');
        side.mine().result =
            ccl_broadcast(data.data(), data.data(), data.size(), CCL_UINT8, 0, comm, nullptr);
        if (side.mine().result != CCL_SUCCESS) break;
        ++side.mine().calls;
        if (data != std::vector<char>(data.size(), static_cast<char>(call + 1))) return 13;
      }
      side.mine().SetText(ccl_get_last_error(comm));
      const double start = Seconds();
      const ccl_result_t destroyed = ccl_comm_destroy(comm);
      side.mine().seconds = Seconds() - start;
      return destroyed == CCL_SUCCESS ? 0 : 12;
    });
  }
  for (const auto& world : worlds()) {
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(world->side(0).Await(rank, 2));
  }
  hosts().Partition(1);
  for (const auto& world : worlds()) world->report(0).stage = kStopped;
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      const Report& report = world->report(rank);
      EXPECT_LT(report.seconds, kDeadSeconds + 2 + SlackSeconds()) << report.text;
      if (rank == 1) {
        EXPECT_EQ(report.calls, 2u);
        EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
      }
    }
  }
}

// Bytes that a host's sockets hold for its peers, as its kernel tells them.
uint64_t Unacknowledged(const Hosts& hosts, int host) {
  std::string table;
  EXPECT_EQ(hosts.Run(host, {"ss", "-Htn"}, &table), 0) << table;
  std::istringstream lines(table);
  uint64_t total = 0;
  for (std::string line; std::getline(lines, line);) {
    std::string state;
    uint64_t received = 0, sent = 0;
    std::istringstream(line) >> state >> received >> sent;
    total += sent;
  }
  return total;
}

// It reads nothing for longer than the dead time, and its machine announces that it has no room.
TEST_F(NetworkDeathTest, Row12_ALateRankWhoseSocketsAreFullIsNotDead) {
  ForRow("7,12", "tcp");
  constexpr int kLate = 1, kReady = 2, kGoOn = 3;
  constexpr size_t kBytes = 64 << 20;
  MakeHosts(2);
  // The slots of a call exceed what the late host's sockets hold.
  std::string output;
  const char* small = "echo 4096 65536 262144 > /proc/sys/net/ipv4/tcp_rmem";
  ASSERT_EQ(hosts().Run(1, {"sh", "-c", small}, &output), 0) << output;
  const ScopedEnv slots({{"INCCL_CHANNELS", "4"}, {"INCCL_SLICE_BYTES", "1048576"}});
  ProcessWorld& world = Start(1, kNetworkModes[0], [](const Side& side) {
    ccl_comm_t comm = JoinAll(side);
    std::vector<char> data(kBytes);
    for (const char value : {'a', 'b'}) {  // the first call opens the lanes
      if (value == 'b') side.mine().stage = kReady;
      if (value == 'b' && side.rank() == kLate && !side.Await(0, kGoOn, 60.0 * kSlowness)) return 9;
      std::fill(data.begin(), data.end(), side.rank() == 0 ? value : '-');
      side.mine().result =
          ccl_broadcast(data.data(), data.data(), kBytes, CCL_UINT8, 0, comm, nullptr);
      side.mine().SetText(ccl_get_last_error(comm));
      if (side.mine().result != CCL_SUCCESS) break;
      if (std::count(data.begin(), data.end(), value) != static_cast<ptrdiff_t>(kBytes)) return 13;
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  for (const int rank : {0, kLate}) ASSERT_TRUE(world.side(0).Await(rank, kReady));
  const double limit = Seconds() + 20.0 * kSlowness;
  while (Unacknowledged(hosts(), 0) == 0 && Seconds() < limit) usleep(1000);
  usleep(static_cast<useconds_t>(2.5e6 * kDeadSeconds));
  EXPECT_GT(Unacknowledged(hosts(), 0), 0u);
  world.report(0).stage = kGoOn;
  world.ExpectAllExited();
  for (const int rank : {0, kLate}) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
  }
}

class NetworkLateTest : public NetworkFaultTest {
 protected:
  NetworkLateTest()
      : NetworkFaultTest({.op_seconds = kOpSeconds, .dead_seconds = 30.0 * kSlowness}) {}
};

TEST_F(NetworkLateTest, Row05_APartitionThatHealsBeforeTheDeadTimeIsNoError) {
  ForRow("5", "tcp");
  MakeHosts(3);
  const ScopedEnv patient({{"INCCL_OP_TIMEOUT_MS", "60000"}});
  for (const NetworkMode& mode : kNetworkModes) Start(1, mode, SummingRanks());
  for (const Hosts::Direction direction :
       {Hosts::Direction::kBoth, Hosts::Direction::kIn, Hosts::Direction::kOut}) {
    AwaitCalls(3);
    hosts().Partition(1, direction);
    usleep(300'000);
    hosts().Heal(1);
  }
  AwaitCalls(3);
  for (const auto& world : worlds()) world->report(0).stage = kStopped;
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world->report(rank).result, CCL_SUCCESS) << world->report(rank).text;
    }
  }
}

TEST_F(NetworkLateTest, Row12_ARankThatDoesNotComeIsLateAndNotDead) {
  ForRow("12", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) {
    Start(1, mode, [](const Side& side) {
      ccl_comm_t comm = JoinAll(side);
      if (side.rank() == 1) {
        while (side.of(0).stage < 2 || side.of(2).stage < 2) usleep(1000);
      }
      if (!SumUntilError(side, comm)) return 13;
      side.mine().stage = 2;
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (const int rank : {0, 2}) {
      const Report& report = world->report(rank);
      EXPECT_EQ(report.result, CCL_TIMEOUT) << report.text;
      EXPECT_FALSE(Matches(report.text, "failed|sign of life")) << report.text;
      EXPECT_LT(report.seconds, kOpSeconds + SlackSeconds());
    }
    EXPECT_TRUE(Matches(world->report(0).text, "peer 1@host1:") ||
                Matches(world->report(2).text, "peer 1@host1:"))
        << world->report(0).text << "\n"
        << world->report(2).text;
  }
}

TEST_F(NetworkLateTest, Row11_CallsThatDifferAreNamedOnAllHosts) {
  ForRow("11", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) {
    Start(1, mode, [](const Side& side) {
      ccl_comm_t comm = JoinAll(side);
      std::vector<float> data(30000, 1.0f);
      const size_t count = side.rank() == 1 ? 29999 : 30000;
      const double start = Seconds();
      side.mine().result =
          ccl_allreduce(data.data(), data.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      side.mine().seconds = Seconds() - start;
      side.mine().SetText(ccl_get_last_error(comm));
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      const Report& report = world->report(rank);
      EXPECT_EQ(report.result, CCL_INVALID_USAGE) << report.text;
      EXPECT_TRUE(Matches(report.text, "29999") && Matches(report.text, "30000")) << report.text;
      EXPECT_LT(report.seconds, kOpSeconds + SlackSeconds());
    }
  }
}

// A thread waits in a call for a host that cannot be reached; another one aborts.
TEST_F(NetworkLateTest, Row23_AbortNeedsNoPeer) {
  ForRow("23", "tcp");
  MakeHosts(3);
  const ScopedEnv patient({{"INCCL_OP_TIMEOUT_MS", "60000"}});
  for (const NetworkMode& mode : kNetworkModes) {
    Start(1, mode, [](const Side& side) {
      ccl_comm_t comm = JoinAll(side);
      bool right = false;
      std::thread calls([&] { right = SumUntilError(side, comm, 1000000); });
      while (side.of(0).stage != kStopped - 1) usleep(500);
      const double start = Seconds();
      const ccl_result_t aborted = ccl_comm_abort(comm);
      side.mine().counters[1] = static_cast<uint64_t>(1000 * (Seconds() - start));
      calls.join();
      return !right ? 13 : aborted == CCL_SUCCESS ? 0 : 12;
    });
  }
  AwaitCalls(1);
  hosts().Partition(1);
  for (const auto& world : worlds()) {
    const double limit = Seconds() + 10.0;
    for (uint64_t before = ~uint64_t{0}; world->report(0).calls != before && Seconds() < limit;) {
      before = world->report(0).calls;
      usleep(200'000);
    }
    world->report(0).stage = kStopped - 1;
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      const Report& report = world->report(rank);
      EXPECT_NE(report.result, CCL_SUCCESS);
      EXPECT_LT(static_cast<double>(report.counters[1]), 1000.0 * kSlowness * Busy()) << "ms";
    }
  }
}

class NetworkShrinkTest : public NetworkDeathTest {
 protected:
  // Sums until an error, shrinks, and says who is in the new communicator.
  static int Shrink(const Side& side) {
    ccl_comm_t comm = JoinAll(side);
    if (!SumUntilError(side, comm)) return 13;
    ccl_comm_t smaller = nullptr;
    const double start = Seconds();
    if (ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT) != CCL_SUCCESS) {
      std::fprintf(stderr, "shrink: %s\n", ccl_get_last_error(nullptr));
      return 14;
    }
    side.mine().seconds = Seconds() - start;
    uint64_t last = ~uint64_t{0};
    EXPECT_EQ(ccl_comm_last_completed(smaller, &last), CCL_SUCCESS);
    side.mine().counters[2] = last;
    if (ccl_comm_destroy(comm) != CCL_SUCCESS) return 12;
    std::vector<uint64_t> members(50000);
    for (int call = 0; call < 5; ++call) {
      std::fill(members.begin(), members.end(), uint64_t{1} << side.rank());
      if (ccl_allreduce(members.data(), members.data(), members.size(), CCL_UINT64, CCL_SUM,
                        smaller, nullptr) != CCL_SUCCESS) {
        std::fprintf(stderr, "smaller: %s\n", ccl_get_last_error(smaller));
        return 15;
      }
      for (const uint64_t value : members) EXPECT_EQ(value, members[0]);
    }
    side.mine().counters[3] = members[0];
    return ccl_comm_destroy(smaller) == CCL_SUCCESS ? 0 : 16;
  }
  static void ExpectMembers(ProcessWorld& world, const std::vector<int>& ranks) {
    uint64_t expected = 0;
    for (const int rank : ranks) expected |= uint64_t{1} << rank;
    for (const int rank : ranks) {
      Report& report = world.report(rank);
      EXPECT_EQ(report.counters[3], expected) << "rank " << rank << " after " << report.text;
      EXPECT_EQ(report.counters[2], world.report(ranks[0]).counters[2]) << "last operation";
      EXPECT_LE(report.counters[2], report.calls);
      EXPECT_LT(report.seconds, 5.0 + kDeadSeconds + SlackSeconds());
    }
  }
};

TEST_F(NetworkShrinkTest, Row24_ShrinkAfterAHostDied) {
  ForRow("24", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(2, mode, Shrink);
  AwaitCalls(3);
  for (const auto& world : worlds()) {
    for (const int rank : {2, 3}) world->Kill(rank, SIGKILL);
  }
  for (const auto& world : worlds()) {
    world->ExpectAllExited({2, 3});
    ExpectMembers(*world, {0, 1, 4, 5});
  }
}

// Both sides of the partition go on, each for itself.
TEST_F(NetworkShrinkTest, Row24_ShrinkAfterAHostWasCutOff) {
  ForRow("24", "tcp");
  MakeHosts(3);
  for (const NetworkMode& mode : kNetworkModes) Start(2, mode, Shrink);
  AwaitCalls(3);
  hosts().Partition(0);  // with the rendezvous that the ranks joined at
  for (const auto& world : worlds()) {
    world->ExpectAllExited();
    ExpectMembers(*world, {2, 3, 4, 5});
    ExpectMembers(*world, {0, 1});
  }
}

}  // namespace
}  // namespace inccl::test
