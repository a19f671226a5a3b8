// SPDX-License-Identifier: Apache-2.0
//
// The hosts of tests: what joins them, what cuts them off, and that nothing of them stays.
#include "world/hosts.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world/baseline.h"
#include "world/clock.h"
#include "world/endpoint.h"
#include "world/limits.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

using Direction = Hosts::Direction;

constexpr double kLongSeconds = 60.0 * kSlowness;  // until this a byte arrives that may
constexpr int kQuietMs = 100;                      // for this long none arrives that may not

Endpoint AddressOf(int host, bool ipv6, uint16_t port = 0) {
  return Endpoint::Tcp(ipv6 ? Hosts::Ipv6(host) : Hosts::Ipv4(host), port);
}

bool Readable(int fd, int ms) {
  pollfd ready{fd, POLLIN, 0};
  return TEMP_FAILURE_RETRY(poll(&ready, 1, ms)) == 1;
}

// The two ends of a TCP connection between hosts.
struct Ends {
  UniqueFd from, to;

  void Send(char byte) const { ASSERT_EQ(send(from.get(), &byte, 1, MSG_NOSIGNAL), 1); }
  void SendBack(char byte) const { ASSERT_EQ(send(to.get(), &byte, 1, MSG_NOSIGNAL), 1); }
  void ExpectAt(const UniqueFd& end, char byte) const {
    char got = 0;
    ASSERT_TRUE(Readable(end.get(), static_cast<int>(kLongSeconds * 1000)));
    ASSERT_EQ(recv(end.get(), &got, 1, 0), 1) << errno;
    EXPECT_EQ(got, byte);
  }
  static void ExpectSilence(const UniqueFd& end) {
    EXPECT_FALSE(Readable(end.get(), kQuietMs)) << "a byte or an error came through";
  }
};

Ends Connect(const Hosts& hosts, int from, int to, bool ipv6 = false) {
  Ends ends;
  const int domain = ipv6 ? AF_INET6 : AF_INET;
  const UniqueFd listener = hosts.Socket(to, domain, SOCK_STREAM);
  Endpoint address = AddressOf(to, ipv6);
  Listen(listener.get(), &address);
  ends.from = hosts.Socket(from, domain, SOCK_STREAM);
  const int one = 1;
  setsockopt(ends.from.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  EXPECT_EQ(connect(ends.from.get(), address.get(), address.length), 0) << errno;
  ends.to = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(ends.to.valid());
  return ends;
}

// Names of this namespace's interfaces that begin as those of the switch do.
size_t CountPorts() {
  size_t ports = 0;
  struct if_nameindex* const names = if_nameindex();
  for (auto* at = names; at != nullptr && at->if_name != nullptr; ++at) {
    ports += std::string(at->if_name).starts_with("port") ? 1 : 0;
  }
  if_freenameindex(names);
  return ports;
}

ino_t NetworkNamespace() {
  struct stat info {};
  return stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

class HostsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const std::string missing = Hosts::Missing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  HostsOptions Options(int count) const {
    return {.count = count, .shape = {}, .user_namespace = GetParam()};
  }
  const Baseline baseline_;
};

TEST_P(HostsTest, RanksOfDifferentHostsConnect) {
  const Hosts hosts(Options(2));
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !hosts.has_ipv6()) continue;
    ProcessWorld world({.nranks = 2, .enter = hosts.Ranks()}, [&](const Side& side) {
      const int domain = ipv6 ? AF_INET6 : AF_INET;
      std::array<char, 64> name{};
      gethostname(name.data(), name.size());
      EXPECT_EQ(name.data(), Hosts::Name(side.rank()));
      side.mine().counters[0] = NetworkNamespace();
      const UniqueFd fd(socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
      char byte = 0;
      if (side.rank() == 1) {
        Endpoint address = AddressOf(1, ipv6);
        Listen(fd.get(), &address);
        side.mine().counters[1] = address.port();
        side.mine().stage = 1;
        const UniqueFd peer(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        return read(peer.get(), &byte, 1) == 1 && write(peer.get(), &byte, 1) == 1 ? 0 : 2;
      }
      if (!side.Await(1, 1)) return 3;
      Endpoint address = AddressOf(1, ipv6, static_cast<uint16_t>(side.of(1).counters[1].load()));
      if (connect(fd.get(), address.get(), address.length) != 0) return 4;
      return write(fd.get(), "x", 1) == 1 && read(fd.get(), &byte, 1) == 1 && byte == 'x' ? 0 : 5;
    });
    world.ExpectAllExited();
    const std::set<uint64_t> distinct = {NetworkNamespace(), world.report(0).counters[0],
                                         world.report(1).counters[0]};
    EXPECT_EQ(distinct.size(), 3U) << "a namespace for each rank, none of them the test's";
  }
}

TEST_P(HostsTest, SeveralRanksShareAHost) {
  const Hosts hosts(Options(2));
  ProcessWorld world({.nranks = 4, .enter = hosts.Ranks(2)}, [](const Side& side) {
    side.mine().counters[0] = NetworkNamespace();
    return 0;
  });
  world.ExpectAllExited();
  EXPECT_EQ(world.report(0).counters[0], world.report(1).counters[0]);
  EXPECT_EQ(world.report(2).counters[0], world.report(3).counters[0]);
  EXPECT_NE(world.report(0).counters[0], world.report(2).counters[0]);
}

TEST_P(HostsTest, APartitionStopsBytesAndHealingBringsThem) {
  Hosts hosts(Options(2));
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !hosts.has_ipv6()) continue;
    const Ends ends = Connect(hosts, 0, 1, ipv6);
    for (const Direction direction : {Direction::kIn, Direction::kOut, Direction::kBoth}) {
      hosts.Partition(1, direction);
      ends.Send('a');
      if (direction == Direction::kIn) {
        Ends::ExpectSilence(ends.to);
        ends.SendBack('b');
        ends.ExpectAt(ends.from, 'b');
      } else if (direction == Direction::kOut) {
        ends.ExpectAt(ends.to, 'a');
        ends.SendBack('b');
        Ends::ExpectSilence(ends.from);
      } else {
        ends.SendBack('b');
        Ends::ExpectSilence(ends.to);
        Ends::ExpectSilence(ends.from);
      }
      hosts.Heal(1);
      if (direction != Direction::kOut) ends.ExpectAt(ends.to, 'a');
      if (direction != Direction::kIn) ends.ExpectAt(ends.from, 'b');
    }
  }
}

