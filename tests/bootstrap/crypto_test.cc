// SPDX-License-Identifier: Apache-2.0
//
// The primitives against the vectors of their RFCs, and the handshake built on them.
#include "bootstrap/crypto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bootstrap/handshake.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using namespace bootstrap;  // NOLINT(build/namespaces)

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::byte> Copy(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

TEST(CryptoTest, HmacOfRfc4231) {
  const std::vector<std::byte> key1(20, std::byte{0x0b});
  const Result<Mac> first = HmacSha256(key1, {AsBytes("Hi "), AsBytes("There")});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Copy(*first),
            FromHex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
  const Result<Mac> second =
      HmacSha256(AsBytes("Jefe"), {AsBytes("what do ya want "), AsBytes("for nothing?")});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(Copy(*second),
            FromHex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  EXPECT_FALSE(HmacSha256(key1, {std::vector<std::byte>(kMaxMacInput + 1)}).ok());
}

TEST(CryptoTest, HkdfOfRfc5869) {
  const std::vector<std::byte> secret(22, std::byte{0x0b});
  const std::string info = "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9";
  const Result<Key> key = Hkdf(secret, FromHex("000102030405060708090a0b0c"), info);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(Copy(key->bytes()),
            FromHex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"));
}

TEST(CryptoTest, Sha256OfFips180) {
  const Result<Mac> hash = Sha256(AsBytes("abc"));
  ASSERT_TRUE(hash.ok());
  EXPECT_EQ(Copy(*hash),
            FromHex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

TEST(CryptoTest, EqualityAndRandomness) {
  EXPECT_TRUE(EqualInConstantTime(AsBytes("same"), AsBytes("same")));
  EXPECT_FALSE(EqualInConstantTime(AsBytes("same"), AsBytes("sane")));
  EXPECT_FALSE(EqualInConstantTime(AsBytes("same"), AsBytes("sam")));
  std::set<Nonce> seen;
  for (int i = 0; i < 100; ++i) {
    Nonce nonce{};
    ASSERT_TRUE(FillRandom(nonce).ok());
    EXPECT_TRUE(seen.insert(nonce).second);
  }
}

// Of clients that ask for a greeting, and of those that know it.
class HandshakeTest : public ::testing::TestWithParam<bool> {
 protected:
  HandshakeTest() {
    Mac key{};
    EXPECT_TRUE(FillRandom(key).ok());
    terms_.key = Key(key);
    EXPECT_TRUE(FillRandom(terms_.communicator).ok());
    terms_.own = ServerKey::Create().value();
  }
  static bool Asks() { return GetParam(); }
  std::optional<PublicKey> ServersKey() const {
    if (Asks()) return std::nullopt;
    return terms_.own->public_key();
  }

  struct Ends {
    ServerHandshake server;
    ClientHandshake client;
  };
  // Nonces that differ each time.
  Ends Begin(const HandshakeTerms* server, const HandshakeTerms* client, uint32_t rank = 2,
             uint32_t nranks = 5) {
    Ends ends;
    Nonce nonce;
    EXPECT_TRUE(FillRandom(nonce).ok());
    ends.server.Start(server);
    ends.client.Start(client, {.rank = rank, .nranks = nranks, .server_key = ServersKey()}, nonce);
    return ends;
  }
  // Up to the hello.
  static void Greet(Ends* ends) {
    if (!Asks()) return;
    EXPECT_EQ(ends->server.Feed(ends->client.to_send()), ServerHandshake::State::kAsked);
    EXPECT_EQ(ends->client.Feed(ends->server.greeting()), ClientHandshake::State::kReadingReply);
  }
  static ServerHandshake::State Hear(ServerHandshake* server, Bytes hello) {
    (void)server->Feed(hello.first(kAskBytes));
    return server->Feed(hello.subspan(kAskBytes));
  }
  // From the hello on: both ends have the same keys, which are not in `seen`.
  static void ExpectNewKeys(Ends* ends, std::set<std::vector<std::byte>>* seen) {
    Hear(&ends->server, ends->client.to_send());
    ASSERT_EQ(ends->client.Feed(ends->server.reply()), ClientHandshake::State::kDone);
    const ConnectionKeys a = ends->client.Keys().value(), b = ends->server.Keys().value();
    EXPECT_EQ(Copy(a.from_client.bytes()), Copy(b.from_client.bytes()));
    EXPECT_EQ(Copy(a.from_server.bytes()), Copy(b.from_server.bytes()));
    EXPECT_TRUE(seen->insert(Copy(a.from_client.bytes())).second);
    EXPECT_TRUE(seen->insert(Copy(a.from_server.bytes())).second);
  }
  // The server's verdict on what this client says.
  HandshakeFault ServerSays(const HandshakeTerms& client, uint32_t rank = 2, uint32_t nranks = 5) {
    Ends ends = Begin(&terms_, &client, rank, nranks);
    Greet(&ends);
    Hear(&ends.server, ends.client.to_send());
    EXPECT_EQ(ends.server.state() == ServerHandshake::State::kDone,
              ends.server.fault() == HandshakeFault::kNone);
    return ends.server.fault();
  }

  HandshakeTerms terms_;
};

TEST_P(HandshakeTest, BothSidesAreConvincedInAnyPortions) {
  Rng rng(TestSeed());
  for (int round = 0; round < 200; ++round) {
    Ends ends = Begin(&terms_, &terms_, 3, 7);
    const auto feed = [&](Bytes bytes, auto* machine) {
      while (!bytes.empty()) {
        const size_t n = 1 + rng.Below(std::min(bytes.size(), machine->wanted()));
        machine->Feed(bytes.first(n));
        bytes = bytes.subspan(n);
      }
    };
    if (Asks()) {
      ASSERT_EQ(ends.client.wanted(), kGreetingBytes);
      feed(ends.client.to_send(), &ends.server);
      ASSERT_EQ(ends.server.state(), ServerHandshake::State::kAsked);
      feed(ends.server.greeting(), &ends.client);
    }
    ASSERT_EQ(ends.client.state(), ClientHandshake::State::kReadingReply);
    feed(ends.client.to_send(), &ends.server);
    ASSERT_EQ(ends.server.state(), ServerHandshake::State::kDone);
    EXPECT_EQ(ends.server.rank(), 3u);
    EXPECT_EQ(ends.server.nranks(), 7u);
    feed(ends.server.reply(), &ends.client);
    ASSERT_EQ(ends.client.state(), ClientHandshake::State::kDone);
    EXPECT_EQ(ends.client.wanted(), 0u);
  }
}

// The documented bytes, put together here from the header's text. Public keys are new each time.
TEST_P(HandshakeTest, TheDocumentedBytes) {
  Nonce client_nonce;
  client_nonce.fill(std::byte{0xBB});
  ServerHandshake server;
  server.Start(&terms_, 0x0506);
  const std::vector<std::byte> head = Copy(AsBytes(std::string_view("icl2\5\0\0\0", 8)));
  if (Asks()) {
    ASSERT_EQ(server.Feed(head), ServerHandshake::State::kAsked);
  }
  std::vector<std::byte> greeting = head;
  const std::vector<std::byte> listener = FromHex("0605000000000000");
  greeting.insert(greeting.end(), listener.begin(), listener.end());
  std::vector<std::byte> server_key = Copy(terms_.own->public_key());
  std::vector<std::byte> server_nonce = Copy(terms_.communicator);
  if (Asks()) {  // both are new
    ASSERT_EQ(server.greeting().size(), kGreetingBytes);
    server_key = Copy(server.greeting().last(kPublicKeyBytes));
    server_nonce = Copy(server.greeting().subspan(greeting.size(), kNonceBytes));
    EXPECT_NE(server_nonce, Copy(Nonce{}));
  }
  greeting.insert(greeting.end(), server_nonce.begin(), server_nonce.end());
  greeting.insert(greeting.end(), server_key.begin(), server_key.end());
  if (Asks()) {
    EXPECT_EQ(Copy(server.greeting()), greeting);
  }
  // The client is this test, with a key pair of its own.
  const KeyExchange exchange = KeyExchange::Create().value();
  std::vector<std::byte> hello = Copy(AsBytes(std::string_view("icl2\5\1\7\0", 8)));
  hello.insert(hello.end(), terms_.communicator.begin(), terms_.communicator.end());
  const std::vector<std::byte> ranks = FromHex("02010000040300000605000000000000");
  hello.insert(hello.end(), ranks.begin(), ranks.end());
  hello.insert(hello.end(), client_nonce.begin(), client_nonce.end());
  hello.insert(hello.end(), exchange.public_key().begin(), exchange.public_key().end());
  PublicKey peer;
  std::copy(server_key.begin(), server_key.end(), peer.begin());
  const Key agreed = exchange.Agree(peer).value();
  const Key secret = Hkdf(agreed.bytes(), terms_.key.bytes(), "inccl handshake").value();
  const Result<Mac> mac = HmacSha256(secret.bytes(), {AsBytes("inccl-c2"), greeting, hello});
  ASSERT_TRUE(mac.ok());
  hello.insert(hello.end(), mac->begin(), mac->end());
  ASSERT_EQ(Hear(&server, hello), ServerHandshake::State::kDone);
  EXPECT_EQ(server.connection(), 7);
  const Result<Mac> reply = HmacSha256(secret.bytes(), {AsBytes("inccl-s2"), greeting, hello});
  ASSERT_TRUE(reply.ok());
  std::vector<std::byte> whole_reply = head;
  whole_reply.insert(whole_reply.end(), reply->begin(), reply->end());
  EXPECT_EQ(Copy(server.reply()), whole_reply);
  std::vector<std::byte> transcript = greeting;
  transcript.insert(transcript.end(), hello.begin(), hello.end());
  const Mac salt = Sha256(transcript).value();
  const ConnectionKeys keys = server.Keys().value();
  EXPECT_EQ(Copy(keys.from_client.bytes()),
            Copy(Hkdf(secret.bytes(), salt, "inccl client").value().bytes()));
  EXPECT_EQ(Copy(keys.from_server.bytes()),
            Copy(Hkdf(secret.bytes(), salt, "inccl server").value().bytes()));
}

TEST_P(HandshakeTest, BothSidesGetTheSameNewKeys) {
  std::set<std::vector<std::byte>> seen;
  for (int round = 0; round < 20; ++round) {
    Ends ends = Begin(&terms_, &terms_);
    Greet(&ends);
    ExpectNewKeys(&ends, &seen);
  }
}

// A pair of ranks agrees once; that alone admits nobody.
TEST_P(HandshakeTest, ARankConnectsWithItsOwnKeyPair) {
  HandshakeTerms rank = terms_;
  rank.own = ServerKey::Create().value();
  const std::vector<std::byte> public_key = Copy(rank.own->public_key());
  std::set<std::vector<std::byte>> seen;
  for (int round = 0; round < 5; ++round) {
    Ends ends = Begin(&terms_, &rank);
    Greet(&ends);
    const Bytes said = ends.client.to_send().last(kPublicKeyBytes + kMacBytes);
    EXPECT_EQ(Copy(said.first(kPublicKeyBytes)) == public_key, !Asks());
    ExpectNewKeys(&ends, &seen);
  }
  HandshakeTerms wrong = rank;
  wrong.key = Key(Mac{});
  EXPECT_EQ(ServerSays(wrong), HandshakeFault::kMac);
  // Another pair that claims the same public key does not have the private one.
  rank.own = ServerKey::Create().value();
  Ends ends = Begin(&terms_, &rank);
  Greet(&ends);
  std::vector<std::byte> claimed = Copy(ends.client.to_send());
  std::copy(public_key.begin(), public_key.end(), claimed.end() - kMacBytes - kPublicKeyBytes);
  EXPECT_EQ(Hear(&ends.server, claimed), ServerHandshake::State::kFailed);
  EXPECT_EQ(ends.server.fault(), HandshakeFault::kMac);
}

// A man in the middle connects a client that wants one rank to another rank of the communicator.
TEST_P(HandshakeTest, AConnectionReachesTheRankThatItIsMeantFor) {
  ServerHandshake server;
  ClientHandshake client;
  const ClientIdentity to_3 = {.rank = 1, .nranks = 5, .server = 3, .server_key = ServersKey()};
  server.Start(&terms_, 4);
  client.Start(&terms_, to_3, Nonce{});
  if (Asks()) {
    ASSERT_EQ(server.Feed(client.to_send()), ServerHandshake::State::kAsked);
    EXPECT_EQ(client.Feed(server.greeting()), ClientHandshake::State::kFailed);
    EXPECT_EQ(client.fault(), HandshakeFault::kServer);
    // Nor does it help to change the name in the greeting.
    std::vector<std::byte> greeting = Copy(server.greeting());
    greeting[8] = std::byte{3};
    client.Start(&terms_, to_3, Nonce{});
    ASSERT_EQ(client.Feed(greeting), ClientHandshake::State::kReadingReply);
  }
  EXPECT_EQ(Hear(&server, client.to_send()), ServerHandshake::State::kFailed);
  EXPECT_EQ(server.fault(), HandshakeFault::kMac);
  Ends ends;
  ends.server.Start(&terms_, 4);
  ends.client.Start(&terms_, {.rank = 1, .nranks = 5, .server = 4, .server_key = ServersKey()},
                    Nonce{});
  Greet(&ends);
  EXPECT_EQ(Hear(&ends.server, ends.client.to_send()), ServerHandshake::State::kDone);
}

// A public key of small order gives everybody the same secret.
TEST_P(HandshakeTest, PublicKeysOfSmallOrderAreRefused) {
  Ends ends = Begin(&terms_, &terms_);
  if (Asks()) {
    ends.server.Feed(ends.client.to_send());
    std::vector<std::byte> greeting = Copy(ends.server.greeting());
    std::fill(greeting.end() - kPublicKeyBytes, greeting.end(), std::byte{0});
    EXPECT_EQ(ends.client.Feed(greeting), ClientHandshake::State::kFailed);
  } else {
    ends.client.Start(&terms_, {.rank = 2, .nranks = 5, .server_key = PublicKey{}}, Nonce{});
    EXPECT_EQ(ends.client.state(), ClientHandshake::State::kFailed);
  }
  EXPECT_EQ(ends.client.fault(), HandshakeFault::kMac);
}

TEST(CryptoTest, BothEndsOfAnExchangeAgree) {
  const KeyExchange a = KeyExchange::Create().value(), b = KeyExchange::Create().value();
  EXPECT_NE(a.public_key(), b.public_key());
  EXPECT_EQ(Copy(a.Agree(b.public_key()).value().bytes()),
            Copy(b.Agree(a.public_key()).value().bytes()));
  EXPECT_FALSE(a.Agree(PublicKey{}).ok());
}

TEST_P(HandshakeTest, WhatTheServerRefuses) {
  EXPECT_EQ(ServerSays(terms_), HandshakeFault::kNone);
  HandshakeTerms other = terms_;
  Mac key{};
  ASSERT_TRUE(FillRandom(key).ok());
  other.key = Key(key);
  EXPECT_EQ(ServerSays(other), HandshakeFault::kMac);
  other = terms_;
  other.communicator[15] ^= std::byte{1};
  EXPECT_EQ(ServerSays(other), HandshakeFault::kCommunicator);
  other = terms_;
  other.role = Role::kMesh;
  EXPECT_EQ(ServerSays(other), HandshakeFault::kRole);
  EXPECT_EQ(ServerSays(terms_, 5, 5), HandshakeFault::kRank);
  EXPECT_EQ(ServerSays(terms_, 0, 0), HandshakeFault::kRank);
  EXPECT_EQ(ServerSays(terms_, 0xFFFFFFFF, 5), HandshakeFault::kRank);
  EXPECT_EQ(ServerSays(terms_, 0, kMostWireRanks + 1), HandshakeFault::kRank);
  EXPECT_EQ(ServerSays(terms_, kMostWireRanks - 1, kMostWireRanks), HandshakeFault::kNone);
}

TEST_P(HandshakeTest, EveryBitOfTheHelloAndTheReplyMatters) {
  for (size_t bit = 0; bit < kHelloBytes * 8; ++bit) {
    Ends ends = Begin(&terms_, &terms_);
    Greet(&ends);
    std::vector<std::byte> hello = Copy(ends.client.to_send());
    hello[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(Hear(&ends.server, hello), ServerHandshake::State::kFailed) << "bit " << bit;
  }
  for (size_t bit = 0; bit < kReplyBytes * 8; ++bit) {
    Ends ends = Begin(&terms_, &terms_);
    Greet(&ends);
    Hear(&ends.server, ends.client.to_send());
    std::vector<std::byte> reply = Copy(ends.server.reply());
    reply[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(ends.client.Feed(reply), ClientHandshake::State::kFailed) << "bit " << bit;
  }
  if (!Asks()) return;
  for (size_t bit = 0; bit < kAskBytes * 8; ++bit) {
    Ends ends = Begin(&terms_, &terms_);
    std::vector<std::byte> ask = Copy(ends.client.to_send());
    ask[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(ends.server.Feed(ask), ServerHandshake::State::kAsked) << "bit " << bit;
  }
  for (size_t bit = 0; bit < kGreetingBytes * 8; ++bit) {  // a wrong greeting convinces no server
    Ends ends = Begin(&terms_, &terms_);
    ends.server.Feed(ends.client.to_send());
    std::vector<std::byte> greeting = Copy(ends.server.greeting());
    greeting[bit / 8] ^= std::byte{1} << (bit % 8);
    if (ends.client.Feed(greeting) == ClientHandshake::State::kFailed) continue;
    EXPECT_EQ(Hear(&ends.server, ends.client.to_send()), ServerHandshake::State::kFailed);
  }
}

TEST_P(HandshakeTest, ARecordingIsWorthless) {
  Ends ends = Begin(&terms_, &terms_);
  Greet(&ends);
  const std::vector<std::byte> recorded = Copy(ends.client.to_send());
  ASSERT_EQ(Hear(&ends.server, recorded), ServerHandshake::State::kDone);
  const std::vector<std::byte> recorded_reply = Copy(ends.server.reply());
  Ends again = Begin(&terms_, &terms_);
  EXPECT_EQ(Hear(&again.server, recorded), ServerHandshake::State::kFailed);
  EXPECT_EQ(again.server.fault(), Asks() ? HandshakeFault::kMac : HandshakeFault::kReplay);
  again = Begin(&terms_, &terms_);
  Greet(&again);
  EXPECT_EQ(again.client.Feed(recorded_reply), ClientHandshake::State::kFailed);
  // Nor can a client's own words be reflected to it.
  Ends mirror = Begin(&terms_, &terms_);
  Greet(&mirror);
  std::vector<std::byte> own = Copy(recorded_reply);
  std::copy_n(mirror.client.to_send().end() - kMacBytes, kMacBytes, own.end() - kMacBytes);
  EXPECT_EQ(mirror.client.Feed(own), ClientHandshake::State::kFailed);
  // A rank of the communicator with a key of its own does not take what another one was sent.
  HandshakeTerms others = terms_;
  others.own = ServerKey::Create().value();
  ServerHandshake other;
  other.Start(&others);
  EXPECT_EQ(Hear(&other, recorded), ServerHandshake::State::kFailed);
  EXPECT_EQ(other.fault(), HandshakeFault::kMac);
  // Nor one whose clients ask.
  others.own = nullptr;
  other.Start(&others);
  EXPECT_EQ(Hear(&other, recorded), ServerHandshake::State::kFailed);
  EXPECT_EQ(other.fault(), HandshakeFault::kMac);
}

// Both ends tell each other, whoever is older.
TEST_P(HandshakeTest, VersionsThatDiffer) {
  Ends ends = Begin(&terms_, &terms_);
  if (Asks()) {
    ends.server.Feed(ends.client.to_send());
    std::vector<std::byte> greeting = Copy(ends.server.greeting());
    greeting[4] = std::byte{9};
    EXPECT_EQ(ends.client.Feed(greeting), ClientHandshake::State::kFailed);
  } else {
    std::vector<std::byte> hello = Copy(ends.client.to_send());
    hello[4] = std::byte{9};
    EXPECT_EQ(Hear(&ends.server, hello), ServerHandshake::State::kFailed);
    EXPECT_EQ(ends.server.fault(), HandshakeFault::kVersion);
    std::vector<std::byte> reply = Copy(ends.server.reply());
    EXPECT_EQ(reply[4], std::byte{kProtocolVersion});
    EXPECT_EQ(Copy(Bytes(reply).last(kMacBytes)), Copy(Mac{}));
    reply[4] = std::byte{9};
    EXPECT_EQ(ends.client.Feed(reply), ClientHandshake::State::kFailed);
  }
  EXPECT_EQ(ends.client.fault(), HandshakeFault::kVersion);
}

// A client asks once.
TEST_P(HandshakeTest, MoreThanWantedAndAfterTheEnd) {
  Ends ends = Begin(&terms_, &terms_);
  EXPECT_EQ(ends.server.Feed(std::vector<std::byte>(kAskBytes + 1)),
            ServerHandshake::State::kFailed);
  EXPECT_EQ(ends.client.Feed(std::vector<std::byte>(kGreetingBytes + 1)),
            ClientHandshake::State::kFailed);
  EXPECT_EQ(ends.client.wanted(), 0u);
  EXPECT_EQ(ends.server.Feed(std::vector<std::byte>(1)), ServerHandshake::State::kFailed);
  if (!Asks()) return;
  ends = Begin(&terms_, &terms_);
  const std::vector<std::byte> ask = Copy(ends.client.to_send());
  Greet(&ends);
  EXPECT_EQ(ends.server.Feed(ask), ServerHandshake::State::kFailed);
}

TEST_P(HandshakeTest, GarbageInAnyPortions) {
  Rng rng(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    Ends ends = Begin(&terms_, &terms_);
    std::vector<std::byte> bytes(kHelloBytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
    if (round % 2 == 0) std::copy_n(AsBytes("icl2").begin(), 4, bytes.begin());
    Bytes rest = bytes;
    while (!rest.empty() && ends.server.state() == ServerHandshake::State::kReading) {
      const size_t n = 1 + rng.Below(std::min(rest.size(), ends.server.wanted()));
      ends.server.Feed(rest.first(n));
      rest = rest.subspan(n);
    }
    ASSERT_EQ(ends.server.state(), ServerHandshake::State::kFailed);
  }
}

INSTANTIATE_TEST_SUITE_P(Greetings, HandshakeTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Asked" : "Known"; });

}  // namespace
}  // namespace inccl::test
