// SPDX-License-Identifier: Apache-2.0
//
// The 128 bytes that identify a communicator during its creation and give the right to join it.
// They contain a secret; ToString shows only the public part.
//
//   offset size  field
//        0    4  "iclu"
//        4    1  version, 2
//        5    1  flags; bit 0: joining needs the content of a secret file too
//        6    2  number of addresses, 0 to 2
//        8   44  two addresses of 22 bytes: family u16 (4, 6; 0: none), address 16 (IPv4: the first
//                4), port u16, scope u16 (the interface index of a link-local IPv6 address
//                on the host that made the id)
//       52   32  public key of the rendezvous; its first 16 bytes are the id's name
//       84   32  secret
//      116    4  CRC-32C of the bytes before
//      120    8  zero
// Integers are little endian, addresses as they travel on the wire.
#ifndef INCCL_BOOTSTRAP_UNIQUE_ID_H_
#define INCCL_BOOTSTRAP_UNIQUE_ID_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "bootstrap/crypto.h"

namespace inccl {

inline constexpr size_t kUniqueIdBytes = 128;

struct UniqueIdAddress {
  uint8_t family = 4;  // 4 or 6
  std::array<std::byte, 16> address{};
  uint16_t port = 0;
  uint16_t scope = 0;

  bool operator==(const UniqueIdAddress&) const = default;
};

inline constexpr size_t kMostAddresses = 2;
// At most kMostInMessage (8) addresses in a message: count u8, then 22 bytes each.
void WriteAddresses(std::span<const UniqueIdAddress> addresses, ByteWriter* writer);
// Returns false for anything that WriteAddresses does not write, and for port 0.
bool ReadAddresses(ByteReader* reader, std::vector<UniqueIdAddress>* addresses);

struct UniqueId {
  static constexpr size_t kMaxAddresses = kMostAddresses;

  bool needs_secret_file = false;
  std::vector<UniqueIdAddress> addresses;  // in the order to try them
  bootstrap::PublicKey server_key{};
  bootstrap::Key secret;

  bootstrap::Nonce name() const;

  // Writes kUniqueIdBytes.
  void Encode(std::byte* out) const;
  // A kInvalidArgument says what is wrong with the bytes.
  static Result<UniqueId> Decode(const std::byte* bytes);
  // "unique id 0123456789abcdef0123456789abcdef": its name.
  std::string ToString() const;
};

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_UNIQUE_ID_H_
