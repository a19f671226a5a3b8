// SPDX-License-Identifier: Apache-2.0
//
// Data connections that are made when a lane is first opened, and what strangers may do at the
// listener meanwhile. All ranks are in one thread, which polls them in turn.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"
#include "support/tcp_ends.h"
#include "support/transport_world.h"

namespace inccl::test {
namespace {

using namespace bootstrap;  // NOLINT(build/namespaces)
using tcp::Protection;

constexpr uint32_t kSlotBytes = 4096;
constexpr Time kLimit = 20 * kSecond;  // only a hang gets there

LaneSpec SpecOf(int producer, int consumer, uint8_t channel = 0) {
  return {.channel = channel,
          .producer = producer,
          .consumers = {consumer},
          .slot_bytes = kSlotBytes,
          .depth = 2};
}

class TcpConnect : public ::testing::Test {
 protected:
  void Make(int nranks, int sockets = 1, int timeout_ms = 60000) {
    world_ = MakeTcpOnDemand(nranks, Protection::kAuth, sockets, timeout_ms);
  }
  TcpTransport* end(int rank) { return world_.ends[static_cast<size_t>(rank)].get(); }
  // Polls all ranks that there are.
  void PollAll() {
    for (const std::unique_ptr<TcpTransport>& end : world_.ends) {
      if (end == nullptr) continue;
      const Result<int> events = end->Progress(SystemClock().Now());
      ASSERT_TRUE(events.ok()) << events.status().message();
    }
  }
  bool PollUntil(const std::function<bool()>& done) {
    const Time limit = SystemClock().Now() + kLimit;
    while (!done() && SystemClock().Now() < limit && !HasFatalFailure()) PollAll();
    return done();
  }
  void PollFor(Time time) {
    const Time limit = SystemClock().Now() + time;
    while (SystemClock().Now() < limit && !HasFatalFailure()) PollAll();
  }
  // A byte goes over the lanes of a pair.
  void SendByte(SendLane* from, RecvLane* to, int value) {
    ASSERT_TRUE(PollUntil([&] { return from->TryAcquire().value().data != nullptr; }));
    *from->TryAcquire().value().data = static_cast<std::byte>(value);
    ASSERT_TRUE(from->Publish({.bytes = 1}).ok());
    RecvLane::Incoming incoming;
    ASSERT_TRUE(PollUntil([&] { return to->TryPeek(&incoming).value(); }));
    EXPECT_EQ(*incoming.payload, static_cast<std::byte>(value));
    ASSERT_TRUE(to->Release().ok());
  }
  std::string AwaitLoss(RecvLane* lane) {
    RecvLane::Incoming incoming;
    Status status;
    PollUntil([&] { return !(status = lane->TryPeek(&incoming).status()).ok(); });
    EXPECT_EQ(status.code(), Code::kRemoteError);
    return status.message();
  }

  TcpEnds world_;
};

TEST_F(TcpConnect, PairsConnectAtTheirFirstLane) {
  constexpr int kSockets = 2;
  Make(4, kSockets);
  const int before = CountFds();
  PollAll();
  EXPECT_EQ(CountFds(), before);
  const auto send = end(3)->OpenSend(SpecOf(3, 1)).value();
  const auto recv = end(1)->OpenRecv(SpecOf(3, 1)).value();
  SendByte(send.get(), recv.get(), 5);
  ASSERT_TRUE(PollUntil([&] { return CountFds() == before + 2 * kSockets; })) << CountFds();
  PollFor(20 * kMillisecond);
  EXPECT_EQ(CountFds(), before + 2 * kSockets) << "other pairs have not connected";
  // A lane the other way, and one on the other connection, need no further connection.
  const auto back = end(1)->OpenSend(SpecOf(1, 3, 1)).value();
  const auto there = end(3)->OpenRecv(SpecOf(1, 3, 1)).value();
  SendByte(back.get(), there.get(), 6);
  EXPECT_EQ(CountFds(), before + 2 * kSockets);
}

// A firewall between hosts forgets a connection that is idle for minutes, as while a model is
// evaluated; both ends probe before. So does one whose peer comes late.
TEST_F(TcpConnect, IdleConnectionsAreProbed) {
  constexpr int kSockets = 2;
  Make(2, kSockets);
  const auto option = [](int fd, int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
  };
  const auto probed = [&](int expected) {
    int sockets = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      if (option(fd, SOL_SOCKET, SO_DOMAIN) != AF_INET ||
          option(fd, SOL_SOCKET, SO_ACCEPTCONN) != 0)
        continue;
      const int last =
          option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT);
      const bool soon = option(fd, IPPROTO_TCP, TCP_KEEPIDLE) <= 60 && last <= 60;
      sockets += option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1 && soon ? 1 : 0;
    }
    return sockets == expected;
  };
  const auto recv = end(1)->OpenRecv(SpecOf(0, 1)).value();
  PollFor(20 * kMillisecond);
  EXPECT_TRUE(probed(kSockets)) << "rank 1 waits for rank 0";
  const auto send = end(0)->OpenSend(SpecOf(0, 1)).value();
  SendByte(send.get(), recv.get(), 1);
  EXPECT_TRUE(PollUntil([&] { return probed(2 * kSockets); }));
}

