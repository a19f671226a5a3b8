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

class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    Mac key{};
    EXPECT_TRUE(FillRandom(key).ok());
    terms_.key = Key(key);
    EXPECT_TRUE(FillRandom(terms_.communicator).ok());
  }

  struct Ends {
    ServerHandshake server;
    ClientHandshake client;
  };
  // Nonces that differ each time.
  Ends Begin(const HandshakeTerms* server, const HandshakeTerms* client, uint32_t rank = 2,
             uint32_t nranks = 5) {
    Ends ends;
    Nonce a, b;
    EXPECT_TRUE(FillRandom(a).ok() && FillRandom(b).ok());
    ends.server.Start(server, a);
    ends.client.Start(client, rank, nranks, b);
    return ends;
  }
  // The server's verdict on what this client says.
  HandshakeFault ServerSays(const HandshakeTerms& client, uint32_t rank = 2, uint32_t nranks = 5) {
    Ends ends = Begin(&terms_, &client, rank, nranks);
    ends.client.Feed(ends.server.greeting());
    ends.server.Feed(ends.client.hello());
    EXPECT_EQ(ends.server.state() == ServerHandshake::State::kDone,
              ends.server.fault() == HandshakeFault::kNone);
    return ends.server.fault();
  }

  HandshakeTerms terms_;
};

TEST_F(HandshakeTest, BothSidesAreConvincedInAnyPortions) {
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
    ASSERT_EQ(ends.client.wanted(), kGreetingBytes);
    feed(ends.server.greeting(), &ends.client);
    ASSERT_EQ(ends.client.state(), ClientHandshake::State::kReadingReply);
    ASSERT_EQ(ends.server.wanted(), kHelloBytes);
    feed(ends.client.hello(), &ends.server);
    ASSERT_EQ(ends.server.state(), ServerHandshake::State::kDone);
    EXPECT_EQ(ends.server.rank(), 3u);
    EXPECT_EQ(ends.server.nranks(), 7u);
    feed(ends.server.reply(), &ends.client);
    ASSERT_EQ(ends.client.state(), ClientHandshake::State::kDone);
    EXPECT_EQ(ends.client.wanted(), 0u);
  }
}

// The documented bytes, put together here from the header's text.
TEST_F(HandshakeTest, TheDocumentedBytes) {
  Nonce server_nonce, client_nonce;
  server_nonce.fill(std::byte{0xAA});
  client_nonce.fill(std::byte{0xBB});
  ServerHandshake server;
  server.Start(&terms_, server_nonce);
  std::vector<std::byte> greeting = Copy(AsBytes(std::string_view("icl1\1\0\0\0", 8)));
  greeting.insert(greeting.end(), server_nonce.begin(), server_nonce.end());
  EXPECT_EQ(Copy(server.greeting()), greeting);
  ClientHandshake client;
  client.Start(&terms_, 0x0102, 0x0304, client_nonce);
  client.Feed(greeting);
  std::vector<std::byte> hello = Copy(AsBytes(std::string_view("icl1\1\1\0\0", 8)));
  hello.insert(hello.end(), terms_.communicator.begin(), terms_.communicator.end());
  const std::vector<std::byte> ranks = FromHex("0201000004030000");
  hello.insert(hello.end(), ranks.begin(), ranks.end());
  hello.insert(hello.end(), client_nonce.begin(), client_nonce.end());
  const Result<Mac> mac = HmacSha256(terms_.key.bytes(), {AsBytes("inccl-c1"), greeting, hello});
  ASSERT_TRUE(mac.ok());
  hello.insert(hello.end(), mac->begin(), mac->end());
  EXPECT_EQ(Copy(client.hello()), hello);
  server.Feed(hello);
  const Result<Mac> reply = HmacSha256(terms_.key.bytes(), {AsBytes("inccl-s1"), greeting, hello});
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(Copy(server.reply()), Copy(*reply));
}

TEST_F(HandshakeTest, WhatTheServerRefuses) {
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
  EXPECT_EQ(ServerSays(terms_, 0, kMaxRanks + 1), HandshakeFault::kRank);
  EXPECT_EQ(ServerSays(terms_, kMaxRanks - 1, kMaxRanks), HandshakeFault::kNone);
}

