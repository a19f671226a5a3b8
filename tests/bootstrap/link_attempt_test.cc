// SPDX-License-Identifier: Apache-2.0
//
// One connection between two ranks where one of them stops in the middle of the handshake. The test
// is the other end. No test waits for a limit: it tells the attempt that the time is over.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/connector.h"
#include "bootstrap/socket.h"

namespace inccl::test {
namespace {

using namespace bootstrap;  // NOLINT(build/namespaces)

constexpr Time kLong = 3600 * kSecond;  // longer than any limit of an attempt

class LinkAttemptTest : public ::testing::Test {
 protected:
  LinkAttemptTest() {
    address_.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
    listener_ = ListenAt(&address_).value();
    Mac key{};
    key[3] = std::byte{9};
    terms_.handshake = {.key = Key(key),
                        .role = Role::kMesh,
                        .communicator = {},
                        .own = ServerKey::Create().value()};
    terms_.nranks = 2;
  }
  // Of a rank with the other one.
  void Plan(int rank) {
    terms_.rank = rank;
    plan_ = {.peer = 1 - rank,
             .connection = 0,
             .peer_name = "P@host:1",
             .peer_key = terms_.handshake.own->public_key(),
             .addresses = {SocketAddress::Tcp(address_)}};
  }

  static bool Readable(int fd) { return WaitFor(fd, POLLIN, SystemClock().Now() + 20 * kSecond); }
  // Waits for what the attempt waits for.
  static void AwaitEvent(const LinkAttempt& attempt) {
    const pollfd awaited = attempt.Awaited();
    ASSERT_TRUE(WaitFor(awaited.fd, awaited.events, SystemClock().Now() + 20 * kSecond));
  }
  static void Step(LinkAttempt* attempt) {
    AwaitEvent(*attempt);
    const Status status = attempt->Step();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // The attempt's thread goes on, and all limits are over.
  static Status GoOn(LinkAttempt* attempt) { return attempt->Start(attempt->NextTime() + kLong); }

  // Takes the next connection that the listener gets.
  void Take() {
    ASSERT_TRUE(Readable(listener_.get()));
    SocketAddress from;
    int error = 0;
    accepted_ = Accept(listener_.get(), &from, &error);
    ASSERT_TRUE(accepted_.valid());
    server_.Start(&terms_.handshake, 0);
  }
  // Reads the attempt's hello and replies.
  void Reply() {
    std::array<std::byte, kHelloBytes> buffer;
    while (server_.state() == ServerHandshake::State::kReading) {
      ASSERT_TRUE(Readable(accepted_.get()));
      const IoResult got = ReadSome(accepted_.get(), std::span(buffer).first(server_.wanted()));
      ASSERT_GT(got.bytes, 0u);
      server_.Feed(std::span(buffer).first(got.bytes));
    }
    ASSERT_EQ(server_.state(), ServerHandshake::State::kDone) << Describe(server_.fault());
    ASSERT_TRUE(WriteAll(accepted_.get(), server_.reply()));
  }
  bool AnotherConnection() const { return WaitFor(listener_.get(), POLLIN, SystemClock().Now()); }

  UniqueIdAddress address_;
  UniqueFd listener_, accepted_;
  ConnectTerms terms_;
  LinkPlan plan_;
  ServerHandshake server_;
};

TEST_F(LinkAttemptTest, AReplyThatCameWhileThisRankWasStoppedCounts) {
  Plan(1);
  LinkAttempt attempt(&terms_, plan_);
  ASSERT_TRUE(attempt.Start(SystemClock().Now()).ok());
  Step(&attempt);  // connected
  Take();
  Reply();
  AwaitEvent(attempt);
  ASSERT_TRUE(GoOn(&attempt).ok());
  EXPECT_TRUE(attempt.done());
  EXPECT_FALSE(AnotherConnection());
}

// A process without descriptors tries again, and says what it lacks.
TEST_F(LinkAttemptTest, WaitsForADescriptor) {
  Plan(1);
  LinkAttempt attempt(&terms_, plan_);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Status status = attempt.Start(SystemClock().Now());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(attempt.last_failure().find("Too many open files (errno 24); the process has all 3 "),
            std::string::npos)
      << attempt.last_failure();
  ASSERT_TRUE(GoOn(&attempt).ok());
  Step(&attempt);
  Take();
  Reply();
  Step(&attempt);
  EXPECT_TRUE(attempt.done());
}

// An attempt that has been under way for long has as much time to get a descriptor as a new one.
TEST_F(LinkAttemptTest, WaitsForADescriptorAfterOtherFailures) {
  Plan(1);
  UniqueIdAddress nobodys = address_;
  nobodys.port = 0;
  ASSERT_TRUE(ListenAt(&nobodys).ok());  // and closed again
  plan_.addresses.insert(plan_.addresses.begin(), SocketAddress::Tcp(nobodys));
  terms_.patient = true;
  terms_.timeout_ms = 1000 * 1000;
  LinkAttempt attempt(&terms_, plan_);
  ASSERT_TRUE(attempt.Start(SystemClock().Now()).ok());
  while (attempt.last_failure().empty()) Step(&attempt);
  SleepUntil(SystemClock().Now() + kSecond + kSecond / 10);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = attempt.Start(SystemClock().Now());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(attempt.last_failure().find("errno 24"), std::string::npos) << attempt.last_failure();
}

TEST_F(LinkAttemptTest, AConnectionThatWasMadeWhileThisRankWasStoppedCounts) {
  Plan(1);
  LinkAttempt attempt(&terms_, plan_);
  ASSERT_TRUE(attempt.Start(SystemClock().Now()).ok());
  AwaitEvent(attempt);
  ASSERT_TRUE(GoOn(&attempt).ok());
  EXPECT_EQ(attempt.last_failure(), "");
  Take();
  Reply();
  Step(&attempt);
  EXPECT_TRUE(attempt.done());
  EXPECT_FALSE(AnotherConnection());
}

TEST_F(LinkAttemptTest, ConnectsAgainWhereNoReplyCame) {
  Plan(1);
  LinkAttempt attempt(&terms_, plan_);
  ASSERT_TRUE(attempt.Start(SystemClock().Now()).ok());
  Step(&attempt);
  ASSERT_TRUE(GoOn(&attempt).ok());  // gives up
  Take();                            // too late
  ASSERT_TRUE(GoOn(&attempt).ok());
  Step(&attempt);
  Take();
  Reply();
  Step(&attempt);
  EXPECT_TRUE(attempt.done());
}

// A peer's end of a connection, whose handshake is complete but for the reply.
struct PeerEnd {
  UniqueFd fd;
  ServerHandshake server;
  ClientHandshake client;

