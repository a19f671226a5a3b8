// SPDX-License-Identifier: Apache-2.0
//
// The handshake by which both ends of a socket prove that they know the key, before either reads
// anything of variable length, and agree on keys for what follows. Fixed sizes, in order:
//
//   server  greeting  64  "icl2", version u8, 3 zero bytes, server's rank u32, 4 zero bytes,
//                         server nonce 16, server's public key 32
//   client  hello    120  "icl2", version u8, role u8, connection u16, communicator nonce 16,
//                         rank u32, nranks u32, the server's rank u32, 4 zero bytes,
//                         client nonce 16, client's public key 32,
//                         HMAC(S, "inccl-c2" | greeting | hello so far) 32
//   server  reply     32  HMAC(S, "inccl-s2" | greeting | hello)
//
// The key is that of the communicator which the client names. S = HKDF(X25519 of the two public
// keys, salt: the key, "inccl handshake"): who does not know the key does not know S, and who
// learns the key later does not, either. The keys of the connection are HKDF(S, salt:
// SHA-256(greeting | hello), "inccl client" or "inccl server"), one for what each end sends. Since
// the text that both authenticate holds both ranks, the purpose and the number of the connection,
// no attacker can pass a connection to one rank on to another.
//
// Integers are little endian. A recorded hello cannot be replayed, since every greeting has a new
// nonce and public key. The state machines do no I/O; bytes may arrive in any portions.
#ifndef INCCL_BOOTSTRAP_HANDSHAKE_H_
#define INCCL_BOOTSTRAP_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

inline constexpr uint8_t kProtocolVersion = 3;
inline constexpr size_t kGreetingBytes = 64;
inline constexpr size_t kHelloBytes = 120;
inline constexpr size_t kReplyBytes = kMacBytes;
inline constexpr uint32_t kMostWireRanks = kMaxRanks;  // as the wire formats count
inline constexpr uint32_t kNoRank = UINT32_MAX;        // of a server that is a rendezvous

// The purpose of a connection; the handshake authenticates it.
enum class Role : uint8_t { kRendezvous = 1, kMesh = 2, kData = 3 };

enum class HandshakeFault : uint8_t {
  kNone,
  kMagic,         // not this protocol
  kVersion,       // another version of the protocol
  kRole,          // meant for another purpose
  kCommunicator,  // meant for another communicator
  kRank,          // invalid rank or nranks
  kServer,        // the server is another rank than the client wants
  kMac,           // the other end does not know the key
  kCrypto,        // libcrypto failed
};
const char* Describe(HandshakeFault fault);

// The values that both ends know beforehand.
struct HandshakeTerms {
  Key key;
  Role role = Role::kRendezvous;
  Nonce communicator{};
};
// Those of the communicator that a client names; null: there is none.
using TermsOf = std::function<const HandshakeTerms*(const Nonce& communicator)>;

// What a client says of itself and of the connection that it wants.
struct ClientIdentity {
  uint32_t rank = 0, nranks = 1;
  uint32_t server = kNoRank;  // the rank that it means to reach
  uint16_t connection = 0;    // number among those of this purpose between the two ranks
};

// The keys of a connection; see Aead.
struct ConnectionKeys {
  Key from_client, from_server;
};

class ServerHandshake {
 public:
  enum class State : uint8_t { kReading, kDone, kFailed };

  // Starts a new handshake of the rank `server`. The state is kFailed if libcrypto fails.
  void Start(TermsOf terms_of, const Nonce& server_nonce, uint32_t server = kNoRank);
  // Of one communicator. `terms` outlives it.
  void Start(const HandshakeTerms* terms, const Nonce& server_nonce, uint32_t server = kNoRank) {
    Start([terms](const Nonce&) { return terms; }, server_nonce, server);
  }

  Bytes greeting() const { return greeting_; }           // the caller sends it first
  size_t wanted() const { return kHelloBytes - have_; }  // missing bytes of the hello
  // bytes.size() <= wanted().
  State Feed(Bytes bytes);
  State state() const { return state_; }
  HandshakeFault fault() const { return fault_; }

  // Valid in kDone: the reply, which the caller sends, and the client's rank.
  Bytes reply() const { return reply_; }
  uint32_t rank() const { return rank_; }
  uint32_t nranks() const { return nranks_; }
  uint16_t connection() const { return connection_; }
  const Nonce& communicator() const { return communicator_; }
  Result<ConnectionKeys> Keys() const;

 private:
  HandshakeFault Check();

  TermsOf terms_of_;
  State state_ = State::kFailed;
  HandshakeFault fault_ = HandshakeFault::kNone;
  size_t have_ = 0;
  uint32_t server_ = kNoRank, rank_ = 0, nranks_ = 0;
  uint16_t connection_ = 0;
  Nonce communicator_{};
  std::optional<KeyExchange> exchange_;
  Key secret_;
  std::array<std::byte, kGreetingBytes> greeting_{};
  std::array<std::byte, kHelloBytes> hello_{};
  Mac reply_{};
};

class ClientHandshake {
 public:
  enum class State : uint8_t {
    kReadingGreeting,
    kReadingReply,  // the caller sends hello() when this state begins
    kDone,
    kFailed
  };

  void Start(const HandshakeTerms* terms, const ClientIdentity& identity,
             const Nonce& client_nonce);

  size_t wanted() const;  // missing bytes of the server in this state
  // bytes.size() <= wanted().
  State Feed(Bytes bytes);
  State state() const { return state_; }
  HandshakeFault fault() const { return fault_; }
  Bytes hello() const { return hello_; }
  uint8_t server_version() const { return std::to_integer<uint8_t>(greeting_[4]); }
  // Valid once hello() is: what the client seals with them only a server that knows the key reads.
  Result<ConnectionKeys> Keys() const;

 private:
  HandshakeFault MakeHello();
  HandshakeFault CheckReply() const;

  const HandshakeTerms* terms_ = nullptr;
  State state_ = State::kFailed;
  HandshakeFault fault_ = HandshakeFault::kNone;
  size_t have_ = 0;
  ClientIdentity identity_;
  Nonce client_nonce_{};
  Key secret_;
  std::array<std::byte, kGreetingBytes> greeting_{};
  std::array<std::byte, kHelloBytes> hello_{};
  Mac reply_{};
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HANDSHAKE_H_