TEST_F(HandshakeTest, EveryBitOfTheHelloAndTheReplyMatters) {
  for (size_t bit = 0; bit < kHelloBytes * 8; ++bit) {
    Ends ends = Begin(&terms_, &terms_);
    ends.client.Feed(ends.server.greeting());
    std::vector<std::byte> hello = Copy(ends.client.hello());
    hello[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(ends.server.Feed(hello), ServerHandshake::State::kFailed) << "bit " << bit;
  }
  for (size_t bit = 0; bit < kReplyBytes * 8; ++bit) {
    Ends ends = Begin(&terms_, &terms_);
    ends.client.Feed(ends.server.greeting());
    ends.server.Feed(ends.client.hello());
    std::vector<std::byte> reply = Copy(ends.server.reply());
    reply[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(ends.client.Feed(reply), ClientHandshake::State::kFailed) << "bit " << bit;
  }
  for (size_t bit = 0; bit < kGreetingBytes * 8; ++bit) {  // a client led astray convinces nobody
    Ends ends = Begin(&terms_, &terms_);
    std::vector<std::byte> greeting = Copy(ends.server.greeting());
    greeting[bit / 8] ^= std::byte{1} << (bit % 8);
    if (ends.client.Feed(greeting) == ClientHandshake::State::kFailed) continue;
    EXPECT_EQ(ends.server.Feed(ends.client.hello()), ServerHandshake::State::kFailed);
  }
}

TEST_F(HandshakeTest, ARecordingIsWorthless) {
  Ends ends = Begin(&terms_, &terms_);
  ends.client.Feed(ends.server.greeting());
  const std::vector<std::byte> recorded = Copy(ends.client.hello());
  ASSERT_EQ(ends.server.Feed(recorded), ServerHandshake::State::kDone);
  const std::vector<std::byte> recorded_reply = Copy(ends.server.reply());
  Ends again = Begin(&terms_, &terms_);
  EXPECT_EQ(again.server.Feed(recorded), ServerHandshake::State::kFailed);
  EXPECT_EQ(again.server.fault(), HandshakeFault::kMac);
  again.client.Feed(again.server.greeting());
  EXPECT_EQ(again.client.Feed(recorded_reply), ClientHandshake::State::kFailed);
  // Nor can a client's own words be reflected to it.
  Ends mirror = Begin(&terms_, &terms_);
  mirror.client.Feed(mirror.server.greeting());
  EXPECT_EQ(mirror.client.Feed(mirror.client.hello().last(kMacBytes)),
            ClientHandshake::State::kFailed);
}

TEST_F(HandshakeTest, VersionsThatDiffer) {
  Ends ends = Begin(&terms_, &terms_);
  std::vector<std::byte> greeting = Copy(ends.server.greeting());
  greeting[4] = std::byte{2};
  EXPECT_EQ(ends.client.Feed(greeting), ClientHandshake::State::kFailed);
  EXPECT_EQ(ends.client.fault(), HandshakeFault::kVersion);
  EXPECT_EQ(ends.client.server_version(), 2);
}

TEST_F(HandshakeTest, MoreThanWantedAndAfterTheEnd) {
  Ends ends = Begin(&terms_, &terms_);
  EXPECT_EQ(ends.server.Feed(std::vector<std::byte>(kHelloBytes + 1)),
            ServerHandshake::State::kFailed);
  EXPECT_EQ(ends.client.Feed(std::vector<std::byte>(kGreetingBytes + 1)),
            ClientHandshake::State::kFailed);
  EXPECT_EQ(ends.client.wanted(), 0u);
  EXPECT_EQ(ends.server.Feed(std::vector<std::byte>(1)), ServerHandshake::State::kFailed);
}

TEST_F(HandshakeTest, GarbageInAnyPortions) {
  Rng rng(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    Ends ends = Begin(&terms_, &terms_);
    std::vector<std::byte> bytes(kHelloBytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
    if (round % 2 == 0) std::copy_n(AsBytes("icl1").begin(), 4, bytes.begin());
    Bytes rest = bytes;
    while (!rest.empty() && ends.server.state() == ServerHandshake::State::kReading) {
      const size_t n = 1 + rng.Below(rest.size());
      ends.server.Feed(rest.first(n));
      rest = rest.subspan(n);
    }
    ASSERT_EQ(ends.server.state(), ServerHandshake::State::kFailed);
  }
}

}  // namespace
}  // namespace inccl::test
