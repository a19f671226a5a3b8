// SPDX-License-Identifier: Apache-2.0
//
// AES-128-GCM for one direction of one connection. Both ends count the messages, so the nonce does
// not travel: a message that is lost, repeated or moved does not open.
#ifndef INCCL_BOOTSTRAP_AEAD_H_
#define INCCL_BOOTSTRAP_AEAD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "bootstrap/crypto.h"

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

#endif  // INCCL_BOOTSTRAP_AEAD_H_
