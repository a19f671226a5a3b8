// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_wire.h"

#include "base/bytes.h"
#include "base/rng.h"

namespace inccl::verbs {
namespace {

constexpr uint32_t kMagic = 0x31626976;  // "vib1"
constexpr uint32_t kPacketNumbers = 0xffffff;

}  // namespace

std::vector<std::byte> RankAddress::Encode() const {
  ByteWriter writer;
  writer.U32(kMagic);
  writer.U8(ethernet ? 1 : 0);
  writer.U8(mtu);
  writer.U16(lid);
  writer.Raw(gid);
  writer.U32(first_packet);
  writer.U64(inbox);
  writer.U32(inbox_key);
  for (const uint32_t number : queue_pairs) writer.U32(number);
  return writer.bytes();
}

bool RankAddress::Decode(std::span<const std::byte> bytes, int nranks, RankAddress* address) {
  ByteReader reader(bytes);
  uint32_t magic = 0;
  uint8_t ethernet = 0;
  if (!reader.U32(&magic) || magic != kMagic || !reader.U8(&ethernet) || ethernet > 1 ||
      !reader.U8(&address->mtu) || !reader.U16(&address->lid) || !reader.Raw(address->gid) ||
      !reader.U32(&address->first_packet) || !reader.U64(&address->inbox) ||
      !reader.U32(&address->inbox_key) ||
      reader.remaining() != static_cast<size_t>(nranks) * sizeof(uint32_t)) {
    return false;
  }
  address->ethernet = ethernet == 1;
  address->queue_pairs.resize(static_cast<size_t>(nranks));
  for (uint32_t& number : address->queue_pairs) {
    if (!reader.U32(&number)) return false;
  }
  return true;
}

uint32_t RankAddress::PacketNumberTo(int peer) const {
  const uint64_t seed = (uint64_t{first_packet} << 32) | static_cast<uint32_t>(peer);
  return static_cast<uint32_t>(Mix64(seed)) & kPacketNumbers;
}

}  // namespace inccl::verbs
