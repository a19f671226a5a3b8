// SPDX-License-Identifier: Apache-2.0
//
// The handshake by which both ends of a socket prove that they know the key, before either reads
// anything of variable length, and agree on keys for what follows. Fixed sizes, in order:
//
//   client  ask        8  "icl2", version u8, 3 zero bytes; only if it does not know the greeting
//   server  greeting  64  "icl2", version u8, 3 zero bytes, server's rank u32, 4 zero bytes,
//                         server nonce 16, server's public key 32; only if asked
//   client  hello    120  "icl2", version u8, role u8, connection u16, communicator nonce 16,
//                         rank u32, nranks u32, the server's rank u32, 4 zero bytes,
//                         client nonce 16, client's public key 32,
//                         HMAC(S, "inccl-c2" | greeting | hello so far) 32
//   server  reply     40  "icl2", version u8, 3 zero bytes,
//                         HMAC(S, "inccl-s2" | greeting | hello) 32
//
// A client that has the server's public key from a unique id or from the table of ranks knows the
// greeting: its nonce is that of the communicator. The server accepts each hello to it once.
// Another client asks, and gets a greeting with a new nonce and public key. So no recorded hello
// can be replayed.
//
// The key is that of the communicator which the client names. S = HKDF(X25519 of the two public
// keys, salt: the key, "inccl handshake"): who does not know the key does not know S, and who
// learns the key later does not, either. The keys of the connection are HKDF(S, salt:
// SHA-256(greeting | hello), "inccl client" or "inccl server"), one for what each end sends. Since
// the text that both authenticate holds both ranks, the purpose and the number of the connection,
// no attacker can pass a connection to one rank on to another.
//
// Integers are little endian. The state machines do no I/O; bytes may arrive in any portions.
#ifndef INCCL_BOOTSTRAP_HANDSHAKE_H_
#define INCCL_BOOTSTRAP_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/mutex.h"
#include "base/status.h"
#include "base/types.h"
#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

inline constexpr uint8_t kProtocolVersion = 5;
inline constexpr size_t kAskBytes = 8;
inline constexpr size_t kGreetingBytes = 64;
inline constexpr size_t kHelloBytes = 120;
inline constexpr size_t kReplyBytes = 8 + kMacBytes;
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
  kReplay,        // the server has accepted this hello before
  kCrypto,        // libcrypto failed
};
const char* Describe(HandshakeFault fault);

// A key pair of a server whose public key its clients know before they connect. A client that is
// such a server, too, uses it for its own connections, so that a pair of ranks agrees once,
// whatever the number of its connections. Thread-safe.
class ServerKey {
 public:
  static Result<std::shared_ptr<ServerKey>> Create();

  explicit ServerKey(KeyExchange exchange) : exchange_(std::move(exchange)) {}
  const PublicKey& public_key() const { return exchange_.public_key(); }
  // As KeyExchange::Agree; without its arithmetic after Keep.
  Result<Key> Agree(const PublicKey& peer) const;
  // `agreed` is what Agree gave for `peer`: one from the table, or one who has proven that it knows
  // the key of the handshake. A stranger fills no memory.
  void Keep(const PublicKey& peer, const Key& agreed);
  // Whether no hello with this MAC has come before.
  bool IsNew(const Mac& hello);

 private:
  const KeyExchange exchange_;
  mutable Mutex mutex_;
  std::map<PublicKey, Key> agreed_ INCCL_GUARDED_BY(mutex_);
  std::set<Mac> seen_ INCCL_GUARDED_BY(mutex_);  // of clients that know the key
};

// The values that both ends know beforehand.
struct HandshakeTerms {
  Key key;
  Role role = Role::kRendezvous;
  Nonce communicator{};
  // Of the server; null: its clients ask for a greeting. All that serve one communicator share it.
  // Of a client: its own key pair towards servers whose keys it knows; null: a new one each time.
  std::shared_ptr<ServerKey> own = nullptr;
};
// Those of the communicator that a client names; null: there is none.
using TermsOf = std::function<const HandshakeTerms*(const Nonce& communicator)>;

// What a client says of itself and of the connection that it wants.
struct ClientIdentity {
  uint32_t rank = 0, nranks = 1;
  uint32_t server = kNoRank;  // the rank that it means to reach
  uint16_t connection = 0;    // number among those of this purpose between the two ranks
  std::optional<PublicKey> server_key = {};  // that of the server's HandshakeTerms::own, if known
};

// The keys of a connection; see Aead.
struct ConnectionKeys {
  Key from_client, from_server;
};

class ServerHandshake {
 public:
  enum class State : uint8_t {
    kReading,
    kAsked,  // the caller sends greeting() and goes on
    kDone,
    kFailed
  };

  // Starts a new handshake of the rank `server`.
  void Start(TermsOf terms_of, uint32_t server = kNoRank);
  // Of one communicator. `terms` outlives it.
  void Start(const HandshakeTerms* terms, uint32_t server = kNoRank) {
    Start([terms](const Nonce&) { return terms; }, server);
  }

  Bytes greeting() const { return greeting_; }
  // Missing bytes of what the client sends next.
  size_t wanted() const { return (have_ < kAskBytes ? kAskBytes : kHelloBytes) - have_; }
  // bytes.size() <= wanted().
  State Feed(Bytes bytes);
  State state() const { return state_; }
  HandshakeFault fault() const { return fault_; }

  // The caller sends it in kDone. After kVersion it tells the client of this version.
  Bytes reply() const { return reply_; }
  // Valid in kDone.
  uint32_t rank() const { return rank_; }
  uint32_t nranks() const { return nranks_; }
  uint16_t connection() const { return connection_; }
  const Nonce& communicator() const { return communicator_; }
  Result<ConnectionKeys> Keys() const;

 private:
  HandshakeFault OnAsk();
  HandshakeFault Check();

  TermsOf terms_of_;
  State state_ = State::kFailed;
  HandshakeFault fault_ = HandshakeFault::kNone;
  size_t have_ = 0;
  uint32_t server_ = kNoRank, rank_ = 0, nranks_ = 0;
  uint16_t connection_ = 0;
  Nonce communicator_{};
  std::optional<KeyExchange> exchange_;  // of a client that has asked
  Key secret_;
  std::array<std::byte, kGreetingBytes> greeting_{};
  std::array<std::byte, kHelloBytes> hello_{};
  std::array<std::byte, kReplyBytes> reply_{};
};

class ClientHandshake {
 public:
  enum class State : uint8_t { kReadingGreeting, kReadingReply, kDone, kFailed };

  // Begins a connection; the caller sends to_send(). Fails if libcrypto does.
  void Start(const HandshakeTerms* terms, const ClientIdentity& identity,
             const Nonce& client_nonce);

  size_t wanted() const;  // missing bytes of the server in this state
  // bytes.size() <= wanted().
  State Feed(Bytes bytes);
  State state() const { return state_; }
  HandshakeFault fault() const { return fault_; }
  // What the caller sends when this state begins: the ask or the hello.
  Bytes to_send() const;
  // Valid from kReadingReply on: what the client seals with them only a server that knows the key
  // reads.
  Result<ConnectionKeys> Keys() const;

 private:
  HandshakeFault OnGreeting();
  HandshakeFault MakeHello(const PublicKey& server_key);
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
  std::array<std::byte, kReplyBytes> reply_{};
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HANDSHAKE_H_
