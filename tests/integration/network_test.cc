// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several hosts (network namespaces) over TCP: results, and what a bad network does.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/interfaces.h"
#include "world/baseline.h"
#include "world/clock.h"
#include "world/error_format.h"
#include "world/hosts.h"
#include "world/limits.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

using Direction = Hosts::Direction;

void ExpectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" lacks " << part;
}

constexpr int kHosts = 2, kRanks = 4;  // two ranks on each host
constexpr size_t kCount = 300000;
constexpr double kDeadSeconds = 1.0 * kSlowness;
constexpr double kLongSeconds = 60.0 * kSlowness;
constexpr int kDone = 1 << 20;  // a stage that a test sets in the report of rank 0: stop

std::string Milliseconds(double seconds) {
  return std::to_string(static_cast<int>(seconds * 1000));
}

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = Hosts::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    hosts_ = std::make_unique<Hosts>(HostsOptions{.count = kHosts});
  }

  // Ranks that sum until rank 0 is told to stop or a call fails; calls that succeed are right.
  std::unique_ptr<ProcessWorld> Start(double dead_seconds, size_t count = kCount) {
    const std::string dead = Milliseconds(dead_seconds);
    const ScopedEnv env({{"INCCL_SOCKET_IFNAME", "e0"}, {"INCCL_DEAD_TIMEOUT_MS", dead.c_str()}});
    return std::make_unique<ProcessWorld>(WorldOptions{.nranks = kRanks,
                                                       .deadline_seconds = 4 * kLongSeconds,
                                                       .enter = hosts_->Ranks(kRanks / kHosts)},
                                          [count](const Side& side) { return Sum(side, count); });
  }

  // Until a rank has done so many calls more.
  static bool AwaitCalls(ProcessWorld* world, uint64_t more) {
    const uint64_t goal = world->report(0).calls + more;
    const double limit = Seconds() + kLongSeconds;
    while (world->report(0).calls < goal) {
      if (Seconds() > limit || !world->Running(0)) return false;
      usleep(500);
    }
    return true;
  }

  static void ExpectSuccess(ProcessWorld* world) {
    world->report(0).stage = kDone;
    world->ExpectAllExited();
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(world->report(rank).result, CCL_SUCCESS) << world->report(rank).text;
    }
  }

  // Each rank's error names a rank of the other host, which it or a rank beside it misses.
  static void ExpectBothSidesFail(ProcessWorld* world, double since) {
    world->ExpectAllExited();
    EXPECT_LE(Seconds() - since, kDeadSeconds + 2 * SlackSeconds());
    for (int rank = 0; rank < kRanks; ++rank) {
      const Report& report = world->report(rank);
      const std::vector<int> others = rank < 2 ? std::vector{2, 3} : std::vector{0, 1};
      EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
      EXPECT_EQ(MissingFromError(report.text, CCL_REMOTE_ERROR,
                                 {.rank = rank, .nranks = kRanks, .peers = others}),
                "");
    }
  }

  Hosts& hosts() { return *hosts_; }

 private:
  static int Sum(const Side& side, size_t count) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    std::vector<float> data(count), sum(count);
    for (uint64_t call = 0;; ++call) {
      // The ranks stop after the same call: the sum of the last element says whether.
      for (size_t i = 0; i < count; ++i) {
        data[i] = static_cast<float>((i + call) % 1000 * (static_cast<size_t>(side.rank()) + 1));
      }
      const bool stop = side.rank() == 0 && side.mine().stage == kDone;
      data[count - 1] = stop ? 1 : 0;
      const ccl_result_t result =
          ccl_allreduce(data.data(), sum.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      side.mine().result = result;
      if (result != CCL_SUCCESS) {
        side.mine().SetText(ccl_get_last_error(comm));
        return ccl_comm_abort(comm) == CCL_SUCCESS ? 0 : 13;
      }
      for (size_t i = 0; i + 1 < count; ++i) {
        if (sum[i] != static_cast<float>((i + call) % 1000 * 10)) return 11;
      }
      ++side.mine().calls;
      if (sum[count - 1] != 0) break;
    }
    // Together: another test is about ranks that leave while others still wait for their bytes.
    side.mine().counters[0] = 1;
    for (int rank = 0; rank < kRanks; ++rank) {
      const double limit = Seconds() + kLongSeconds;
      while (side.of(rank).counters[0] == 0 && Seconds() < limit) usleep(500);
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  }

  const Baseline baseline_;
  std::unique_ptr<Hosts> hosts_;
};

