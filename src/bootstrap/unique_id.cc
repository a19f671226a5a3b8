// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/unique_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace inccl {
namespace {

constexpr std::string_view kIdMagic = "iclu";
constexpr uint8_t kVersion = 2;
constexpr uint8_t kNeedsSecretFile = 1;
constexpr size_t kCrcOffset = 116;
constexpr size_t kSpareBytes = 8;
constexpr size_t kMostInMessage = 8;
using bootstrap::AsBytes;
using bootstrap::Bytes;

void WriteAddress(const UniqueIdAddress& address, ByteWriter* writer) {
  writer->U16(address.family);
  writer->Raw(address.address);
  writer->U16(address.port);
  writer->U16(address.scope);
}

void ReadAddress(ByteReader* reader, UniqueIdAddress* address) {
  uint16_t family = 0;
  reader->U16(&family);
  reader->Raw(address->address);
  reader->U16(&address->port);
  reader->U16(&address->scope);
  address->family = static_cast<uint8_t>(std::min<uint16_t>(family, 255));
}

bool Usable(const UniqueIdAddress& address) {
  return (address.family == 4 || address.family == 6) && address.port != 0;
}

}  // namespace

void WriteAddresses(std::span<const UniqueIdAddress> addresses, ByteWriter* writer) {
  writer->U8(static_cast<uint8_t>(addresses.size()));
  for (const UniqueIdAddress& address : addresses) WriteAddress(address, writer);
}

bool ReadAddresses(ByteReader* reader, std::vector<UniqueIdAddress>* addresses) {
  uint8_t count = 0;
  if (!reader->U8(&count) || count > kMostInMessage) return false;
  addresses->resize(count);
  for (UniqueIdAddress& address : *addresses) ReadAddress(reader, &address);
  return reader->ok() && std::all_of(addresses->begin(), addresses->end(), Usable);
}

void UniqueId::Encode(std::byte* out) const {
  ByteWriter writer;
  writer.Raw(AsBytes(kIdMagic));
  writer.U8(kVersion);
  writer.U8(needs_secret_file ? kNeedsSecretFile : 0);
  const size_t count = std::min(addresses.size(), kMaxAddresses);
  writer.U16(static_cast<uint16_t>(count));
  UniqueIdAddress none;
  none.family = 0;
  for (size_t i = 0; i < kMaxAddresses; ++i) WriteAddress(i < count ? addresses[i] : none, &writer);
  writer.Raw(server_key);
  // The secret goes directly into the id, so no other buffer keeps a copy.
  const size_t secret_at = writer.bytes().size();
  std::memcpy(out, writer.bytes().data(), secret_at);
  std::memcpy(out + secret_at, secret.bytes().data(), secret.bytes().size());
  ByteWriter end;
  end.U32(Crc32c(Bytes(out, kCrcOffset)));
  end.Raw(std::array<std::byte, kSpareBytes>{});
  std::memcpy(out + kCrcOffset, end.bytes().data(), end.bytes().size());
}

Result<UniqueId> UniqueId::Decode(const std::byte* data) {
  const Bytes bytes(data, kUniqueIdBytes);
  ByteReader reader(bytes);
  std::array<std::byte, 4> magic{};
  uint8_t version = 0, flags = 0;
  uint16_t count = 0;
  UniqueId id;
  bootstrap::Mac secret{};
  uint32_t crc = 0;
  reader.Raw(magic);
  reader.U8(&version);
  reader.U8(&flags);
  reader.U16(&count);
  if (!std::equal(magic.begin(), magic.end(), AsBytes(kIdMagic).begin())) {
    return InvalidArgument("id: these bytes are not from ccl_get_unique_id");
  }
  if (version != kVersion) {
    return InvalidArgument(fmt::format(
        "id: version {}, this library reads version {}; all ranks need the same library", version,
        kVersion));
  }
  std::array<UniqueIdAddress, kMaxAddresses> found;
  for (UniqueIdAddress& address : found) ReadAddress(&reader, &address);
  reader.Raw(id.server_key);
  reader.Raw(secret);
  reader.U32(&crc);
  if (!reader.ok() || crc != Crc32c(bytes.first(kCrcOffset))) {
    return InvalidArgument("id: damaged (its checksum is wrong)");
  }
  if ((flags & ~kNeedsSecretFile) != 0) {
    return InvalidArgument(fmt::format("id: unknown flags {:#x}", flags));
  }
  if (count > kMaxAddresses) return InvalidArgument(fmt::format("id: {} addresses", count));
  for (size_t i = 0; i < count; ++i) {
    if (!Usable(found[i])) {
      return InvalidArgument(fmt::format("id: address {} has family {} and port {}", i,
                                         found[i].family, found[i].port));
    }
    id.addresses.push_back(found[i]);
  }
  const Bytes spare = bytes.last(kSpareBytes);
  if (std::any_of(spare.begin(), spare.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return InvalidArgument("id: bytes beyond its end are not zero");
  }
  id.needs_secret_file = (flags & kNeedsSecretFile) != 0;
  id.secret = bootstrap::Key(secret);
  bootstrap::Wipe(secret);
  return id;
}

bootstrap::Nonce UniqueId::name() const {
  bootstrap::Nonce name;
  std::copy_n(server_key.begin(), name.size(), name.begin());
  return name;
}

std::string UniqueId::ToString() const {
  std::string text = "unique id ";
  for (const std::byte b : name()) text += fmt::format("{:02x}", std::to_integer<int>(b));
  return text;
}

}  // namespace inccl