TEST_P(HostsTest, APartitionOutlastsAChangeOfShapeAndHealingBringsTheShapeBack) {
  Hosts hosts(Options(2));
  const auto queue = [&] {
    std::string text;
    EXPECT_EQ(hosts.Run(0, {"tc", "qdisc", "show", "dev", "e0"}, &text), 0) << text;
    return text;
  };
  EXPECT_EQ(queue().find("tbf"), std::string::npos);
  hosts.SetShape(0, {.rate = "1gbit"});
  EXPECT_NE(queue().find("rate 1Gbit"), std::string::npos) << queue();
  hosts.Partition(0);
  hosts.SetShape(0, {.rate = "100mbit"});
  EXPECT_NE(queue().find("blackhole"), std::string::npos) << queue();
  hosts.Heal(0);
  EXPECT_NE(queue().find("rate 100Mbit"), std::string::npos) << queue();
  const Ends ends = Connect(hosts, 0, 1);
  ends.Send('a');
  ends.ExpectAt(ends.to, 'a');
  hosts.SetShape(0, {});
  EXPECT_EQ(queue().find("tbf"), std::string::npos) << queue();
}

TEST_P(HostsTest, ACutIsBetweenTwoHostsInOneDirection) {
  Hosts hosts(Options(3));
  const Ends cut = Connect(hosts, 0, 1);
  const Ends other = Connect(hosts, 0, 2);
  const Ends third = Connect(hosts, 2, 1);
  hosts.Cut(1, 0);
  cut.Send('a');
  cut.ExpectAt(cut.to, 'a');
  cut.SendBack('b');
  Ends::ExpectSilence(cut.from);
  for (const Ends* ends : {&other, &third}) {
    ends->Send('c');
    ends->ExpectAt(ends->to, 'c');
    ends->SendBack('d');
    ends->ExpectAt(ends->from, 'd');
  }
  hosts.Mend(1, 0);
  cut.ExpectAt(cut.from, 'b');
}

TEST_P(HostsTest, AHostWithoutItsCableKeepsItsAddresses) {
  Hosts hosts(Options(2));
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !hosts.has_ipv6()) continue;
    const Ends ends = Connect(hosts, 0, 1, ipv6);
    hosts.Unplug(1);
    ends.Send('a');
    Ends::ExpectSilence(ends.to);
    hosts.Plug(1);
    ends.ExpectAt(ends.to, 'a');
    (void)Connect(hosts, 1, 0, ipv6);
  }
}