// With its last connection a rank has no listener any more.
TEST_F(TcpConnect, ListensUntilAllPairsAreConnected) {
  Make(2);
  const int before = CountFds();
  const auto send = end(0)->OpenSend(SpecOf(0, 1)).value();
  const auto recv = end(1)->OpenRecv(SpecOf(0, 1)).value();
  SendByte(send.get(), recv.get(), 1);
  EXPECT_EQ(CountFds(), before);  // two sockets for two listeners
}

// A rank that has opened a lane does not end its call before the peer has come.
TEST_F(TcpConnect, UnsentUntilThePeerComes) {
  Make(3);
  for (const bool lower : {false, true}) {
    SCOPED_TRACE(lower);
    const int first = lower ? 0 : 2, second = lower ? 2 : 1;
    const LaneSpec spec = SpecOf(second, first);
    const auto recv = end(first)->OpenRecv(spec).value();
    PollFor(50 * kMillisecond);
    EXPECT_TRUE(end(first)->unsent());
    EXPECT_FALSE(end(first)->delivered());
    std::vector<int> ranks;
    end(first)->AppendUnsent(&ranks);
    EXPECT_EQ(ranks, std::vector<int>{second});
    EXPECT_FALSE(end(second)->unsent());
    const auto send = end(second)->OpenSend(spec).value();
    EXPECT_TRUE(end(second)->unsent()) << "the peer needs this rank";
    ASSERT_TRUE(PollUntil([&] { return !end(first)->unsent() && !end(second)->unsent(); }));
    SendByte(send.get(), recv.get(), 9);
  }
}

TEST_F(TcpConnect, AFailedCallLeavesNothingUnsent) {
  Make(3);
  const auto low = end(0)->OpenRecv(SpecOf(1, 0)).value();
  const auto high = end(2)->OpenRecv(SpecOf(1, 2)).value();
  PollFor(20 * kMillisecond);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(end(rank)->unsent());
    end(rank)->DropUnsent();
    EXPECT_FALSE(end(rank)->unsent());
    EXPECT_TRUE(end(rank)->delivered());
    const Time start = SystemClock().Now();
    end(rank)->Quiesce(start + kLimit);
    EXPECT_LT(SystemClock().Now() - start, kLimit / 2);
  }
}

// The rank that connects, and the one that waits for it, keep no descriptor.
TEST_F(TcpConnect, EndsWhileConnectingLeaveNoDescriptor) {
  const int before = CountFds();
  Make(3);
  const auto low = end(0)->OpenRecv(SpecOf(1, 0)).value();
  const auto high = end(2)->OpenRecv(SpecOf(1, 2)).value();
  const auto middle = end(1)->OpenSend(SpecOf(1, 0)).value();
  for (int i = 0; i < 3; ++i) PollAll();
  for (auto& end : world_.ends) {
    end->DropUnsent();
    end.reset();
  }
  EXPECT_EQ(CountFds(), before);
}

TEST_F(TcpConnect, APeerThatDoesNotListenAnyMoreIsNamedWithItsAddress) {
  Make(3);
  const std::string address = SocketAddress::Tcp(world_.addresses[1]).ToString();
  world_.ends[1].reset();
  const auto other = end(2)->OpenRecv(SpecOf(0, 2)).value();
  const auto peer = end(0)->OpenSend(SpecOf(0, 2)).value();
  const auto recv = end(2)->OpenRecv(SpecOf(1, 2)).value();
  const std::string error = AwaitLoss(recv.get());
  EXPECT_NE(error.find("rank 2: tcp: peer 1@host:1 is lost: "), std::string::npos) << error;
  EXPECT_NE(error.find(address + ": connect: Connection refused"), std::string::npos) << error;
  EXPECT_FALSE(end(2)->unsent());
  SendByte(peer.get(), other.get(), 3);  // other pairs go on
}

