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

Result<Key> SecretOf(const Key& agreed, const Key& key) {
  return Hkdf(agreed.bytes(), key.bytes(), "inccl handshake");
}

HandshakeFault FaultOf(const Status& exchange) {
  return exchange.code() == Code::kInvalidUsage ? HandshakeFault::kMac : HandshakeFault::kCrypto;
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

void WriteHead(FixedWriter* writer) {
  writer->Raw(kHelloMagic);
  writer->Integer(kProtocolVersion, 1);
  writer->Integer(0, 3);
}

// Of the first 8 bytes of all but a hello.
HandshakeFault CheckHead(Bytes bytes) {
  if (!HasMagic(bytes)) return HandshakeFault::kMagic;
  if (std::to_integer<uint8_t>(bytes[4]) != kProtocolVersion) return HandshakeFault::kVersion;
  const Bytes zeros = bytes.subspan(5, 3);
  const bool zero =
      std::all_of(zeros.begin(), zeros.end(), [](std::byte b) { return b == std::byte{0}; });
  return zero ? HandshakeFault::kNone : HandshakeFault::kMagic;
}

void WriteGreeting(uint32_t server, const Nonce& nonce, const PublicKey& key,
                   std::span<std::byte> out) {
  FixedWriter writer(out);
  WriteHead(&writer);
  writer.Integer(server, 4);
  writer.Integer(0, 4);
  writer.Raw(nonce);
  writer.Raw(key);
}

void WriteReply(const Mac& mac, std::span<std::byte> out) {
  FixedWriter writer(out);
  WriteHead(&writer);
  writer.Raw(mac);
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
    case HandshakeFault::kReplay: return "it repeats what another connection has sent";
    case HandshakeFault::kCrypto: return "libcrypto failed";
  }
  return "unknown fault";
}

Result<std::shared_ptr<ServerKey>> ServerKey::Create() {
  Result<KeyExchange> exchange = KeyExchange::Create();
  if (!exchange.ok()) return exchange.status();
  return std::make_shared<ServerKey>(*std::move(exchange));
}

Result<Key> ServerKey::Agree(const PublicKey& peer) const {
  {
    const MutexLock lock(&mutex_);
    if (const auto found = agreed_.find(peer); found != agreed_.end()) return found->second;
  }
  return exchange_.Agree(peer);
}

void ServerKey::Keep(const PublicKey& peer, const Key& agreed) {
  const MutexLock lock(&mutex_);
  agreed_.try_emplace(peer, agreed);
}

bool ServerKey::IsNew(const Mac& hello) {
  const MutexLock lock(&mutex_);
  return seen_.insert(hello).second;
}

void ServerHandshake::Start(TermsOf terms_of, uint32_t server) {
  terms_of_ = std::move(terms_of);
  server_ = server;
  have_ = 0;
  exchange_.reset();
  state_ = State::kReading;
  fault_ = HandshakeFault::kNone;
}

ServerHandshake::State ServerHandshake::Feed(Bytes bytes) {
  if (state_ == State::kAsked) state_ = State::kReading;
  if (state_ != State::kReading || bytes.size() > wanted()) {
    state_ = State::kFailed;
    return state_;
  }
  std::memcpy(hello_.data() + have_, bytes.data(), bytes.size());
  have_ += bytes.size();
  constexpr size_t kRoleAt = 5;  // 0 in an ask
  // Refuse another protocol before the whole hello has arrived.
  if (have_ >= kHelloMagic.size() && !HasMagic(hello_)) {
    fault_ = HandshakeFault::kMagic;
  } else if (have_ == kAskBytes && hello_[kRoleAt] == std::byte{0}) {
    fault_ = OnAsk();
    state_ = State::kAsked;
  } else if (have_ == kHelloBytes) {
    fault_ = Check();
    state_ = State::kDone;
  }
  if (fault_ != HandshakeFault::kNone) state_ = State::kFailed;
  if (fault_ == HandshakeFault::kVersion) WriteReply(Mac{}, reply_);
  return state_;
}

