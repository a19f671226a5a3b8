// SPDX-License-Identifier: Apache-2.0
//
// The handshake by which both ends of a socket prove that they know the key, before either reads
// anything of variable length. Fixed sizes, in order:
//
//   server  greeting  24  "icl1", version u8, flags u8, 2 zero bytes, server nonce 16;
//                         bit 0 of the flags: the key holds the content of a secret file
//   client  hello     80  "icl1", version u8, role u8, 2 zero bytes, communicator nonce 16,
//                         rank u32, nranks u32, client nonce 16,
//                         HMAC(key, "inccl-c1" | greeting | hello so far) 32
//   server  reply     32  HMAC(key, "inccl-s1" | greeting | hello)
//
// Integers are little endian. A recorded hello cannot be replayed, since every greeting has a new
// nonce. The state machines do no I/O and allocate nothing; bytes may arrive in any portions.
#ifndef INCCL_BOOTSTRAP_HANDSHAKE_H_
#define INCCL_BOOTSTRAP_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

inline constexpr uint8_t kProtocolVersion = 1;
inline constexpr size_t kGreetingBytes = 24;
inline constexpr size_t kHelloBytes = 80;
inline constexpr size_t kReplyBytes = kMacBytes;
inline constexpr uint32_t kMaxRanks = 4096;  // limit of the wire formats

// The purpose of a connection; the handshake authenticates it.
enum class Role : uint8_t { kRendezvous = 1, kMesh = 2 };

enum class HandshakeFault : uint8_t {
  kNone,
  kMagic,          // not this protocol
  kVersion,        // another version of the protocol
  kRole,           // meant for another purpose
  kCommunicator,   // meant for another communicator
  kRank,           // invalid rank or nranks
  kSecretLacking,  // the server has a secret file, this client has none
  kSecretUnasked,  // this client has a secret file, the server has none
  kMac,            // the other end does not know the key
  kCrypto,         // libcrypto failed
};
const char* Describe(HandshakeFault fault);

// The values that both ends know beforehand.
struct HandshakeTerms {
  Key key;
  Role role = Role::kRendezvous;
  Nonce communicator{};
  bool secret_file = false;  // the key includes the content of a secret file
};

class ServerHandshake {
 public:
  enum class State : uint8_t { kReading, kDone, kFailed };

  // Starts a new handshake. `terms` outlives it.
  void Start(const HandshakeTerms* terms, const Nonce& server_nonce);

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

 private:
  HandshakeFault Check();

  const HandshakeTerms* terms_ = nullptr;
  State state_ = State::kFailed;
  HandshakeFault fault_ = HandshakeFault::kNone;
  size_t have_ = 0;
  uint32_t rank_ = 0, nranks_ = 0;
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

  void Start(const HandshakeTerms* terms, uint32_t rank, uint32_t nranks,
             const Nonce& client_nonce);

  size_t wanted() const;  // missing bytes of the server in this state
  // bytes.size() <= wanted().
  State Feed(Bytes bytes);
  State state() const { return state_; }
  HandshakeFault fault() const { return fault_; }
  Bytes hello() const { return hello_; }
  uint8_t server_version() const { return std::to_integer<uint8_t>(greeting_[4]); }

 private:
  HandshakeFault MakeHello();
  HandshakeFault CheckReply() const;

  const HandshakeTerms* terms_ = nullptr;
  State state_ = State::kFailed;
  HandshakeFault fault_ = HandshakeFault::kNone;
  size_t have_ = 0;
  uint32_t rank_ = 0, nranks_ = 0;
  Nonce client_nonce_{};
  std::array<std::byte, kGreetingBytes> greeting_{};
  std::array<std::byte, kHelloBytes> hello_{};
  Mac reply_{};
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HANDSHAKE_H_