  explicit PeerEnd(const HandshakeTerms* terms) {
    Nonce nonce;
    EXPECT_TRUE(FillRandom(nonce).ok());
    server.Start(terms, 0);
    client.Start(terms,
                 {.rank = 1,
                  .nranks = 2,
                  .server = 0,
                  .connection = 0,
                  .server_key = terms->own->public_key()},
                 nonce);
    EXPECT_EQ(server.Feed(client.to_send().first(kAskBytes)), ServerHandshake::State::kReading);
    EXPECT_EQ(server.Feed(client.to_send().subspan(kAskBytes)), ServerHandshake::State::kDone);
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    fd.Reset(ends[0]);
    other_.Reset(ends[1]);
  }
  std::string OfferTo(LinkAttempt* attempt) {
    return attempt->Accept(server, /*is_unix=*/false, &other_);
  }
  bool GetsReply() {
    std::array<std::byte, kReplyBytes> reply;
    return ReadSome(fd.get(), reply).bytes == reply.size() &&
           client.Feed(reply) == ClientHandshake::State::kDone;
  }

 private:
  UniqueFd other_;
};

// The reply to its first connection came too late for the peer.
TEST_F(LinkAttemptTest, APeerThatConnectsAgainReplacesItsConnection) {
  Plan(0);
  LinkAttempt attempt(&terms_, plan_);
  PeerEnd first(&terms_.handshake), second(&terms_.handshake);
  for (PeerEnd* const end : {&first, &second}) {
    EXPECT_EQ(end->OfferTo(&attempt), "");
    EXPECT_TRUE(attempt.done());
    EXPECT_TRUE(end->GetsReply());
  }
  std::array<std::byte, 1> one;
  EXPECT_TRUE(ReadSome(first.fd.get(), one).closed);
  const Link link = attempt.TakeLink();
  EXPECT_TRUE(WriteAll(link.fd.get(), std::array{std::byte{7}}));
  EXPECT_EQ(ReadSome(second.fd.get(), one).bytes, 1u);
  EXPECT_TRUE(EqualInConstantTime(link.receive_key.bytes(),
                                  second.client.Keys().value().from_client.bytes()));
}

// This rank was stopped and finds the hello of a connection that the peer has closed since. With
// such a connection it would be done, and would not listen any more when the peer connects again.
TEST_F(LinkAttemptTest, AConnectionThatThePeerHasGivenUpDoesNotCount) {
  Plan(0);
  LinkAttempt attempt(&terms_, plan_);
  PeerEnd first(&terms_.handshake), second(&terms_.handshake);
  first.fd.Reset();
  EXPECT_EQ(first.OfferTo(&attempt), "it closed before it authenticated");
  EXPECT_FALSE(attempt.done());
  EXPECT_EQ(second.OfferTo(&attempt), "");
  EXPECT_TRUE(attempt.done());
  EXPECT_TRUE(second.GetsReply());
}

// 192.0.2.0/24 is for documents: no host has an address of it.
TEST_F(LinkAttemptTest, AnAddressThatCannotBeBoundIsLeftOut) {
  UniqueIdAddress nowhere;
  nowhere.address = {std::byte{192}, std::byte{0}, std::byte{2}, std::byte{1}};
  UniqueIdAddress loopback = address_;
  loopback.port = 0;
  std::vector<UniqueIdAddress> addresses = {nowhere, loopback};
  const Result<std::vector<UniqueFd>> listeners = ListenAtAll(&addresses);
  ASSERT_TRUE(listeners.ok()) << listeners.status().message();
  ASSERT_EQ(listeners->size(), 1u);
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_EQ(addresses[0].address, loopback.address);
  EXPECT_EQ(addresses[0].port, LocalPort((*listeners)[0].get()).value());

  addresses = {nowhere};
  const Status none = ListenAtAll(&addresses).status();
  EXPECT_EQ(none.code(), Code::kSystemError);
  EXPECT_NE(none.message().find("192.0.2.1"), std::string::npos) << none.message();
}

}  // namespace
}  // namespace inccl::test