// A socket of host 1 that receives what Datagram sends from host 0.
struct Datagrams {
  explicit Datagrams(const Hosts& hosts)
      : from(hosts.Socket(0, AF_INET, SOCK_DGRAM)), to(hosts.Socket(1, AF_INET, SOCK_DGRAM)) {
    EXPECT_EQ(bind(to.get(), address.get(), address.length), 0);
    EXPECT_EQ(getsockname(to.get(), address.get(), &address.length), 0);
  }
  void Send(char byte) {
    ASSERT_EQ(sendto(from.get(), &byte, 1, 0, address.get(), address.length), 1);
  }
  char Receive() const {
    char byte = 0;
    return Readable(to.get(), static_cast<int>(kLongSeconds * 1000)) &&
                   recv(to.get(), &byte, 1, 0) == 1
               ? byte
               : '?';
  }

  UniqueFd from, to;
  Endpoint address = AddressOf(1, false);
};

TEST_P(HostsTest, EachNthPacketIsLost) {
  const Hosts hosts(Options(2));
  if (!hosts.CanLose()) GTEST_SKIP() << "no nftables here";
  Datagrams datagrams(hosts);
  hosts.LoseEvery(1, 4);
  for (const char byte : std::string("abcdefgh")) datagrams.Send(byte);
  for (const char byte : std::string("abcefg")) EXPECT_EQ(datagrams.Receive(), byte);
  hosts.LoseEvery(1, 2);
  for (const char byte : std::string("ijkl")) datagrams.Send(byte);
  for (const char byte : std::string("ik")) EXPECT_EQ(datagrams.Receive(), byte);
  hosts.LoseEvery(1, 0);
  for (const char byte : std::string("mn")) datagrams.Send(byte);
  for (const char byte : std::string("mn")) EXPECT_EQ(datagrams.Receive(), byte);
}

TEST_P(HostsTest, ADelayIsTheLeastTimeOfAPacket) {
  HostsOptions options = Options(3);
  options.delay = {.delay_ms = 20, .sites = 2};
  Hosts hosts(options);
  const auto seconds = [&](int to) {
    UniqueFd from = hosts.Socket(0, AF_INET, SOCK_DGRAM),
             end = hosts.Socket(to, AF_INET, SOCK_DGRAM);
    Endpoint address = AddressOf(to, false);
    EXPECT_EQ(bind(end.get(), address.get(), address.length), 0);
    EXPECT_EQ(getsockname(end.get(), address.get(), &address.length), 0);
    const double start = Seconds();
    EXPECT_EQ(sendto(from.get(), "a", 1, 0, address.get(), address.length), 1);
    EXPECT_TRUE(Readable(end.get(), static_cast<int>(kLongSeconds * 1000)));
    return Seconds() - start;
  };
  EXPECT_GE(seconds(1), 0.0199);
  for (int tries = 0; tries < 100; ++tries) {  // host 2 is on the site of host 0
    if (seconds(2) < 0.019) break;
    EXPECT_LT(tries, 99);
  }
  // What was cut, and unplugged, is so behind the bridge, too.
  hosts.Cut(0, 1);
  UniqueFd from = hosts.Socket(0, AF_INET, SOCK_DGRAM), to = hosts.Socket(1, AF_INET, SOCK_DGRAM);
  Endpoint address = AddressOf(1, false);
  ASSERT_EQ(bind(to.get(), address.get(), address.length), 0);
  ASSERT_EQ(getsockname(to.get(), address.get(), &address.length), 0);
  ASSERT_EQ(sendto(from.get(), "b", 1, 0, address.get(), address.length), 1);
  EXPECT_FALSE(Readable(to.get(), kQuietMs));
  hosts.Mend(0, 1);
  hosts.Unplug(1);
  ASSERT_EQ(sendto(from.get(), "c", 1, 0, address.get(), address.length), 1);
  EXPECT_FALSE(Readable(to.get(), kQuietMs));
}