HandshakeFault ServerHandshake::OnAsk() {
  if (exchange_) return HandshakeFault::kMagic;
  if (const HandshakeFault fault = CheckHead(hello_); fault != HandshakeFault::kNone) return fault;
  Nonce nonce;
  if (!FillRandom(nonce).ok()) return HandshakeFault::kCrypto;
  Result<KeyExchange> exchange = KeyExchange::Create();
  if (!exchange.ok()) return HandshakeFault::kCrypto;
  exchange_ = *std::move(exchange);
  WriteGreeting(server_, nonce, exchange_->public_key(), greeting_);
  have_ = 0;
  return HandshakeFault::kNone;
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
  ServerKey* const own = exchange_ ? nullptr : terms->own.get();
  if (!exchange_) {
    if (own == nullptr) return HandshakeFault::kMac;  // its clients ask
    WriteGreeting(server_, communicator_, own->public_key(), greeting_);
  }
  const Result<Key> agreed = own != nullptr ? own->Agree(client_key) : exchange_->Agree(client_key);
  if (!agreed.ok()) return FaultOf(agreed.status());
  const Result<Key> secret = SecretOf(*agreed, terms->key);
  if (!secret.ok()) return HandshakeFault::kCrypto;
  secret_ = *secret;
  const Bytes hello = hello_;
  const Result<Mac> expected = HmacSha256(
      secret_.bytes(), {AsBytes(kClientLabel), greeting_, hello.first(kHelloSignedBytes)});
  if (!expected.ok()) return HandshakeFault::kCrypto;
  if (!EqualInConstantTime(*expected, mac)) return HandshakeFault::kMac;
  // From here on the client has proven that it knows the key.
  if (own != nullptr) own->Keep(client_key, *agreed);
  if (role != static_cast<uint8_t>(terms->role)) return HandshakeFault::kRole;
  if (nranks_ == 0 || nranks_ > kMostWireRanks || rank_ >= nranks_) return HandshakeFault::kRank;
  if (server != server_) return HandshakeFault::kServer;
  const Result<Mac> reply = HmacSha256(secret_.bytes(), {AsBytes(kServerLabel), greeting_, hello});
  if (!reply.ok()) return HandshakeFault::kCrypto;
  WriteReply(*reply, reply_);
  // Last, since a hello that counts as seen is of no use to its client any more.
  if (own != nullptr && !own->IsNew(mac)) return HandshakeFault::kReplay;
  return HandshakeFault::kNone;
}

Result<ConnectionKeys> ServerHandshake::Keys() const { return KeysOf(secret_, greeting_, hello_); }

void ClientHandshake::Start(const HandshakeTerms* terms, const ClientIdentity& identity,
                            const Nonce& client_nonce) {
  terms_ = terms;
  have_ = 0;
  identity_ = identity;
  client_nonce_ = client_nonce;
  fault_ = HandshakeFault::kNone;
  state_ = State::kReadingGreeting;
  if (!identity_.server_key) {
    FixedWriter writer(hello_);
    return WriteHead(&writer);
  }
  WriteGreeting(identity_.server, terms->communicator, *identity_.server_key, greeting_);
  fault_ = MakeHello(*identity_.server_key);
  state_ = fault_ == HandshakeFault::kNone ? State::kReadingReply : State::kFailed;
}

Bytes ClientHandshake::to_send() const {
  if (state_ == State::kReadingGreeting) return Bytes(hello_).first(kAskBytes);
  if (state_ == State::kReadingReply) return hello_;
  return {};
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
    fault_ = OnGreeting();
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

HandshakeFault ClientHandshake::OnGreeting() {
  if (const HandshakeFault fault = CheckHead(greeting_); fault != HandshakeFault::kNone) {
    return fault;
  }
  ByteReader reader(greeting_);
  uint32_t server = 0, zeros = 0;
  Nonce server_nonce;
  PublicKey server_key;
  const bool complete = reader.Skip(kAskBytes) && reader.U32(&server) && reader.U32(&zeros) &&
                        reader.Raw(server_nonce) && reader.Raw(server_key);
  if (!complete || zeros != 0) return HandshakeFault::kMagic;
  if (server != identity_.server) return HandshakeFault::kServer;
  return MakeHello(server_key);
}

HandshakeFault ClientHandshake::MakeHello(const PublicKey& server_key) {
  std::shared_ptr<ServerKey> own = identity_.server_key ? terms_->own : nullptr;
  if (own == nullptr) {
    Result<std::shared_ptr<ServerKey>> made = ServerKey::Create();
    if (!made.ok()) return HandshakeFault::kCrypto;
    own = *std::move(made);
  }
  const Result<Key> agreed = own->Agree(server_key);
  if (!agreed.ok()) return FaultOf(agreed.status());
  own->Keep(server_key, *agreed);
  const Result<Key> secret = SecretOf(*agreed, terms_->key);
  if (!secret.ok()) return HandshakeFault::kCrypto;
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
  writer.Raw(own->public_key());
  const Result<Mac> mac = HmacSha256(
      secret_.bytes(), {AsBytes(kClientLabel), greeting_, Bytes(hello_).first(kHelloSignedBytes)});
  if (!mac.ok()) return HandshakeFault::kCrypto;
  writer.Raw(*mac);
  return HandshakeFault::kNone;
}

HandshakeFault ClientHandshake::CheckReply() const {
  if (const HandshakeFault fault = CheckHead(reply_); fault != HandshakeFault::kNone) return fault;
  const Result<Mac> expected =
      HmacSha256(secret_.bytes(), {AsBytes(kServerLabel), greeting_, hello_});
  if (!expected.ok()) return HandshakeFault::kCrypto;
  return EqualInConstantTime(*expected, Bytes(reply_).last(kMacBytes)) ? HandshakeFault::kNone
                                                                       : HandshakeFault::kMac;
}

Result<ConnectionKeys> ClientHandshake::Keys() const { return KeysOf(secret_, greeting_, hello_); }

}  // namespace inccl::bootstrap
