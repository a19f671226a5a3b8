// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/handshake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace inccl::bootstrap {
namespace {

constexpr std::array<std::byte, 4> kHelloMagic = {std::byte{'i'}, std::byte{'c'}, std::byte{'l'},
                                                  std::byte{'2'}};
constexpr size_t kHelloSignedBytes = kHelloBytes - kMacBytes;
constexpr std::string_view kClientLabel = "inccl-c2";
constexpr std::string_view kServerLabel = "inccl-s2";

// Writes little-endian fields into a fixed buffer; does not allocate.
class FixedWriter {
 public:
  explicit FixedWriter(std::span<std::byte> out) : out_(out) {}
  void Raw(Bytes bytes) {
    std::memcpy(out_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  void Integer(uint32_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) out_[at_++] = static_cast<std::byte>(value >> (8 * i));
  }

 private:
  std::span<std::byte> out_;
  size_t at_ = 0;
};

Result<Key> SecretOf(const KeyExchange& own, const PublicKey& peer, const Key& key) {
  Result<Key> agreed = own.Agree(peer);
  if (!agreed.ok()) return agreed;
  return Hkdf(agreed->bytes(), key.bytes(), "inccl handshake");
}

Result<ConnectionKeys> KeysOf(const Key& secret, Bytes greeting, Bytes hello) {
  std::array<std::byte, kGreetingBytes + kHelloBytes> transcript;
  std::copy(hello.begin(), hello.end(),
            std::copy(greeting.begin(), greeting.end(), transcript.begin()));
  const Result<Mac> salt = Sha256(transcript);
  if (!salt.ok()) return salt.status();
  Result<Key> from_client = Hkdf(secret.bytes(), *salt, "inccl client");
  if (!from_client.ok()) return from_client.status();
  Result<Key> from_server = Hkdf(secret.bytes(), *salt, "inccl server");
  if (!from_server.ok()) return from_server.status();
  return ConnectionKeys{*from_client, *from_server};
}

bool HasMagic(Bytes bytes) {
  return std::equal(kHelloMagic.begin(), kHelloMagic.end(), bytes.begin());
}

}  // namespace

const char* Describe(HandshakeFault fault) {
  switch (fault) {
    case HandshakeFault::kNone: return "no fault";
    case HandshakeFault::kMagic: return "the other side does not speak this protocol";
    case HandshakeFault::kVersion: return "the other side speaks another version of the protocol";
    case HandshakeFault::kRole: return "the connection is meant for another purpose";
    case HandshakeFault::kCommunicator: return "the connection is meant for another communicator";
    case HandshakeFault::kRank: return "rank and number of ranks make no sense";
    case HandshakeFault::kServer: return "the connection is meant for another rank";
    case HandshakeFault::kMac: return "the other side does not know the secret";
    case HandshakeFault::kCrypto: return "libcrypto failed";
  }
  return "unknown fault";
}

void ServerHandshake::Start(TermsOf terms_of, const Nonce& server_nonce, uint32_t server) {
  terms_of_ = std::move(terms_of);
  server_ = server;
  have_ = 0;
  Result<KeyExchange> exchange = KeyExchange::Create();
  if (!exchange.ok()) {
    fault_ = HandshakeFault::kCrypto;
    state_ = State::kFailed;
    return;
  }
  exchange_ = *std::move(exchange);
  state_ = State::kReading;
  fault_ = HandshakeFault::kNone;
  FixedWriter writer(greeting_);
  writer.Raw(kHelloMagic);
  writer.Integer(kProtocolVersion, 1);
  writer.Integer(0, 3);
  writer.Integer(server, 4);
  writer.Integer(0, 4);
  writer.Raw(server_nonce);
  writer.Raw(exchange_->public_key());
}

ServerHandshake::State ServerHandshake::Feed(Bytes bytes) {
  if (state_ != State::kReading || bytes.size() > wanted()) {
    state_ = State::kFailed;
    return state_;
  }
  std::memcpy(hello_.data() + have_, bytes.data(), bytes.size());
  have_ += bytes.size();
  // Refuse another protocol before the whole hello has arrived.
  if (have_ >= kHelloMagic.size() && !HasMagic(hello_)) {
    fault_ = HandshakeFault::kMagic;
    state_ = State::kFailed;
  } else if (have_ == kHelloBytes) {
    fault_ = Check();
    state_ = fault_ == HandshakeFault::kNone ? State::kDone : State::kFailed;
  }
  return state_;
}

HandshakeFault ServerHandshake::Check() {
  ByteReader reader(hello_);
  uint8_t version = 0, role = 0;
  uint32_t server = 0, zero = 0;
  Nonce client_nonce;
  PublicKey client_key;
  Mac mac;
  const bool complete = reader.Skip(kHelloMagic.size()) && reader.U8(&version) &&
                        reader.U8(&role) && reader.U16(&connection_) && reader.Raw(communicator_) &&
                        reader.U32(&rank_) && reader.U32(&nranks_) && reader.U32(&server) &&
                        reader.U32(&zero) && reader.Raw(client_nonce) && reader.Raw(client_key) &&
                        reader.Raw(mac);
  if (!complete) return HandshakeFault::kMagic;
  if (version != kProtocolVersion) return HandshakeFault::kVersion;
  if (zero != 0) return HandshakeFault::kMagic;
  const HandshakeTerms* const terms = terms_of_(communicator_);
  if (terms == nullptr || communicator_ != terms->communicator) {
    return HandshakeFault::kCommunicator;
  }
  const Result<Key> secret = SecretOf(*exchange_, client_key, terms->key);
  if (!secret.ok()) {
    return secret.status().code() == Code::kInvalidUsage ? HandshakeFault::kMac
                                                         : HandshakeFault::kCrypto;
  }
  secret_ = *secret;
  const Bytes hello = hello_;
  const Result<Mac> expected = HmacSha256(
      secret_.bytes(), {AsBytes(kClientLabel), greeting_, hello.first(kHelloSignedBytes)});
  if (!expected.ok()) return HandshakeFault::kCrypto;
  if (!EqualInConstantTime(*expected, mac)) return HandshakeFault::kMac;
  // From here on the client has proven that it knows the key.
  if (role != static_cast<uint8_t>(terms->role)) return HandshakeFault::kRole;
  if (nranks_ == 0 || nranks_ > kMostWireRanks || rank_ >= nranks_) return HandshakeFault::kRank;
  if (server != server_) return HandshakeFault::kServer;
  const Result<Mac> reply = HmacSha256(secret_.bytes(), {AsBytes(kServerLabel), greeting_, hello});
  if (!reply.ok()) return HandshakeFault::kCrypto;
  reply_ = *reply;
  return HandshakeFault::kNone;
}

Result<ConnectionKeys> ServerHandshake::Keys() const { return KeysOf(secret_, greeting_, hello_); }

void ClientHandshake::Start(const HandshakeTerms* terms, const ClientIdentity& identity,
                            const Nonce& client_nonce) {
  terms_ = terms;
  state_ = State::kReadingGreeting;
  fault_ = HandshakeFault::kNone;
  have_ = 0;
  identity_ = identity;
  client_nonce_ = client_nonce;
}

size_t ClientHandshake::wanted() const {
  if (state_ == State::kReadingGreeting) return kGreetingBytes - have_;
  if (state_ == State::kReadingReply) return kReplyBytes - have_;
  return 0;
}

ClientHandshake::State ClientHandshake::Feed(Bytes bytes) {
  if (bytes.size() > wanted()) {
    state_ = State::kFailed;
    return state_;
  }
  if (state_ == State::kReadingGreeting) {
    std::memcpy(greeting_.data() + have_, bytes.data(), bytes.size());
    have_ += bytes.size();
    if (have_ < kGreetingBytes) return state_;
    fault_ = MakeHello();
    have_ = 0;
    state_ = fault_ == HandshakeFault::kNone ? State::kReadingReply : State::kFailed;
  } else if (state_ == State::kReadingReply) {
    std::memcpy(reply_.data() + have_, bytes.data(), bytes.size());
    have_ += bytes.size();
    if (have_ < kReplyBytes) return state_;
    fault_ = CheckReply();
    state_ = fault_ == HandshakeFault::kNone ? State::kDone : State::kFailed;
  }
  return state_;
}

HandshakeFault ClientHandshake::MakeHello() {
  if (!HasMagic(greeting_)) return HandshakeFault::kMagic;
  if (server_version() != kProtocolVersion) return HandshakeFault::kVersion;
  ByteReader reader(greeting_);
  uint8_t zero = 0;
  uint16_t zeros = 0;
  uint32_t server = 0, more_zeros = 0;
  Nonce server_nonce;
  PublicKey server_key;
  const bool complete = reader.Skip(kHelloMagic.size() + 1) && reader.U8(&zero) &&
                        reader.U16(&zeros) && reader.U32(&server) && reader.U32(&more_zeros) &&
                        reader.Raw(server_nonce) && reader.Raw(server_key);
  if (!complete || zero != 0 || zeros != 0 || more_zeros != 0) return HandshakeFault::kMagic;
  if (server != identity_.server) return HandshakeFault::kServer;
  Result<KeyExchange> exchange = KeyExchange::Create();
  if (!exchange.ok()) return HandshakeFault::kCrypto;
  const Result<Key> secret = SecretOf(*exchange, server_key, terms_->key);
  if (!secret.ok()) {
    return secret.status().code() == Code::kInvalidUsage ? HandshakeFault::kMac
                                                         : HandshakeFault::kCrypto;
  }
  secret_ = *secret;
  FixedWriter writer(hello_);
  writer.Raw(kHelloMagic);
  writer.Integer(kProtocolVersion, 1);
  writer.Integer(static_cast<uint8_t>(terms_->role), 1);
  writer.Integer(identity_.connection, 2);
  writer.Raw(terms_->communicator);
  writer.Integer(identity_.rank, 4);
  writer.Integer(identity_.nranks, 4);
  writer.Integer(identity_.server, 4);
  writer.Integer(0, 4);
  writer.Raw(client_nonce_);
  writer.Raw(exchange->public_key());
  const Result<Mac> mac = HmacSha256(
      secret_.bytes(), {AsBytes(kClientLabel), greeting_, Bytes(hello_).first(kHelloSignedBytes)});
  if (!mac.ok()) return HandshakeFault::kCrypto;
  writer.Raw(*mac);
  return HandshakeFault::kNone;
}

HandshakeFault ClientHandshake::CheckReply() const {
  const Result<Mac> expected =
      HmacSha256(secret_.bytes(), {AsBytes(kServerLabel), greeting_, hello_});
  if (!expected.ok()) return HandshakeFault::kCrypto;
  return EqualInConstantTime(*expected, reply_) ? HandshakeFault::kNone : HandshakeFault::kMac;
}

Result<ConnectionKeys> ClientHandshake::Keys() const { return KeysOf(secret_, greeting_, hello_); }

}  // namespace inccl::bootstrap