// The driver of virtual Ethernet says 10 Gbit/s.
TEST_F(NetworkTest, TheRateOfALinkIsWhatItsDriverSays) {
  ProcessWorld world({.nranks = kHosts, .enter = hosts().Ranks()},
                     [](const Side&) { return bootstrap::LinkMbps("e0") == 10'000 ? 0 : 1; });
  world.ExpectAllExited();
}

// Both hosts get the interfaces of `script`, in which $h is the host's number, before that of the
// network, which is `name` instead of e0.
class InterfaceTest : public NetworkTest {
 protected:
  void Configure(const std::string& script, const std::string& name, const std::string& address) {
    for (int host = 0; host < kHosts; ++host) {
      const std::string text = fmt::format(
          "set -e; h={}; {}; ip addr flush dev e0; ip link add {} type bridge; "
          "ip link set e0 master {}; ip link set {} up; {} ip addr add {}/24 dev {}",
          host, script, name, name, name, address, Hosts::Ipv4(host), name);
      std::string output;
      EXPECT_EQ(hosts().Run(host, {"sh", "-c", text}, &output), 0) << output;
    }
  }
  // `prepare` is called first in each rank's process.
  std::unique_ptr<ProcessWorld> JoinAndSum(const std::function<void(int rank)>& prepare = {}) {
    const ScopedEnv env({{"INCCL_SOCKET_IFNAME", ""},
                         {"INCCL_TRANSPORT", "tcp"},
                         {"INCCL_INIT_TIMEOUT_MS", limit_.c_str()}});
    auto world = std::make_unique<ProcessWorld>(
        WorldOptions{.nranks = kRanks, .enter = hosts().Ranks(kRanks / kHosts)},
        [&](const Side& side) {
          if (prepare) prepare(side.rank());
          ccl_comm_t comm = nullptr;
          if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 0;
          float sum = 1;
          const ccl_result_t result =
              ccl_allreduce(&sum, &sum, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
          EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
          EXPECT_EQ(sum, kRanks);
          return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
        });
    world->ExpectAllExited();
    return world;
  }
  void ExpectJoined(const std::function<void(int rank)>& prepare = {}) {
    const auto world = JoinAndSum(prepare);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(world->report(rank).result, CCL_SUCCESS) << world->report(rank).text;
    }
  }

  const std::string limit_ = Milliseconds(3.0 * kSlowness);
  // With a carrier and one address on both hosts.
  const std::string same_ =
      "ip link add d0 type veth peer name d1; ip link set d1 up; ip link set d0 up; "
      "ip addr add 172.18.0.1/16 dev d0";
};

TEST_F(InterfaceTest, ABridgeOfContainersIsTheLastChoice) {
  Configure(
      "ip link add br-0 type bridge; ip link add d0 type veth peer name d1; "
      "ip link set d0 master br-0; ip link set d0 up; ip link set d1 up; ip link set br-0 up; "
      "ip addr add 172.18.0.1/16 dev br-0",
      "n0", "");
  ExpectJoined();
}

TEST_F(InterfaceTest, AnInterfaceWithoutACarrierIsNotTaken) {
  Configure(
      "ip link add a0 type veth peer name a1; ip link set a0 up; ip addr add 172.30.$h.1/24 dev a0",
      "n0", "");
  ExpectJoined();
}

// The only interface is taken, whatever its name is. Its first address reaches no other host.
TEST_F(InterfaceTest, EveryAddressIsTried) {
  Configure("true", "br-n0", "ip addr add 172.30.$h.1/24 dev br-n0;");
  ExpectJoined();
}

TEST_F(InterfaceTest, ARankListensWhereItHasReachedTheRendezvous) {
  Configure(same_, "n0", "");
  ExpectJoined([](int rank) {
    if (rank == 0) setenv("INCCL_SOCKET_IFNAME", "n0", 1);  // who makes the id
  });
}

TEST_F(InterfaceTest, AnAddressThatBothHostsHaveIsNamedWithTheVariable) {
  Configure(same_, "n0", "");
  ExpectJoined();  // by the address of the second interface
  auto world = JoinAndSum([](int rank) {
    if (rank == 0) setenv("INCCL_SOCKET_IFNAME", "d0", 1);
  });
  for (const int rank : {2, 3}) {
    const Report& report = world->report(rank);
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR);
    ExpectHas(report.text, "no rendezvous at 172.18.0.1:");
    ExpectHas(report.text, "this machine has the address itself");
    ExpectHas(report.text, "set INCCL_SOCKET_IFNAME");
    EXPECT_LT(report.seconds, 2.0 * kSlowness);
  }
  // Now the rendezvous is found, and rank 1 listens where others do not reach it.
  world = JoinAndSum([](int rank) { setenv("INCCL_SOCKET_IFNAME", rank == 1 ? "d0" : "n0", 1); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const Report& report = world->report(rank);
    EXPECT_NE(report.result, CCL_SUCCESS);
    ExpectHas(report.text, "peer 1@host0:");
    ExpectHas(report.text, "listens at 172.18.0.1, which this machine has, too: set INCCL_SOCKET");
    EXPECT_LT(report.seconds, 2.0 * kSlowness);
  }
}

TEST_F(NetworkTest, RanksOfTwoHostsSum) {
  const auto world = Start(kLongSeconds);
  EXPECT_TRUE(AwaitCalls(world.get(), 10));
  ExpectSuccess(world.get());
}

TEST_F(NetworkTest, ASilentPartitionFailsOnBothSides) {
  for (const Direction direction : {Direction::kBoth, Direction::kIn, Direction::kOut}) {
    const auto world = Start(kDeadSeconds);
    EXPECT_TRUE(AwaitCalls(world.get(), 5));
    const double start = Seconds();
    hosts().Partition(1, direction);
    ExpectBothSidesFail(world.get(), start);
    hosts().Heal(1);
  }
}

TEST_F(NetworkTest, ALinkThatFlapsForLessThanTheDeadTimeIsNoError) {
  const auto world = Start(kLongSeconds);
  EXPECT_TRUE(AwaitCalls(world.get(), 2));
  for (int flap = 0; flap < 10; ++flap) {
    flap % 2 == 0 ? hosts().Partition(1) : hosts().Unplug(1);
    usleep(20000);
    flap % 2 == 0 ? hosts().Heal(1) : hosts().Plug(1);
    EXPECT_TRUE(AwaitCalls(world.get(), 2));
  }
  ExpectSuccess(world.get());
}

TEST_F(NetworkTest, LostPacketsAreNoError) {
  if (!hosts().CanLose()) GTEST_SKIP() << "no nftables here";
  const auto world = Start(kLongSeconds);
  EXPECT_TRUE(AwaitCalls(world.get(), 2));
  for (const int host : {0, 1}) hosts().LoseEvery(host, 10);
  EXPECT_TRUE(AwaitCalls(world.get(), 5));
  ExpectSuccess(world.get());
}

// A call takes longer than the dead time: heartbeats come through all the same.
TEST_F(NetworkTest, ASlowLinkIsNoFailure) {
  const auto world = Start(3 * kDeadSeconds);
  EXPECT_TRUE(AwaitCalls(world.get(), 2));
  for (const int host : {0, 1}) hosts().SetShape(host, {.rate = "4mbit"});
  EXPECT_TRUE(AwaitCalls(world.get(), 2));
  for (const int host : {0, 1}) hosts().SetShape(host, {});
  ExpectSuccess(world.get());
}

// The root's call ends when its sockets have taken all, seconds before the last byte arrives.
TEST_F(NetworkTest, ARootThatLeavesAtOnceHasSentItsData) {
  constexpr size_t kBytes = 1 << 20;
  const ScopedEnv env({{"INCCL_SOCKET_IFNAME", "e0"}});
  ProcessWorld world({.nranks = kHosts, .deadline_seconds = kLongSeconds, .enter = hosts().Ranks()},
                     [](const Side& side) {
                       ccl_comm_t comm = nullptr;
                       if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                       side.mine().stage = 1;
                       if (!side.Await(0, 2)) return 11;
                       std::vector<char> data(kBytes, side.rank() == 0 ? 'r' : '-');
                       const ccl_result_t result = ccl_broadcast(data.data(), data.data(), kBytes,
                                                                 CCL_UINT8, 0, comm, nullptr);
                       side.mine().result = result;
                       side.mine().SetText(ccl_get_last_error(comm));
                       if (result == CCL_SUCCESS && data != std::vector<char>(kBytes, 'r'))
                         return 12;
                       return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 13;
                     });
  EXPECT_TRUE(world.side(0).Await(1, 1));
  EXPECT_TRUE(world.side(0).Await(0, 1));
  hosts().SetShape(0, {.rate = "4mbit"});
  world.report(0).stage = 2;
  world.ExpectAllExited();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
  }
}

// Destroying does not wait for them; the process ends when they have what was sent to them.
TEST_F(NetworkTest, ARankThatComesLateGetsWhatOneHasSentThatHasLeft) {
  constexpr size_t kBytes = 200 << 10;  // more than the late rank's machine takes at once
  constexpr double kLate = 4.0 * kSlowness;
  hosts().Run(1, {"sysctl", "-w", "net.ipv4.tcp_rmem=4096 8192 16384"});
  const ScopedEnv env({{"INCCL_SOCKET_IFNAME", "e0"}});
  ProcessWorld world({.nranks = kHosts,
                      .deadline_seconds = kLongSeconds,
                      .baseline = false,  // what goes on after the root has left
                      .enter = hosts().Ranks()},
                     [](const Side& side) {
                       ccl_comm_t comm = nullptr;
                       if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                       std::vector<char> data(kBytes, side.rank() == 0 ? 'r' : '-');
                       ccl_result_t result = CCL_SUCCESS;
                       for (const bool late : {false, true}) {
                         if (late && side.rank() != 0) {
                           std::fill(data.begin(), data.end(), '-');
                           usleep(static_cast<useconds_t>(1e6 * kLate));
                         }
                         result = ccl_broadcast(data.data(), data.data(), kBytes, CCL_UINT8, 0,
                                                comm, nullptr);
                       }
                       side.mine().SetText(ccl_get_last_error(comm));
                       const double start = Seconds();
                       if (result != CCL_SUCCESS || data != std::vector<char>(kBytes, 'r'))
                         return 11;
                       if (ccl_comm_destroy(comm) != CCL_SUCCESS) return 12;
                       side.mine().seconds = Seconds() - start;
                       return 0;
                     });
  world.ExpectAllExited();
  EXPECT_LT(world.report(0).seconds, kLate / 2);
}

}  // namespace
}  // namespace inccl::test
