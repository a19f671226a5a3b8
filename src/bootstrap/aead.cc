// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/aead.h"

#include <openssl/evp.h>

#include <algorithm>
#include <climits>
#include <utility>

namespace inccl::bootstrap {
namespace {

constexpr size_t kKeyBytes = 16;

}  // namespace

void Aead::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Result<Aead> Aead::Create(const Key& key, Use use) {
  if (Status status = InitLibcrypto(); !status.ok()) return status;
  Context context(EVP_CIPHER_CTX_new());
  if (context == nullptr) return SystemError("libcrypto: out of memory");
  if (EVP_CipherInit_ex(context.get(), EVP_aes_128_gcm(), nullptr, Unsigned(key.bytes().data()),
                        nullptr, use == Use::kSeal ? 1 : 0) != 1) {
    return SystemError("libcrypto refuses AES-128-GCM");
  }
  Nonce96 mask;
  std::copy_n(key.bytes().begin() + kKeyBytes, mask.size(), mask.begin());
  return Aead(std::move(context), mask);
}

Aead::Nonce96 Aead::NextNonce() {
  Nonce96 nonce = mask_;
  for (size_t i = 0; i < sizeof count_; ++i) nonce[i] ^= static_cast<std::byte>(count_ >> (8 * i));
  ++count_;
  return nonce;
}

// Everything but the tag: the nonce, the header as associated data, and `data` in place.
bool Aead::Run(Bytes header, std::span<std::byte> data) {
  const Nonce96 nonce = NextNonce();
  int length = 0;
  return header.size() <= INT_MAX && data.size() <= INT_MAX &&
         EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, Unsigned(nonce.data()), -1) ==
             1 &&
         EVP_CipherUpdate(context_.get(), nullptr, &length, Unsigned(header.data()),
                          static_cast<int>(header.size())) == 1 &&
         (data.empty() ||
          EVP_CipherUpdate(context_.get(), Unsigned(data.data()), &length, Unsigned(data.data()),
                           static_cast<int>(data.size())) == 1);
}

bool Aead::Seal(Bytes header, std::span<std::byte> data, std::span<std::byte, kTagBytes> tag) {
  unsigned char none = 0;
  int length = 0;
  return Run(header, data) && EVP_CipherFinal_ex(context_.get(), &none, &length) == 1 &&
         EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
}

bool Aead::Open(Bytes header, std::span<std::byte> data,
                std::span<const std::byte, kTagBytes> tag) {
  unsigned char none = 0;
  int length = 0;
  if (Run(header, data) &&
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                          const_cast<std::byte*>(tag.data())) == 1 &&
      EVP_CipherFinal_ex(context_.get(), &none, &length) == 1) {
    return true;
  }
  --count_;
  return false;
}

Result<StreamCipher> StreamCipher::Create(const Key& send_key, const Key& receive_key) {
  Result<Aead> seal = Aead::Create(send_key, Aead::Use::kSeal);
  if (!seal.ok()) return seal.status();
  Result<Aead> open = Aead::Create(receive_key, Aead::Use::kOpen);
  if (!open.ok()) return open.status();
  return StreamCipher{.seal = *std::move(seal), .open = *std::move(open)};
}

}  // namespace inccl::bootstrap
