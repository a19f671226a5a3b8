// SPDX-License-Identifier: Apache-2.0
//
// Creation of communicators over several hosts: partitions on the way, wrong secrets, interfaces
// that do not serve, and strangers at every listener.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "faults/network_faults.h"
#include "support/seed.h"
#include "world/endpoint.h"

namespace inccl::test {
namespace {

constexpr int kHeld = 7;         // the stage of a rank that a test holds
constexpr size_t kRelease = 10;  // counter of rank 0: how often held ranks have been released
constexpr double kLimit = 2.0 * kSlowness;

// Waits until the test goes on.
void Hold(const Side& side, uint64_t turn) {
  side.mine().stage = kHeld + static_cast<int>(turn);
  while (side.of(0).counters[kRelease] <= turn) usleep(500);
}

// Creates, sums once if that succeeds, and ends.
int CreateAndSum(const Side& side) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return comm == nullptr ? 0 : 11;
  std::vector<float> data(10000, 1.0f);
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr);
  side.mine().result = result;
  if (result != CCL_SUCCESS) side.mine().SetText(ccl_get_last_error(comm));
  const bool right = std::all_of(data.begin(), data.end(),
                                 [&](float x) { return x == static_cast<float>(side.nranks()); });
  if (result == CCL_SUCCESS && !right) return 13;
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

class NetworkInitTest : public NetworkFaultTest {
 protected:
  NetworkInitTest()
      : NetworkFaultTest(
            {.init_seconds = kLimit, .op_seconds = kOpSeconds, .dead_seconds = kDeadSeconds}) {}

  static void ExpectJoined(ProcessWorld& world) {
    world.ExpectAllExited();
    for (int rank = 0; rank < world.nranks(); ++rank) {
      EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
    }
  }
  static void ExpectInitError(ProcessWorld& world, int rank, ccl_result_t result,
                              const std::string& pattern) {
    const Report& report = world.report(rank);
    EXPECT_EQ(report.result, result) << "rank " << rank << ": " << report.text;
    EXPECT_TRUE(Matches(report.text, pattern)) << report.text;
    EXPECT_LT(report.seconds, kLimit + SlackSeconds()) << report.text;
    EXPECT_EQ(MissingFromError(report.text, result,
                               {.rank = rank, .nranks = world.nranks(), .during_init = true}),
              "");
  }
};

// Rank 1 is cut off at one point of its way each; the ranks of all worlds at the same moment.
TEST_F(NetworkInitTest, Row09_APartitionAtAnyPointOfTheCreation) {
  ForRow("4,9", "tcp");
  ExpectFailedCreations();
  MakeHosts(3);
  constexpr int kVictim = 1;
  const char* const points[] = {"bootstrap.before_connect", "bootstrap.after_connect",
                                "bootstrap.after_register", "bootstrap.after_table",
                                "mesh.after_connect",       "mesh.after_handshake",
                                "bootstrap.before_done",    "bootstrap.after_done",
                                "bootstrap.after_go",       "init.after_attach"};
  for (const char* point : points) {
    Start(1, kNetworkModes[0], [point](const Side& side) {
      if (side.rank() == kVictim) {
        fault::Arm({.point = fault::IndexOf(point), .action = fault::Action::kCall, .call = [side] {
                      Hold(side, 0);
                    }});
      }
      return CreateAndSum(side);
    });
  }
  for (const auto& world : worlds()) EXPECT_TRUE(world->side(0).Await(kVictim, kHeld));
  hosts().Partition(kVictim);
  for (const auto& world : worlds()) world->report(0).counters[kRelease] = 1;
  for (size_t i = 0; i < worlds().size(); ++i) {
    SCOPED_TRACE(points[i]);
    ProcessWorld& world = *worlds()[i];
    world.ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      const Report& report = world.report(rank);
      const std::string text = report.text;
      EXPECT_TRUE(report.result == CCL_TIMEOUT || report.result == CCL_REMOTE_ERROR) << text;
      EXPECT_LT(report.seconds, kLimit + SlackSeconds()) << text;
      // The ranks that are left miss rank 1; it misses the rendezvous, which is on host 0, or them.
      EXPECT_TRUE(Matches(
          text, rank == kVictim ? "(rank|peer)s? [02]|rendezvous at" : "(rank|peer)s? 1|did 1@"))
          << text;
    }
  }
}

