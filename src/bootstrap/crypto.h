// SPDX-License-Identifier: Apache-2.0
//
// Primitives of the handshake: HMAC-SHA256 (RFC 2104), HKDF-SHA256 (RFC 5869), X25519,
// random bytes.
// Thread-safe. A kSystemError means that libcrypto or the kernel refused.
#ifndef INCCL_BOOTSTRAP_CRYPTO_H_
#define INCCL_BOOTSTRAP_CRYPTO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

struct evp_pkey_st;

namespace inccl::bootstrap {

using Bytes = std::span<const std::byte>;

// As libcrypto names bytes.
inline unsigned char* Unsigned(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* Unsigned(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kNonceBytes = 16;
using Mac = std::array<std::byte, kMacBytes>;
using Nonce = std::array<std::byte, kNonceBytes>;

// A secret key; its destructor wipes it.
class Key {
 public:
  Key() = default;
  explicit Key(const Mac& bytes) : bytes_(bytes) {}
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  Bytes bytes() const { return bytes_; }

 private:
  Mac bytes_{};
};

// A secret of any size. It wipes every copy that it has made.
class Secret {
 public:
  Secret() = default;
  explicit Secret(size_t size) : bytes_(size) {}
  Secret(Secret&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Secret& operator=(Secret&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Secret();

  void Append(Bytes more);
  void Truncate(size_t size);
  std::span<std::byte> bytes() { return bytes_; }
  Bytes bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

// Called before any other use of libcrypto, by the functions below and by Aead.
Status InitLibcrypto();

inline Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// HMAC-SHA256 over the concatenated parts, at most kMaxMacInput bytes in total.
inline constexpr size_t kMaxMacInput = 512;
Result<Mac> HmacSha256(Bytes key, std::initializer_list<Bytes> parts);

// One output block of HKDF-SHA256.
Result<Key> Hkdf(Bytes secret, Bytes salt, std::string_view label);

// One end of a Diffie-Hellman exchange over X25519 (RFC 7748) with a new key pair.
inline constexpr size_t kPublicKeyBytes = 32;
using PublicKey = std::array<std::byte, kPublicKeyBytes>;
class KeyExchange {
 public:
  static Result<KeyExchange> Create();
  const PublicKey& public_key() const { return public_key_; }
  // The secret that only the two ends know. Fails for a public key that gives everybody the same.
  Result<Key> Agree(const PublicKey& peer) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using Pair = std::unique_ptr<evp_pkey_st, Free>;
  KeyExchange(Pair pair, const PublicKey& public_key)
      : pair_(std::move(pair)), public_key_(public_key) {}

  Pair pair_;
  PublicKey public_key_;
};

// Compares in time that does not depend on the content.
bool EqualInConstantTime(Bytes a, Bytes b);

Status FillRandom(std::span<std::byte> out);

// Overwrites a secret that is no longer needed.
void Wipe(std::span<std::byte> secret);

Result<Mac> Sha256(Bytes bytes);

}  // namespace inccl::bootstrap

// AES-128-GCM for one direction of one connection. Both ends count the messages, so the nonce does
// not travel: a message that is lost, repeated or moved does not open.

struct evp_cipher_ctx_st;

namespace inccl::bootstrap {

inline constexpr size_t kTagBytes = 16;

// Not thread-safe. An object either seals or opens.
class Aead {
 public:
  enum class Use : uint8_t { kSeal, kOpen };
  // Uses the first 16 bytes of the key as the key and the next 12 as the nonce's mask, so no two
  // objects may seal with equal keys.
  static Result<Aead> Create(const Key& key, Use use);

  Aead(Aead&&) noexcept = default;
  Aead& operator=(Aead&&) noexcept = default;

  // Encrypts `data` in place and writes the tag over `header` and `data`.
  bool Seal(Bytes header, std::span<std::byte> data, std::span<std::byte, kTagBytes> tag);
  // Returns false if the message is not the next one that the other end has sealed, which is then
  // still awaited; `data` is undefined.
  bool Open(Bytes header, std::span<std::byte> data, std::span<const std::byte, kTagBytes> tag);

 private:
  using Nonce96 = std::array<std::byte, 12>;
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_cipher_ctx_st, Free>;

  Aead(Context context, const Nonce96& mask) : context_(std::move(context)), mask_(mask) {}
  Nonce96 NextNonce();
  bool Run(Bytes header, std::span<std::byte> data);

  Context context_;
  Nonce96 mask_;
  uint64_t count_ = 0;
};

// Seals what this end of a stream sends and opens what it receives.
struct StreamCipher {
  Aead seal, open;

  static Result<StreamCipher> Create(const Key& send_key, const Key& receive_key);
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_CRYPTO_H_
