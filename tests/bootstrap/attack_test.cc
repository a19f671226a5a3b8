// SPDX-License-Identifier: Apache-2.0
//
// Strangers at the rendezvous: whatever they send, the job joins, and they cost little.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "base/rng.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/handshake.h"
#include "bootstrap/messages.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/socket.h"
#include "support/seed.h"
#include "world/baseline.h"
#include "world/chaos_proxy.h"

namespace inccl::test {
namespace {

using namespace bootstrap;  // NOLINT(build/namespaces)

// A connection that follows no protocol. Reads give up after ten seconds.
class Stranger {
 public:
  explicit Stranger(const SocketAddress& address) {
    int error = 0;
    Result<UniqueFd> fd = Connect(address, &error);
    EXPECT_TRUE(fd.ok() && error == 0);
    fd_ = *std::move(fd);
    EXPECT_TRUE(WaitFor(fd_.get(), POLLOUT, SystemClock().Now() + 10 * kSecond));
  }
  bool Send(Bytes bytes) { return WriteSome(fd_.get(), bytes).bytes == bytes.size(); }
  // The greeting of a server that it asks; shorter if there is none.
  std::vector<std::byte> Greeting() {
    ClientHandshake handshake;
    handshake.Start(nullptr, {}, {});
    return Send(handshake.to_send()) ? Read(kGreetingBytes) : std::vector<std::byte>();
  }
  // Exactly n bytes, or what came before the end.
  std::vector<std::byte> Read(size_t n) {
    std::vector<std::byte> bytes(n);
    size_t have = 0;
    while (have < n && WaitFor(fd_.get(), POLLIN, SystemClock().Now() + 10 * kSecond)) {
      const IoResult got = ReadSome(fd_.get(), std::span(bytes).subspan(have));
      if (got.error == EAGAIN) continue;
      if (got.error != 0 || got.closed) break;
      have += got.bytes;
    }
    bytes.resize(have);
    return bytes;
  }
  bool IsOpen() {
    std::array<std::byte, 1> one;
    return ReadSome(fd_.get(), one).error == EAGAIN;
  }
  // The other side ends the connection and says nothing before.
  bool IsCutOff() {
    if (!WaitFor(fd_.get(), POLLIN, SystemClock().Now() + 10 * kSecond)) return false;
    std::array<std::byte, 1> one;
    const IoResult got = ReadSome(fd_.get(), one);
    return got.closed || (got.error != 0 && got.error != EAGAIN);
  }

 private:
  UniqueFd fd_;
};

class AttackTest : public ::testing::Test {
 protected:
  AttackTest() {
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    EXPECT_TRUE(id.ok());
    id_ = *id;
    address_ = SocketAddress::Tcp(id_.addresses[0]);
    terms_ = TargetOf(id_).terms;
  }
  void ExpectTheJobJoins(int n = 3) {
    for (const Result<Mesh>& mesh : JoinThreads(id_, n)) {
      EXPECT_TRUE(mesh.ok()) << mesh.status().message();
    }
  }
  // A whole handshake; the client's hello is kept in *hello.
  bool Authenticate(Stranger* stranger, const HandshakeTerms& terms, uint32_t rank, uint32_t nranks,
                    std::vector<std::byte>* hello = nullptr, std::optional<Aead>* seal = nullptr) {
    ClientHandshake handshake;
    handshake.Start(&terms, {.rank = rank, .nranks = nranks, .server_key = server_key_}, Nonce{});
    if (!server_key_) {
      stranger->Send(handshake.to_send());
      handshake.Feed(stranger->Read(kGreetingBytes));
    }
    if (hello != nullptr) hello->assign(handshake.to_send().begin(), handshake.to_send().end());
    stranger->Send(handshake.to_send());
    const std::vector<std::byte> reply = stranger->Read(kReplyBytes);
    if (reply.size() != kReplyBytes || handshake.Feed(reply) != ClientHandshake::State::kDone) {
      return false;
    }
    if (seal != nullptr) {
      seal->emplace(Aead::Create(handshake.Keys()->from_client, Aead::Use::kSeal).value());
    }
    return true;
  }