// A secret in a file for the lifetime of this object.
class SecretFile {
 public:
  explicit SecretFile(const std::string& content)
      : path_(
            fmt::format("{}inccl-network-secret-{}-{}", ::testing::TempDir(), getpid(), content)) {
    const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const std::string text = content + ", sixteen bytes or more";
    EXPECT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  ~SecretFile() { unlink(path_.c_str()); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  const std::string path_;
};

TEST_F(NetworkInitTest, Row28_OnlyRanksWithTheSecretJoin) {
  ForRow("28", "tcp");
  ExpectFailedCreations();
  MakeHosts(3);
  const SecretFile right("right"), wrong("wrong");
  const auto start = [&](const char* maker, const char* victim) {
    Start(1, kNetworkModes[0], [=](const Side& side) {
      const char* const path = side.rank() == 1 ? victim : maker;
      path == nullptr ? unsetenv("INCCL_SECRET_FILE") : setenv("INCCL_SECRET_FILE", path, 1);
      return CreateAndSum(side);
    });
  };
  start(right.path(), right.path());
  start(right.path(), wrong.path());
  start(right.path(), nullptr);
  start(nullptr, wrong.path());
  Start(1, kNetworkModes[0], [](const Side& side) {
    ccl_unique_id_t id = side.Id();
    if (side.rank() != 1) return CreateAndSum(side);
    id.internal[90] = static_cast<char>(id.internal[90] ^ 1);  // of the secret; the CRC is stale
    ccl_comm_t comm = nullptr;
    side.mine().result = ccl_comm_init_rank(&comm, 3, id, 1);
    side.mine().SetText(ccl_get_last_error(nullptr));
    return 0;
  });
  ExpectJoined(*worlds()[0]);
  const std::string missing = "rank 1 of 3 did not arrive";
  for (size_t i = 1; i < worlds().size(); ++i) {
    SCOPED_TRACE(i);
    worlds()[i]->ExpectAllExited();
    for (const int rank : {0, 2}) ExpectInitError(*worlds()[i], rank, CCL_TIMEOUT, missing);
  }
  ExpectInitError(*worlds()[1], 1, CCL_INVALID_USAGE, "rejects this rank.*secret files");
  ExpectInitError(*worlds()[2], 1, CCL_INVALID_USAGE, "secret file, which this rank lacks");
  ExpectInitError(*worlds()[3], 1, CCL_INVALID_USAGE, "INCCL_SECRET_FILE is set on this rank");
  EXPECT_EQ(worlds()[4]->report(1).result, CCL_INVALID_ARGUMENT) << worlds()[4]->report(1).text;
}

TEST_F(NetworkInitTest, Row20_InterfacesThatDoNotServe) {
  ForRow("20", "tcp");
  ExpectFailedCreations();
  MakeHosts(3);
  const auto start = [&](const char* interface, int victim) {
    Start(1, kNetworkModes[0], [=](const Side& side) {
      if (side.rank() == victim) setenv("INCCL_SOCKET_IFNAME", interface, 1);
      return CreateAndSum(side);
    });
  };
  start("nosuch", 1);
  start("lo", 1);  // of a rank that accepts connections
  start("lo", 2);  // of one that makes all its connections itself
  for (const auto& world : worlds()) world->ExpectAllExited();
  ExpectInitError(*worlds()[0], 1, CCL_INVALID_USAGE, "nosuch.*lo.*e0|nosuch.*e0.*lo");
  for (const int rank : {0, 2}) {
    ExpectInitError(*worlds()[0], rank, CCL_TIMEOUT, "rank 1 of 3 did not arrive");
  }
  for (int rank = 0; rank < 3; ++rank) {
    ExpectInitError(*worlds()[1], rank, CCL_INVALID_USAGE,
                    "ranks.*[12]@host[12].*rank 1@host1:[0-9]+ listens on this machine only; "
                    "INCCL_SOCKET_IFNAME");
  }
  ExpectJoined(*worlds()[2]);
}

// A client whose connections the servers have dropped when it goes on, and a server whose clients
// have given up. Both stop for longer than the limits of a handshake, 2 and 4 s.
TEST_F(NetworkInitTest, Row09_ARankThatStopsInTheMiddleOfAHandshake) {
  ForRow("2,9", "tcp");
  const ScopedEnv patient({{"INCCL_INIT_TIMEOUT_MS", Milliseconds(60.0 * kSlowness).c_str()},
                           {"INCCL_DEAD_TIMEOUT_MS", "0"}});
  MakeHosts(3);
  struct Stop {
    int rank;
    const char* point;
    uint64_t hit;
  };
  const Stop stops[] = {{2, "mesh.after_connect", 1}, {2, "mesh.after_connect", 2},
                        {2, "mesh.after_connect", 3}, {2, "mesh.after_connect", 4},
                        {0, "mesh.after_accept", 1},  {1, "mesh.after_handshake", 2}};
  for (const Stop& stop : stops) {
    Start(1, kNetworkModes[0], [stop](const Side& side) {
      if (side.rank() == stop.rank) {
        fault::Arm({.point = fault::IndexOf(stop.point),
                    .hit = stop.hit,
                    .action = fault::Action::kCall,
                    .call = [side] {
                      side.mine().stage = kHeld;
                      raise(SIGSTOP);
                    }});
      }
      return CreateAndSum(side);
    });
  }
  for (size_t i = 0; i < worlds().size(); ++i) {
    EXPECT_TRUE(worlds()[i]->side(0).Await(stops[i].rank, kHeld)) << stops[i].point;
  }
  usleep(4'500'000);
  for (size_t i = 0; i < worlds().size(); ++i) worlds()[i]->Kill(stops[i].rank, SIGCONT);
  for (const auto& world : worlds()) ExpectJoined(*world);
}

// An IPv6 address that the kernel still looks for duplicates of; no process can bind it.
TEST_F(NetworkInitTest, Row20_AnAddressThatCannotBeBoundIsLeftOut) {
  ForRow("20", "tcp");
  MakeHosts(3);
  if (!hosts().has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  for (const int host : {0, 1}) {
    std::string output;
    const std::string commands =
        "ip -6 address flush dev e0 && echo 10000 > /proc/sys/net/ipv6/conf/e0/dad_transmits && "
        "ip address add fd77:1::1/64 dev e0";
    if (hosts().Run(host, {"sh", "-c", commands}, &output) != 0) GTEST_SKIP() << output;
    EXPECT_EQ(hosts().Run(host, {"ip", "-6", "address", "show", "tentative"}, &output), 0);
    EXPECT_NE(output.find("fd77:1::1"), std::string::npos) << output;
  }
  ProcessWorld& world = Start(1, kNetworkModes[0], CreateAndSum);
  ExpectJoined(world);
}

// Hosts that have addresses of their link only, whose interface has another index on each.
TEST_F(NetworkInitTest, Row20_AddressesOfTheLinkOnly) {
  ForRow("20", "tcp");
  MakeHosts(3);
  if (!hosts().has_ipv6()) GTEST_SKIP() << "no IPv6 here";
  std::set<std::string> indices;
  for (int host = 0; host < 3; ++host) {
    std::string output;
    // A bridge in the place of the interface, behind as many others as the host's number.
    std::string commands =
        "ip -4 address flush dev e0 && ip -6 address flush dev e0 && "
        "mac=$(ip -o link show e0 | sed 's/.*ether \\([^ ]*\\).*/\\1/') && "
        "ip link set e0 down && ip link set e0 name wire";
    for (int other = 0; other < host; ++other) {
      commands += fmt::format(" && ip link add other{} type bridge", other);
    }
    commands += fmt::format(
        " && ip link add e0 address $mac type bridge && ip link set wire master e0 && "
        "ip link set wire up && ip link set e0 up && ip -6 address flush dev e0 && "
        "ip address add fe80::77:{}/64 dev e0 nodad && "
        // A bridge has its carrier, and its address can be bound, a moment later.
        "timeout 10 sh -c 'until ip link show e0 | grep -q LOWER_UP && "
        "! ip -6 address show dev e0 tentative | grep -q inet6; do sleep 0.02; done' && "
        "ip -o link show e0 | cut -d: -f1",
        host + 1);
    ASSERT_EQ(hosts().Run(host, {"sh", "-c", commands}, &output), 0) << output;
    indices.insert(output);
  }
  EXPECT_EQ(indices.size(), 3u) << "a wrong scope would not show";
  ProcessWorld& world = Start(1, kNetworkModes[0], CreateAndSum);
  ExpectJoined(world);
}

// The id holds the loopback address: ranks of other hosts are not served, and say so.
TEST_F(NetworkInitTest, Row20_AnIdThatWasMadeOnLoopback) {
  ForRow("20", "tcp");
  ExpectFailedCreations();
  MakeHosts(2);
  ProcessWorld& world = Start(1, kNetworkModes[0], [](const Side& side) {
    if (side.rank() == 0) setenv("INCCL_SOCKET_IFNAME", "lo", 1);
    return CreateAndSum(side);
  });
  world.ExpectAllExited();
  ExpectInitError(world, 0, CCL_TIMEOUT, "rank 1 of 2 did not arrive");
  ExpectInitError(world, 1, CCL_REMOTE_ERROR,
                  "no rendezvous at 127.0.0.1:[0-9]+.*is on another host");
}

// Virtual machines that were copied from a running one have equal boot ids and network namespaces,
// and no sockets of each other.
TEST_F(NetworkInitTest, Row20_CopiesOfAVirtualMachine) {
  ForRow("20", "tcp");
  ExpectFailedCreations();
  MakeHosts(3);
  for (const bool told_apart : {false, true}) {
    ProcessWorld& world = Start(1, kNetworkModes[0], [=](const Side& side) {
      const std::string name = fmt::format("machine:{}", told_apart ? side.rank() : 0);
      setenv("INCCL_HOSTID", name.c_str(), 1);
      return CreateAndSum(side);
    });
    if (told_apart) {
      ExpectJoined(world);
      continue;
    }
    world.ExpectAllExited();
    for (int rank = 0; rank < 3; ++rank) {
      ExpectInitError(world, rank, CCL_REMOTE_ERROR,
                      "peer [01]@host[01]:[0-9]+: has no socket on this machine any more: .*"
                      "INCCL_HOSTID=machine:NAME");
    }
  }
}

TEST_F(NetworkInitTest, Row20_HostsWithoutARouteToEachOther) {
  ForRow("20", "tcp");
  ExpectFailedCreations();
  MakeHosts(3);
  std::string output;
  for (const auto& [kind, address] :
       {std::pair{"unreachable", Hosts::Ipv4(1)}, {"blackhole", Hosts::Ipv6(1)}}) {
    EXPECT_EQ(hosts().Run(2, {"ip", "route", "add", kind, address}, &output), 0) << output;
  }
  ProcessWorld& world = Start(1, kNetworkModes[0], CreateAndSum);
  world.ExpectAllExited();
  for (int rank = 0; rank < 3; ++rank) {
    const Report& report = world.report(rank);
    EXPECT_NE(report.result, CCL_SUCCESS);
    EXPECT_LT(report.seconds, kLimit + SlackSeconds()) << report.text;
  }
  // Rank 1 may be the first to give up, and tells the others.
  EXPECT_TRUE(Matches(world.report(2).text,
                      "1@host1:[0-9]+: (10.77.0.2|.fd77::2.):[0-9]+: |"
                      "1@host1:[0-9]+ failed: no connection with rank 2"))
      << world.report(2).text;
}

// The ports at which processes of a host listen on its NIC, IPv4.
std::vector<uint16_t> ListeningPorts(const Hosts& hosts, int host) {
  std::string table;
  EXPECT_EQ(hosts.Run(host, {"cat", "/proc/net/tcp"}, &table), 0);
  std::vector<uint16_t> ports;
  std::istringstream lines(table);
  std::string line, number, local, remote, state;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream(line) >> number >> local >> remote >> state;
    if (state != "0A") continue;
    ports.push_back(static_cast<uint16_t>(std::stoul(local.substr(9), nullptr, 16)));
  }
  return ports;
}

// Connects from a host to all listeners of the others and behaves badly; the connections stay open.
class Stranger {
 public:
  Stranger(const Hosts& hosts, int host) : hosts_(hosts), host_(host) {}

  // Returns how many listeners there are.
  size_t Attack() {
    size_t listeners = 0;
    for (int other = 0; other < host_; ++other) {
      for (const uint16_t port : ListeningPorts(hosts_, other)) {
        ++listeners;
        for (int i = 0; i < 12; ++i) Connect(Endpoint::Tcp(Hosts::Ipv4(other), port), i);
      }
    }
    return listeners;
  }
  size_t open() const { return open_.size(); }

 private:
  void Connect(const Endpoint& endpoint, int kind) {
    UniqueFd fd = hosts_.Socket(host_, AF_INET, SOCK_STREAM);
    ASSERT_EQ(connect(fd.get(), endpoint.get(), endpoint.length), 0) << std::strerror(errno);
    std::string bytes;
    if (kind % 4 == 1 || kind % 4 == 2) bytes = "icl2";
    if (kind % 4 == 2) bytes.resize(120, '\2');  // as long as the hello of a handshake
    for (int i = 0; kind % 4 == 3 && i < 5000; ++i) bytes.push_back(static_cast<char>(rng_.Next()));
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    open_.push_back(std::move(fd));
  }

  const Hosts& hosts_;
  const int host_;
  Rng rng_{TestSeed()};
  std::vector<UniqueFd> open_;
};

// Rank 2 stops before its first connection of each kind, while strangers visit those that listen.
TEST_F(NetworkInitTest, Row28_StrangersAtEveryListener) {
  ForRow("28", "tcp");
  const ScopedEnv patient({{"INCCL_INIT_TIMEOUT_MS", "60000"}});
  MakeHosts(4);
  for (const NetworkMode mode : {NetworkMode{"auth", "1"}, {"none", "1"}}) {
    ProcessWorld& world = Start(
        1, mode,
        [](const Side& side) {
          static std::atomic<uint64_t> arrivals{0};
          if (side.rank() == 2) {
            // Its connections to ranks 0 and 1: control, data.
            fault::Arm({.point = fault::IndexOf("mesh.after_connect"),
                        .hit = 0,
                        .action = fault::Action::kCall,
                        .call = [side] {
                          const uint64_t arrival = arrivals++;
                          if (arrival % 2 == 0) Hold(side, arrival / 2);
                        }});
          }
          return CreateAndSum(side);
        },
        3);
    Stranger stranger(hosts(), 3);
    for (uint64_t turn = 0; turn < 2; ++turn) {
      ASSERT_TRUE(world.side(0).Await(2, kHeld + static_cast<int>(turn)));
      // Those of ranks 0 and 1, at least, besides the rendezvous.
      EXPECT_GE(stranger.Attack(), 3u);
      world.report(0).counters[kRelease] = turn + 1;
    }
    ExpectJoined(world);
    EXPECT_GT(stranger.open(), 70u);
    worlds().clear();
  }
}

// A communicator of more ranks than INCCL_TEST_CONTROL_ALL_PAIRS listens while it is used:
// strangers come before ranks 0 and 2, and 1 and 3, first need each other.
TEST_F(NetworkInitTest, Row28_StrangersAtACommunicatorInUse) {
  ForRow("28", "tcp");
  const ScopedEnv large(
      {{"INCCL_TEST_CONTROL_ALL_PAIRS", "1"}, {"INCCL_ALGO", "ring;alltoall:direct_two_shot"}});
  constexpr int kRanks = 4, kSummed = kHeld, kAgain = kHeld + 1;
  MakeHosts(kRanks + 1);
  ProcessWorld& world = Start(
      1, {},
      [](const Side& side) {
        ccl_comm_t comm = JoinAll(side);
        const auto await = [&](int stage) {
          side.mine().stage = stage;
          for (int rank = 0; rank < kRanks; ++rank) {
            if (!side.Await(rank, stage)) return false;
          }
          return true;
        };
        const auto right_sum = [&] {
          std::vector<float> data(3000, static_cast<float>(side.rank() + 1));
          side.mine().result = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32,
                                             CCL_SUM, comm, nullptr);
          side.mine().SetText(ccl_get_last_error(comm));
          return side.mine().result == CCL_SUCCESS &&
                 std::all_of(data.begin(), data.end(), [](float sum) {
                   return sum == static_cast<float>(SumOfRanks(kRanks));
                 });
        };
        if (!right_sum() || !await(kSummed)) return 12;
        while (side.of(0).counters[kRelease] == 0) usleep(1000);
        for (int i = 0; i < 20; ++i) {
          if (!right_sum()) return 13;
        }
        std::vector<uint32_t> in(kRanks), out(kRanks);
        for (int to = 0; to < kRanks; ++to) {
          in[static_cast<size_t>(to)] = static_cast<uint32_t>(10 * side.rank() + to);
        }
        side.mine().result = ccl_alltoall(in.data(), out.data(), 1, CCL_UINT32, comm, nullptr);
        side.mine().SetText(ccl_get_last_error(comm));
        for (int from = 0; from < kRanks; ++from) {
          if (out[static_cast<size_t>(from)] != static_cast<uint32_t>(10 * from + side.rank())) {
            return 14;
          }
        }
        if (!await(kAgain)) return 15;
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 16;
      },
      kRanks);
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(world.side(0).Await(rank, kSummed));
  Stranger stranger(hosts(), kRanks);
  EXPECT_GE(stranger.Attack(), size_t{kRanks});
  world.report(0).counters[kRelease] = 1;
  world.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
  }
  EXPECT_GE(stranger.open(), size_t{12 * kRanks});
}

}  // namespace
}  // namespace inccl::test