// The kernel drops what comes to a listener with a full queue, as a firewall does.
TEST_F(TcpConnect, APeerThatCannotBeReachedIsNamedWithItsAddress) {
  constexpr int kTimeoutMs = 300;
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  ASSERT_EQ(bind(listener.get(), address, length), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  ASSERT_EQ(getsockname(listener.get(), address, &length), 0);
  std::vector<UniqueFd> queue;
  for (int i = 0; i < 4; ++i) {
    queue.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(queue.back().get(), address, length);
  }
  usleep(100000);
  Make(2, 1, kTimeoutMs);
  // Rank 0 listens there.
  Result<std::unique_ptr<TcpTransport>> made = TcpTransport::Create(1, 2, Protection::kAuth);
  UniqueIdAddress unreachable = world_.addresses[0];
  unreachable.port = ntohs(name.sin_port);
  std::map<int, tcp::PeerConnector::PeerPlan> peers = {
      {0, {.name = "0@far:7", .addresses = {unreachable}}}};
  (*made)->ConnectWhenNeeded(std::make_unique<tcp::PeerConnector>(
      tcp::PeerConnector::Options{.rank = 1,
                                  .nranks = 2,
                                  .handshake = world_.handshake,
                                  .sources = {},
                                  .sockets_per_peer = 1,
                                  .timeout_ms = kTimeoutMs},
      std::vector<Listener>(), std::move(peers), (*made)->epoll()));
  world_.ends[1] = *std::move(made);
  const auto recv = end(1)->OpenRecv(SpecOf(0, 1)).value();
  const std::string error = AwaitLoss(recv.get());
  EXPECT_NE(
      error.find("rank 1: tcp: peer 0@far:7 is lost: no connection within 300 ms; 127.0.0.1:"),
      std::string::npos)
      << error;
  EXPECT_NE(error.find("Connection timed out"), std::string::npos) << error;
}

// Leaves no descriptor to this process while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const UniqueFd next(dup(0));  // the lowest free number
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(next.get());
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_F(TcpConnect, TooFewDescriptorsAreAnErrorAtEitherEnd) {
  for (const bool accepts : {false, true}) {
    SCOPED_TRACE(accepts);
    Make(3);
    std::unique_ptr<SendLane> other;
    if (accepts) {
      other = end(2)->OpenSend(SpecOf(2, 0)).value();
      PollFor(20 * kMillisecond);  // it has a socket
    }
    TcpTransport* const victim = end(accepts ? 0 : 2);
    const auto recv = victim->OpenRecv(accepts ? SpecOf(2, 0) : SpecOf(1, 2)).value();
    Status status;
    {
      const NoDescriptors none;
      const Time limit = SystemClock().Now() + kLimit;
      while (status.ok() && SystemClock().Now() < limit) {
        status = victim->Progress(SystemClock().Now()).status();
      }
    }
    // Its own: the peer is well.
    EXPECT_EQ(status.code(), Code::kSystemError);
    const std::string& error = status.message();
    EXPECT_NE(
        error.find(accepts ? "peer 2@host:1: accept: " : "peer 1@host:1: no socket to 127.0.0.1:"),
        std::string::npos)
        << error;
    EXPECT_NE(error.find("Too many open files"), std::string::npos) << error;
    for (auto& end : world_.ends) end->DropUnsent();
  }
}

// A client of rank 0's listener that this test drives.
class Visitor {
 public:
  explicit Visitor(const UniqueIdAddress& address) {
    int error = 0;
    fd_ = Connect(SocketAddress::Tcp(address), &error).value();
    EXPECT_TRUE(WaitFor(fd_.get(), POLLOUT, SystemClock().Now() + kLimit));
  }
  bool Send(Bytes bytes) { return WriteSome(fd_.get(), bytes).bytes == bytes.size(); }
  // Takes what has arrived; returns true once the other end has closed.
  bool Closed() {
    std::array<std::byte, 256> buffer;
    const IoResult got = ReadSome(fd_.get(), buffer);
    received_ += got.bytes;
    return got.closed || (got.error != 0 && got.error != EAGAIN);
  }
  bool Readable() const { return WaitFor(fd_.get(), POLLIN, SystemClock().Now()); }
  size_t received() const { return received_; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  size_t received_ = 0;
};

// Ranks that have the key, or claim to, and are not due.
TEST_F(TcpConnect, OnlyRanksThatAreDueAreAccepted) {
  Make(4);
  const auto send = end(0)->OpenSend(SpecOf(0, 1)).value();
  const auto recv = end(1)->OpenRecv(SpecOf(0, 1)).value();
  SendByte(send.get(), recv.get(), 1);
  const auto waits = end(0)->OpenRecv(SpecOf(2, 0)).value();  // rank 0 accepts while it waits
  struct Case {
    const char* what;
    ClientIdentity identity;
    bool right_key = true;
  };
  const std::vector<Case> cases = {
      {"a rank that is connected", {.rank = 1, .nranks = 4, .server = 0, .connection = 0}},
      {"the wrong key", {.rank = 2, .nranks = 4, .server = 0, .connection = 0}, false},
      {"the rank itself", {.rank = 0, .nranks = 4, .server = 0, .connection = 0}},
      {"a rank that there is not", {.rank = 4, .nranks = 5, .server = 0, .connection = 0}},
      {"another number of ranks", {.rank = 2, .nranks = 5, .server = 0, .connection = 0}},
      {"a connection too many", {.rank = 2, .nranks = 4, .server = 0, .connection = 1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    HandshakeTerms terms = world_.handshake;
    if (!c.right_key) terms.key = Key(Mac{});
    Visitor visitor(world_.addresses[0]);
    ClientHandshake handshake;
    ClientIdentity identity = c.identity;
    identity.server_key = world_.keys[0]->public_key();
    handshake.Start(&terms, identity, Nonce{});
    ASSERT_TRUE(visitor.Send(handshake.to_send()));
    EXPECT_TRUE(PollUntil([&] { return visitor.Closed(); }));
    EXPECT_EQ(visitor.received(), 0u) << "no reply";
    SendByte(send.get(), recv.get(), 2);
  }
  // The rank that is awaited comes.
  const auto comes = end(2)->OpenSend(SpecOf(2, 0)).value();
  SendByte(comes.get(), waits.get(), 3);
}

// A higher rank that is ahead of this one connects while this one waits for another rank.
TEST_F(TcpConnect, ARankThatIsAheadIsAccepted) {
  Make(3);
  const auto ahead = end(2)->OpenSend(SpecOf(2, 0)).value();
  PollFor(20 * kMillisecond);
  EXPECT_TRUE(end(2)->unsent());
  const auto recv = end(0)->OpenRecv(SpecOf(1, 0)).value();
  ASSERT_TRUE(PollUntil([&] { return !end(2)->unsent(); }));
  const auto later = end(0)->OpenRecv(SpecOf(2, 0)).value();
  SendByte(ahead.get(), later.get(), 4);
  end(0)->DropUnsent();  // rank 1 never comes
}

// Strangers that send nothing, garbage, or half a hello, and stay. They cost a rank nothing while
// it awaits no peer, and a bounded number of descriptors while it does.
TEST_F(TcpConnect, StrangersDisturbNoPair) {
  constexpr int kStrangers = 400;
  Make(3);
  const auto send = end(0)->OpenSend(SpecOf(0, 1)).value();
  const auto recv = end(1)->OpenRecv(SpecOf(0, 1)).value();
  SendByte(send.get(), recv.get(), 1);
  Rng rng(TestSeed());
  std::vector<std::unique_ptr<Visitor>> strangers;
  for (int i = 0; i < kStrangers; ++i) {
    strangers.push_back(std::make_unique<Visitor>(world_.addresses[0]));
    if (i % 4 == 0) continue;
    std::vector<std::byte> bytes(i % 4 == 1 ? 60 : 1 + rng.Below(3000));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
    if (i % 4 != 2) std::memcpy(bytes.data(), "icl2", std::min<size_t>(bytes.size(), 4));
    EXPECT_TRUE(strangers.back()->Send(bytes));
  }
  const int before = CountFds();
  for (int i = 0; i < 50; ++i) SendByte(send.get(), recv.get(), i);
  EXPECT_EQ(CountFds(), before) << "none is accepted";

  const auto waits = end(0)->OpenRecv(SpecOf(2, 0)).value();
  const int bound = static_cast<int>(BudgetFor(3, false).total);
  for (int i = 0; i < 50; ++i) {
    SendByte(send.get(), recv.get(), i);
    EXPECT_LE(CountFds(), before + bound);
  }
  const auto comes = end(2)->OpenSend(SpecOf(2, 0)).value();
  SendByte(comes.get(), waits.get(), 7);
  for (int i = 0; i < 50; ++i) SendByte(send.get(), recv.get(), i);
  strangers.clear();
  SendByte(comes.get(), waits.get(), 8);
}

}  // namespace
}  // namespace inccl::test
