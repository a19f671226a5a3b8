// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>

namespace inccl::bootstrap {
namespace {

// Uses each algorithm once. OpenSSL looks for an algorithm at its first use, and 3.0 never finds it
// again if it runs out of memory then.
bool FindAlgorithms() {
  Result<KeyExchange> pair = KeyExchange::Create();
  EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  EVP_CIPHER_free(cipher);
  if (cipher == nullptr || !pair.ok()) return false;
  const PublicKey& any = pair->public_key();
  return pair->Agree(any).ok() && Sha256(any).ok() && HmacSha256(any, {any}).ok() &&
         Hkdf(any, any, "any").ok();
}

}  // namespace

// A thread of the library may authenticate a peer while the process exits, so libcrypto must not
// free its state at exit; it accepts that setting only from its first initialization. OpenSSL 3.0
// crashes after an initialization that ran out of memory, so this runs before any other use.
Status InitLibcrypto() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_acquire)) return Status::Ok();
  if (OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1 ||
      OSSL_LIB_CTX_get0_global_default() == nullptr) {
    return SystemError("libcrypto cannot start (out of memory?)");
  }
  done.store(true, std::memory_order_release);
  if (FindAlgorithms()) return Status::Ok();
  done.store(false, std::memory_order_release);
  return SystemError("libcrypto lacks an algorithm (out of memory?)");
}

Key::~Key() { Wipe(bytes_); }

Secret::~Secret() { Wipe(bytes_); }

void Secret::Append(Bytes more) {
  Secret longer(bytes_.size() + more.size());
  std::copy(bytes_.begin(), bytes_.end(), longer.bytes_.begin());
  std::copy(more.begin(), more.end(), longer.bytes_.end() - static_cast<ptrdiff_t>(more.size()));
  *this = std::move(longer);
}

void Secret::Truncate(size_t size) {
  Wipe(std::span(bytes_).subspan(size));
  bytes_.resize(size);
}

void Wipe(std::span<std::byte> secret) { OPENSSL_cleanse(secret.data(), secret.size()); }

Result<Mac> HmacSha256(Bytes key, std::initializer_list<Bytes> parts) {
  if (Status status = InitLibcrypto(); !status.ok()) return status;
  std::array<std::byte, kMaxMacInput> input;
  size_t size = 0;
  for (const Bytes part : parts) {
    if (part.size() > input.size() - size) return InternalError("HMAC input too long");
    std::memcpy(input.data() + size, part.data(), part.size());
    size += part.size();
  }
  Mac mac;
  size_t length = 0;
  if (EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(),
                Unsigned(input.data()), size, Unsigned(mac.data()), mac.size(),
                &length) == nullptr ||
      length != mac.size()) {
    return SystemError("libcrypto refuses HMAC-SHA256");
  }
  return mac;
}

Result<Key> Hkdf(Bytes secret, Bytes salt, std::string_view label) {
  if (Status status = InitLibcrypto(); !status.ok()) return status;
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr),
                                                         EVP_KDF_free);
  if (kdf == nullptr) return SystemError("libcrypto has no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(EVP_KDF_CTX_new(kdf.get()),
                                                                     EVP_KDF_CTX_free);
  if (context == nullptr) return SystemError("libcrypto: out of memory");
  char digest[] = "SHA256";
  const auto octets = [](const char* name, const void* data, size_t size) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), size);
  };
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                               octets(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
                               octets(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
                               octets(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
                               OSSL_PARAM_construct_end()};
  Mac out;
  if (EVP_KDF_derive(context.get(), Unsigned(out.data()), out.size(), params) != 1) {
    return SystemError("libcrypto refuses HKDF-SHA256");
  }
  const Key key(out);
  Wipe(out);
  return key;
}

void KeyExchange::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

Result<KeyExchange> KeyExchange::Create() {
  if (Status status = InitLibcrypto(); !status.ok()) return status;
  Pair pair(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  PublicKey public_key;
  size_t size = public_key.size();
  if (pair == nullptr ||
      EVP_PKEY_get_raw_public_key(pair.get(), Unsigned(public_key.data()), &size) != 1 ||
      size != public_key.size()) {
    return SystemError("libcrypto refuses X25519");
  }
  return KeyExchange(std::move(pair), public_key);
}

Result<Key> KeyExchange::Agree(const PublicKey& peer) const {
  const Pair other(EVP_PKEY_new_raw_public_key(
      EVP_PKEY_X25519, nullptr, reinterpret_cast<const unsigned char*>(peer.data()), peer.size()));
  const std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> context(
      EVP_PKEY_CTX_new(pair_.get(), nullptr), EVP_PKEY_CTX_free);
  const bool ready = other != nullptr && context != nullptr &&
                     EVP_PKEY_derive_init(context.get()) == 1 &&
                     EVP_PKEY_derive_set_peer(context.get(), other.get()) == 1;
  if (!ready) return SystemError("libcrypto refuses X25519");  // any bytes are a public key
  Mac secret;
  size_t size = secret.size();
  // Some few public keys give zeros.
  if (EVP_PKEY_derive(context.get(), Unsigned(secret.data()), &size) != 1 ||
      size != secret.size()) {
    return InvalidUsage("not a public key of X25519");
  }
  const Key key(secret);
  Wipe(secret);
  return key;
}

bool EqualInConstantTime(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status FillRandom(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return SystemErrorErrno("getrandom", errno);
    out = out.subspan(static_cast<size_t>(got));
  }
  return Status::Ok();
}

Result<Mac> Sha256(Bytes bytes) {
  if (Status status = InitLibcrypto(); !status.ok()) return status;
  Mac out;
  size_t length = 0;
  if (EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), Unsigned(out.data()),
                   &length) != 1) {
    return SystemError("libcrypto refuses SHA-256");
  }
  return out;
}

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