// Large frames, whose checksums NICs would fill in, pass whole and in order.
TEST_P(HostsTest, AStreamPassesADelayBridge) {
  HostsOptions options = Options(2);
  options.delay = {.delay_ms = 5};
  Hosts hosts(options);
  const UniqueFd listener = hosts.Socket(1, AF_INET, SOCK_STREAM);
  Endpoint address = AddressOf(1, false);
  ASSERT_EQ(bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(getsockname(listener.get(), address.get(), &address.length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const UniqueFd from = hosts.Socket(0, AF_INET, SOCK_STREAM);
  ASSERT_EQ(connect(from.get(), address.get(), address.length), 0);
  const UniqueFd to(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  constexpr size_t kBytes = 4 << 20;
  std::vector<unsigned char> sent(kBytes), received(kBytes);
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<unsigned char>(i * 31 + i / 251);
  std::thread sender([&] {
    for (size_t at = 0; at < kBytes;) {
      const ssize_t n = send(from.get(), sent.data() + at, kBytes - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  });
  size_t got = 0;
  while (got < kBytes && Readable(to.get(), static_cast<int>(kLongSeconds * 1000))) {
    const ssize_t n = recv(to.get(), received.data() + got, kBytes - got, 0);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  if (got < kBytes) shutdown(from.get(), SHUT_RDWR);
  sender.join();
  EXPECT_EQ(got, kBytes);
  EXPECT_EQ(received, sent);
}

// A process makes hosts with a rank in each. Another process, which stays in the namespace of the
// switch, counts the switch's ports: each is the end of a link into a host, and the kernel deletes
// it when the host's namespace ends.
struct Watched {
  std::atomic<size_t> ports_before{0}, ports_after{0};
  std::atomic<int> stage{0};  // 1: counted, 2: counted again
};

void Watch(const Hosts& hosts, pid_t owner, Watched* watched) {
  const bool there = hosts.Enter(Hosts::kSwitch).empty();
  close_range(3, ~0U, 0);  // the hosts' descriptors, which would hold them
  watched->ports_before = there ? CountPorts() : 0;
  watched->stage = 1;
  while (getppid() == owner) usleep(1000);
  const double limit = Seconds() + kLongSeconds;
  while (CountPorts() != 0 && Seconds() < limit) usleep(1000);
  watched->ports_after = CountPorts();
  watched->stage = 2;
}

void ExpectNothingStays(bool user_namespace, bool kill_owner) {
  void* const memory =
      mmap(nullptr, sizeof(Watched), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const watched = new (memory) Watched;
  const pid_t owner = fork();
  if (owner == 0) {
    const Hosts hosts({.count = 3, .shape = {}, .user_namespace = user_namespace, .delay = {}});
    const ProcessWorld world({.nranks = 3, .enter = hosts.Ranks()}, [](const Side&) {
      while (true) pause();
      return 0;
    });
    const pid_t self = getpid();
    if (fork() == 0) {
      Watch(hosts, self, watched);
      _exit(0);
    }
    while (watched->stage == 0) usleep(1000);
    if (!kill_owner) _exit(0);
    while (true) pause();
  }
  const double limit = Seconds() + 2 * kLongSeconds;
  while (watched->stage < 1 && Seconds() < limit) usleep(1000);
  if (kill_owner) kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  while (watched->stage < 2 && Seconds() < limit) usleep(1000);
  EXPECT_EQ(watched->stage, 2);
  EXPECT_EQ(watched->ports_before, 3U);
  EXPECT_EQ(watched->ports_after, 0U);
  EXPECT_EQ(CountPorts(), 0U) << "in the test's own namespace";
  munmap(memory, sizeof(Watched));
}

TEST_P(HostsTest, NothingStaysOfAProcessThatExits) { ExpectNothingStays(GetParam(), false); }
TEST_P(HostsTest, NothingStaysOfAProcessThatIsKilled) { ExpectNothingStays(GetParam(), true); }

// From here on this process may not call unshare.
bool ForbidUnshare() {
  std::array<sock_filter, 4> filter = {{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_unshare},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog program{filter.size(), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_P(HostsTest, WhatIsMissingHasAText) {
  EXPECT_EQ(Hosts::Missing(GetParam()), "");
  ProcessWorld world({.nranks = 1}, [&](const Side& side) {
    if (!ForbidUnshare()) return 77;
    side.mine().SetText(Hosts::Missing(GetParam()).c_str());
    return 0;
  });
  if (world.Wait()[0].Exited(77)) GTEST_SKIP() << "no system call filters here";
  world.ExpectAllExited();
  EXPECT_STREQ(world.report(0).text,
               "this process may not make network namespaces: unshare(CLONE_NEWUSER | "
               "CLONE_NEWNET): Operation not permitted");
}

INSTANTIATE_TEST_SUITE_P(Namespaces, HostsTest, ::testing::Values(false, true),
                         [](const auto& mode) { return mode.param ? "OfAUser" : "OfTheSystem"; });

}  // namespace
}  // namespace inccl::test