  const Baseline baseline_;
  UniqueId id_;
  SocketAddress address_;
  HandshakeTerms terms_;
  std::optional<PublicKey> server_key_;  // of strangers that need not ask
};

TEST_F(AttackTest, Garbage) {
  Rng rng(TestSeed());
  for (int i = 0; i < 50; ++i) {
    Stranger stranger(address_);
    std::vector<std::byte> bytes(1 + rng.Below(300));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
    stranger.Send(bytes);
    EXPECT_EQ(stranger.Read(1).size(), 0u) << "nothing comes";
  }
  ExpectTheJobJoins();
}

TEST_F(AttackTest, AReplayOnTheLivePort) {
  for (const bool asks : {true, false}) {
    if (!asks) server_key_ = id_.server_key;
    std::vector<std::byte> recorded;
    {
      Stranger rank(address_);
      ASSERT_TRUE(Authenticate(&rank, terms_, 1, 3, &recorded));
    }
    for (const bool greeted : {true, false}) {
      SCOPED_TRACE(testing::Message() << "asks " << asks << ", greeted " << greeted);
      Stranger replay(address_);
      if (greeted) {
        EXPECT_EQ(replay.Greeting().size(), kGreetingBytes);
      }
      EXPECT_TRUE(replay.Send(recorded));
      EXPECT_TRUE(replay.IsCutOff());
    }
  }
  ExpectTheJobJoins();
}

// An attacker on the path holds back what a rank sends, and sends a copy of it first. The copy
// counts, until the rank comes again.
TEST_F(AttackTest, ACopyThatComesFirst) {
  ChaosProxy proxy(Endpoint::Tcp("127.0.0.1"), Endpoint::Tcp("127.0.0.1", id_.addresses[0].port));
  proxy.SetFaults(0, ChaosProxy::Way::kToServer, {.stop_at = 0, .stop = ChaosProxy::Stop::kHold});
  UniqueId by_proxy = id_;
  by_proxy.addresses.resize(1);
  by_proxy.addresses[0].port = proxy.address().port();
  std::vector<Status> statuses(2);
  std::vector<std::thread> ranks;
  const auto start = [&](int rank, const UniqueId& id) {
    ranks.emplace_back([&statuses, rank, id] {
      statuses[static_cast<size_t>(rank)] = JoinWithId(id, Options(rank, 2)).status();
    });
  };
  start(1, by_proxy);
  std::string recorded;
  for (int i = 0; i < 1000 && recorded.size() <= kHelloBytes + kFrameHeaderBytes; ++i) {
    usleep(20000);
    recorded = proxy.Recorded(0, ChaosProxy::Way::kToServer);
  }
  Stranger copy(address_);
  EXPECT_TRUE(copy.Send(AsBytes(recorded)));
  EXPECT_EQ(copy.Read(kReplyBytes).size(), kReplyBytes);
  start(0, id_);
  EXPECT_EQ(copy.Read(1).size(), 1u) << "the table, which it cannot read";
  proxy.SetFaults(0, ChaosProxy::Way::kToServer, {});
  for (std::thread& rank : ranks) rank.join();
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
}

// The first address of an id leads nowhere for a while. The rank goes on to the second one, and
// what it has sent to the first arrives later.
TEST_F(AttackTest, AnAddressThatAnswersLate) {
  for (const bool before : {true, false}) {  // the rank comes to the second address
    SCOPED_TRACE(before);
    const UniqueId id = CreateUniqueId(TestEnvironment()).value();
    ChaosProxy proxy(Endpoint::Tcp("127.0.0.1"), Endpoint::Tcp("127.0.0.1", id.addresses[0].port));
    proxy.SetFaults(0, ChaosProxy::Way::kToServer, {.stop_at = 0, .stop = ChaosProxy::Stop::kHold});
    UniqueId late = id;
    late.addresses.resize(1);
    late.addresses.push_back(late.addresses[0]);
    late.addresses[0].port = proxy.address().port();
    std::vector<Status> statuses(3);
    OnThreads(4, [&](int rank) {
      if (rank == 3) {
        usleep(before ? 3950000 : 4100000);
        return proxy.SetFaults(0, ChaosProxy::Way::kToServer, {});
      }
      if (rank == 0) usleep(4300000);  // the others wait for it
      statuses[static_cast<size_t>(rank)] =
          JoinWithId(rank == 1 ? late : id, Options(rank, 3)).status();
    });
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
  }
  ExpectTheJobJoins();
}

// Ranks try all addresses of the id meanwhile, and the rendezvous then finds what they have sent to
// each.
TEST(StoppedTest, ARendezvousThatStandsStill) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Processes processes;
  const pid_t maker = processes.Start([&] {
    const UniqueId id = CreateUniqueId(TestEnvironment()).value();
    std::array<std::byte, kUniqueIdBytes> bytes;
    id.Encode(bytes.data());
    if (write(ends[1], bytes.data(), bytes.size()) != kUniqueIdBytes) return 1;
    raise(SIGSTOP);
    return JoinWithId(id, Options(0, 3)).ok() ? 0 : 2;
  });
  std::array<std::byte, kUniqueIdBytes> bytes;
  ASSERT_EQ(read(ends[0], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  int status = 0;
  ASSERT_EQ(waitpid(maker, &status, WUNTRACED), maker);
  const UniqueId id = UniqueId::Decode(bytes.data()).value();
  OnThreads(3, [&](int rank) {
    if (rank == 0) {
      usleep(4400000);  // after their first attempts
      kill(maker, SIGCONT);
      return;
    }
    const Status joined = JoinWithId(id, Options(rank, 3)).status();
    EXPECT_TRUE(joined.ok()) << joined.message();
  });
  EXPECT_EQ(processes.Wait(maker), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(AttackTest, AWrongSecretLearnsNothing) {
  HandshakeTerms wrong = terms_;
  wrong.key = Key(Mac{});
  Stranger stranger(address_);
  EXPECT_FALSE(Authenticate(&stranger, wrong, 1, 3));
  ExpectTheJobJoins();
}

TEST_F(AttackTest, AMemberThatSpeaksNonsense) {
  Rng rng(TestSeed());
  for (int i = 0; i < 30; ++i) {
    Stranger member(address_);
    std::optional<Aead> seal;
    ASSERT_TRUE(Authenticate(&member, terms_, 1, 3, nullptr, &seal));
    std::vector<std::byte> bytes;
    if (i % 5 == 0) {
      bytes.resize(4, std::byte{0xFF});  // a frame of 4 GiB
    } else if (i % 5 == 1) {
      AppendFrame(static_cast<uint8_t>(MessageKind::kDone), {}, &bytes);  // not sealed
    } else {
      std::vector<std::byte> body(rng.Below(200));
      for (std::byte& b : body) b = static_cast<std::byte>(rng.Next());
      AppendFrame(static_cast<uint8_t>(1 + rng.Below(6)), body, &bytes, &*seal);
    }
    member.Send(bytes);
    EXPECT_TRUE(member.IsCutOff());
  }
  // A registration of another rank than the one that authenticated.
  Stranger liar(address_);
  std::optional<Aead> seal;
  ASSERT_TRUE(Authenticate(&liar, terms_, 1, 3, nullptr, &seal));
  Registration registration;
  registration.record.rank = 2;
  registration.nranks = 3;
  std::vector<std::byte> bytes;
  AppendFrame(static_cast<uint8_t>(MessageKind::kRegister), registration.Encode(), &bytes, &*seal);
  liar.Send(bytes);
  EXPECT_TRUE(liar.IsCutOff());
  ExpectTheJobJoins();
}

TEST_F(AttackTest, IdleConnectionsAreFew) {
  const size_t before = Holdings::Now().fds;
  std::vector<std::optional<Stranger>> idle(500);
  for (auto& stranger : idle) stranger.emplace(address_);
  EXPECT_EQ(idle.back()->Greeting().size(), kGreetingBytes);  // all have been accepted
  // Ours are 500 of them; the rendezvous holds the 128 that it allows one address, beside the
  // directory that is being read.
  EXPECT_LE(Holdings::Now().fds, before + idle.size() + 130);
  ExpectTheJobJoins();
}

TEST_F(AttackTest, JoiningDuringAFlood) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> flood;
  for (int i = 0; i < 2; ++i) {
    flood.emplace_back([&, i] {
      Rng rng(TestSeed() + static_cast<uint64_t>(i));
      std::vector<UniqueFd> open(200);
      while (!stop) {
        int error = 0;
        Result<UniqueFd> fd = Connect(address_, &error);
        if (!fd.ok()) continue;
        if (rng.Below(2) == 0) WriteSome(fd->get(), AsBytes("icl2 and something more"));
        open[rng.Below(open.size())] = *std::move(fd);
        if (rng.Below(16) == 0) usleep(1000);
      }
    });
  }
  usleep(20000);
  ExpectTheJobJoins(4);
  stop = true;
  for (std::thread& thread : flood) thread.join();
}

// Connections to a unix socket that have been greeted and say nothing.
std::vector<std::unique_ptr<Stranger>> Greeted(const std::string& name, int count) {
  std::vector<std::unique_ptr<Stranger>> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(std::make_unique<Stranger>(SocketAddress::Unix(name)));
    EXPECT_EQ(connections.back()->Greeting().size(), kGreetingBytes);
  }
  return connections;
}

// How many of them are there still: they have not been closed.
int Open(std::vector<std::unique_ptr<Stranger>>* connections) {
  int open = 0;
  for (auto& connection : *connections) open += connection->IsOpen() ? 1 : 0;
  return open;
}

class FloodTest : public ::testing::Test {
 protected:
  void StartLauncherRoot(int nranks) {
    MeetingOptions options;
    options.root.nranks = nranks;
    options.handshake_limit = 20 * kSecond;
    target_ = OpenMeeting(SocketAddress::Unix(name_), options);
  }
  // What a rank does up to the last message.
  Status Join(int rank, int nranks) {
    const auto client = RendezvousClient::Connect(
        target_, {.rank = rank, .nranks = nranks, .deadline = SystemClock().Now() + 20 * kSecond});
    if (!client.ok()) return client.status();
    Registration registration;
    registration.record.rank = static_cast<uint32_t>(rank);
    registration.nranks = static_cast<uint32_t>(nranks);
    registration.remaining = 20 * kSecond;
    (void)(*client)->Send(MessageKind::kRegister, registration.Encode());
    if (const auto table = (*client)->Await(MessageKind::kTable); !table.ok()) {
      return table.status();
    }
    (void)(*client)->Send(MessageKind::kDone, EncodeLinks({}));
    return (*client)->Await(MessageKind::kGo).status();
  }
  void ExpectTheRanksJoin(int nranks) {
    OnThreads(nranks, [&](int rank) {
      const Status status = Join(rank, nranks);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }

  const std::string name_ = "inccl-flood-" + std::to_string(getpid());
  RootTarget target_;
};

// It knows the key, but belongs to a world of another size, and comes when the ranks have joined.
TEST_F(FloodTest, ARankOfAnotherWorldThatRegistersLateIsTurnedAway) {
  StartLauncherRoot(2);
  const auto late = RendezvousClient::Connect(
      target_, {.rank = 2, .nranks = 3, .deadline = SystemClock().Now() + 20 * kSecond});
  ASSERT_TRUE(late.ok()) << late.status().message();
  ExpectTheRanksJoin(2);
  Registration registration;
  registration.record.rank = 2;
  registration.nranks = 3;
  registration.remaining = 20 * kSecond;
  ASSERT_TRUE((*late)->Send(MessageKind::kRegister, registration.Encode()).ok());
  const Status status = (*late)->Await(MessageKind::kTable).status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_NE(status.message().find("all ranks had joined"), std::string::npos) << status.message();
}

TEST_F(FloodTest, OneProcessCannotCrowdOutTheRanksOfOthers) {
  const Baseline baseline;
  ASSERT_NO_FATAL_FAILURE(StartLauncherRoot(3));
  {
    auto ranks = Greeted(name_, 3);
    Processes processes;
    const pid_t flood = processes.Start([&] {
      auto strangers = Greeted(name_, 300);
      const int open = Open(&strangers);
      EXPECT_LE(open, 16) << "of one process";
      EXPECT_GE(open, 1);
      return 0;
    });
    EXPECT_EQ(processes.Wait(flood), 0);
    EXPECT_EQ(Open(&ranks), 3);
  }
  ExpectTheRanksJoin(3);
}

TEST_F(FloodTest, ManyRanksAtOnceDoNotCrowdOutEachOther) {
  const Baseline baseline;
  constexpr int kMany = 200;
  ASSERT_NO_FATAL_FAILURE(StartLauncherRoot(kMany));
  {
    auto ranks = Greeted(name_, kMany);
    EXPECT_EQ(Open(&ranks), kMany);
  }
  ExpectTheRanksJoin(3);
}

TEST_F(FloodTest, RanksJoinMeanwhile) {
  const Baseline baseline;
  ASSERT_NO_FATAL_FAILURE(StartLauncherRoot(3));
  Processes processes;
  processes.Start([&] {
    std::vector<UniqueFd> open(200);
    for (size_t i = 0;; i = (i + 1) % open.size()) {
      int error = 0;
      Result<UniqueFd> fd = Connect(SocketAddress::Unix(name_), &error);
      if (!fd.ok()) continue;
      if (i % 2 == 0) WriteSome(fd->get(), AsBytes("icl2 and something more"));
      open[i] = *std::move(fd);
    }
    return 0;
  });
  usleep(20000);
  ExpectTheRanksJoin(3);
}

TEST(AdmissionTest, BudgetsFollowTheRanks) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 4 * 4 * 300) GTEST_SKIP() << "at most " << limit.rlim_cur << " descriptors";
  for (const size_t ranks : {1u, 3u, 64u, 300u}) {
    for (const bool unix_sockets : {true, false}) {
      const Budget budget = BudgetFor(ranks, unix_sockets);
      EXPECT_GE(budget.total, 2 * ranks);
      EXPECT_GE(budget.per_source, 2 * ranks) << "the ranks may be threads";
      EXPECT_LE(2 * budget.per_source, budget.total) << "one source leaves half to the others";
    }
  }
  EXPECT_LE(BudgetFor(3, true).per_source, 16u);
}

TEST(AdmissionTest, WhoHasManyMakesRoomFirst) {
  const Budget budget = {.total = 6, .per_source = 3};
  const std::vector<uint64_t> some = {7, 8, 7, 9, 7};
  for (uint64_t random = 0; random < 20; ++random) {
    EXPECT_EQ(MakesRoom(some, 8, budget, random), some.size()) << "there is room";
    const size_t own = MakesRoom(some, 7, budget, random);
    ASSERT_LT(own, some.size());
    EXPECT_EQ(some[own], 7u);
  }
  // Full of many sources: any may go, so that an attacker cannot aim at one.
  const std::vector<uint64_t> full = {1, 2, 3, 4, 5, 6};
  std::set<size_t> gone;
  for (uint64_t random = 0; random < 6; ++random) gone.insert(MakesRoom(full, 9, budget, random));
  EXPECT_EQ(gone, (std::set<size_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(MakesRoom({}, 9, budget, 5), 0u);
}

TEST(AdmissionTest, LinesAreFew) {
  LineLimit limit;
  int lines = 0;
  for (Time now = 10 * kSecond; now < 15 * kSecond; now += kMillisecond) lines += limit.Allow(now);
  EXPECT_EQ(lines, 5);
}

UniqueIdAddress ChooseLoopback() {
  UniqueIdAddress address;
  address.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  return address;
}

TEST(RootTest, TheSlowAreCutOff) {
  const Baseline baseline;
  UniqueIdAddress address = ChooseLoopback();
  ASSERT_TRUE(ListenAt(&address).ok());  // closes it again
  MeetingOptions options;
  options.handshake_limit = 200 * kMillisecond;
  options.root.lifetime = kSecond;
  const SocketAddress target = SocketAddress::Tcp(address);
  const RootTarget meeting = OpenMeeting(target, options);
  {
    Stranger slow(target);
    ASSERT_EQ(slow.Greeting().size(), kGreetingBytes);
    const double start = Seconds();
    bool alive = true;
    for (int i = 0; alive && i < 500; ++i) {
      alive = slow.Send(AsBytes("icl2icl2").subspan(static_cast<size_t>(i % 4), 1));
      usleep(10000);
    }
    EXPECT_TRUE(slow.IsCutOff());
    EXPECT_LT(Seconds() - start, 4.0 * kSlowness);
    // One that authenticated and then never registers.
    Stranger silent(target);
    ClientHandshake handshake;
    handshake.Start(&meeting.terms, {.rank = 0, .nranks = 1}, Nonce{});
    silent.Send(handshake.to_send());
    handshake.Feed(silent.Read(kGreetingBytes));
    silent.Send(handshake.to_send());
    ASSERT_EQ(handshake.Feed(silent.Read(kReplyBytes)), ClientHandshake::State::kDone);
    EXPECT_TRUE(silent.IsCutOff());
  }
  // A registration that completes it, so that the thread ends.
  const auto client = RendezvousClient::Connect(
      meeting, {.rank = 0, .nranks = 1, .deadline = SystemClock().Now() + 10 * kSecond});
  ASSERT_TRUE(client.ok()) << client.status().message();
  Registration registration;
  registration.nranks = 1;
  registration.remaining = kSecond;
  ASSERT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
  EXPECT_TRUE((*client)->Await(MessageKind::kTable).ok());
  ASSERT_TRUE((*client)->Send(MessageKind::kDone, EncodeLinks({})).ok());
  EXPECT_TRUE((*client)->Await(MessageKind::kGo).ok());
}

// The rank of the rendezvous' own process is told last of a failure, whatever it says until then.
TEST_F(FloodTest, TheOwnRankLearnsOfADeathThatIsSeenBeforeItsLastMessage) {
  constexpr int kRanks = 3;
  const Baseline baseline;
  StartLauncherRoot(kRanks);
  std::atomic<bool> done{false};
  fault::Arm(
      {.point = fault::IndexOf("root.after_table"), .action = fault::Action::kCall, .call = [&] {
         while (!done) usleep(1000);
       }});
  std::vector<std::unique_ptr<RendezvousClient>> clients;
  for (const int rank : {2, 0, 1}) {  // the one that dies comes first
    auto client = RendezvousClient::Connect(
        target_, {.rank = rank, .nranks = kRanks, .deadline = SystemClock().Now() + 20 * kSecond});
    ASSERT_TRUE(client.ok()) << client.status().message();
    clients.push_back(*std::move(client));
    Registration registration;
    registration.record.rank = static_cast<uint32_t>(rank);
    registration.record.pid = static_cast<uint32_t>(rank == 0 ? getpid() : rank);
    registration.nranks = kRanks;
    registration.remaining = 20 * kSecond;
    ASSERT_TRUE(clients.back()->Send(MessageKind::kRegister, registration.Encode()).ok());
  }
  for (const auto& client : clients) ASSERT_TRUE(client->Await(MessageKind::kTable).ok());
  clients.front().reset();
  ASSERT_TRUE(clients[1]->Send(MessageKind::kDone, EncodeLinks({})).ok());
  done = true;
  for (size_t i = 1; i < kRanks; ++i) {
    const Status status = clients[i]->Await(MessageKind::kGo).status();
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_CONTAINS(status.message(), "peer 2@:2 closed its connection");
  }
  fault::Disarm();
}

constexpr uid_t kNobody = 65534;

TEST(OtherUserTest, CannotServeARendezvousOfOurs) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string name = "inccl-squatted-" + std::to_string(getpid());
  Processes processes;
  const pid_t squatter = processes.Start([&] {
    if (setgroups(0, nullptr) != 0 || setuid(kNobody) != 0) return 1;
    Result<UniqueFd> listener = Listen(SocketAddress::Unix(name));
    if (!listener.ok()) return 2;
    while (true) pause();
  });
  RootTarget target;
  target.addresses.push_back(SocketAddress::Unix(name));
  target.may_come_later = true;
  const Status status =
      RendezvousClient::Connect(
          target, {.rank = 1, .nranks = 2, .deadline = SystemClock().Now() + 20 * kSecond})
          .status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(status.message(), "process " + std::to_string(squatter) + " of uid 65534");
}

// A process of another user that holds `names` until it is killed; it has them when this returns.
pid_t TakeNames(Processes* processes, const std::vector<std::string>& names, bool listens) {
  int ready[2];
  EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t squatter = processes->Start([&] {
    if (setgroups(0, nullptr) != 0 || setuid(kNobody) != 0) return 1;
    std::vector<UniqueFd> held;
    for (const std::string& name : names) {
      const SocketAddress address = SocketAddress::Unix(name);
      held.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto* where = reinterpret_cast<const sockaddr*>(&address.storage);
      if (bind(held.back().get(), where, address.length) != 0) return 2;
      if (listens && listen(held.back().get(), 64) != 0) return 3;
    }
    if (write(ready[1], "r", 1) != 1) return 4;
    while (true) pause();
  });
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the names could not be taken";
  close(ready[0]);
  return squatter;
}

Launcher JobOf(int rank, const std::string& name) {
  Launcher launcher;
  launcher.kind = "test";
  launcher.rank = rank;
  launcher.nranks = 3;
  launcher.job = name + std::to_string(getpid());
  return launcher;
}

// The name of a job can be guessed, so another user may have it before.
TEST(OtherUserTest, WhoHoldsTheNameIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  Processes processes;
  const pid_t squatter =
      TakeNames(&processes, {*RendezvousName(JobOf(0, "all"))}, /*listens=*/true);
  OnThreads(3, [&](int rank) {
    const Status status = JoinWithLauncher(JobOf(rank, "all"), 0, Options(rank, 3)).status();
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + "/3: init: ");
    EXPECT_CONTAINS(status.message(), "process " + std::to_string(squatter) + " of uid 65534");
    EXPECT_CONTAINS(status.message(), "another INCCL_JOB");
  });
}

// It answers nobody, and the kernel does not say whose it is.
TEST(OtherUserTest, ANameThatIsTakenInSilenceIsWaitedFor) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  constexpr int kLimit = 300 * kSlowness;
  Processes processes;
  TakeNames(&processes, {*RendezvousName(JobOf(0, "silent"))}, /*listens=*/false);
  OnThreads(2, [&](int rank) {
    const Status status =
        JoinWithLauncher(JobOf(rank, "silent"), 0, Options(rank, 3, kLimit)).status();
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_CONTAINS(status.message(), rank == 0 ? "another program has the place" : "has rank 0");
  });
}

TEST(OtherUserTest, CannotJoinALaunchersJob) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const Baseline baseline;
  const std::string name = "inccl-ours-" + std::to_string(getpid());
  Processes processes;
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t intruder = processes.Start([&] {
    char go = 0;
    if (read(ready[0], &go, 1) != 1) return 2;
    if (setgroups(0, nullptr) != 0 || setuid(kNobody) != 0) return 1;
    Stranger stranger(SocketAddress::Unix(name));
    return stranger.Greeting().empty() ? 42 : 3;
  });
  const RootTarget target = OpenMeeting(SocketAddress::Unix(name));
  ASSERT_EQ(write(ready[1], "g", 1), 1);
  const int status = processes.Wait(intruder);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
  close(ready[0]);
  close(ready[1]);
  const auto client = RendezvousClient::Connect(
      target, {.rank = 0, .nranks = 2, .deadline = SystemClock().Now() + 10 * kSecond});
  ASSERT_TRUE(client.ok()) << client.status().message();
  Registration registration;  // of one that never gets company, so that the thread ends
  registration.nranks = 2;
  registration.remaining = kMillisecond;
  ASSERT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
  EXPECT_EQ((*client)->Await(MessageKind::kGo).status().code(), Code::kTimeout);
  Result<std::unique_ptr<RendezvousClient>> second = RendezvousClient::Connect(
      target, {.rank = 1, .nranks = 2, .deadline = SystemClock().Now() + 10 * kSecond});
  ASSERT_TRUE(second.ok()) << second.status().message();
  registration.record.rank = 1;
  ASSERT_TRUE((*second)->Send(MessageKind::kRegister, registration.Encode()).ok());
  EXPECT_EQ((*second)->Await(MessageKind::kGo).status().code(), Code::kTimeout);
}

}  // namespace
}  // namespace inccl::test
