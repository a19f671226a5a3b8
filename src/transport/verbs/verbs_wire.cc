// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_wire.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/rng.h"
#include "config/values.h"

namespace inccl::verbs {
namespace {

// One entry of INCCL_IB_HCA: a device, and after a colon its port.
bool Matches(std::string_view entry, bool exact, std::string_view device, int port) {
  const size_t colon = entry.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view digits = entry.substr(colon + 1);
    int wanted = 0;
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), wanted);
    if (error != std::errc() || stop != digits.data() + digits.size() || wanted != port) {
      return false;
    }
    entry = entry.substr(0, colon);
  }
  return exact ? device == entry : device.starts_with(entry);
}

}  // namespace

bool Admits(const std::string& hca, const std::string& device, int port) {
  const Result<NameList> list = ParseNameList(hca);  // checked when the variable was read
  if (!list.ok()) return false;
  if (list->names.empty()) return true;
  return list->Admits(
      [&](std::string_view entry) { return Matches(entry, list->exact, device, port); });
}

bool IsIpv4Mapped(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kPrefix.data(), kPrefix.size()) == 0;
}

bool IsLinkLocal(const Gid& gid) {
  return gid[0] == std::byte{0xfe} && (gid[1] & std::byte{0xc0}) == std::byte{0x80};
}

std::string ToText(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET6, gid.data(), text.data(), text.size()) != nullptr ? text.data() : "";
}

namespace {

constexpr uint32_t kMagic = 0x32626976;  // "vib2"
constexpr uint32_t kPacketNumbers = 0xffffff;

}  // namespace

std::vector<std::byte> RankAddress::Encode() const {
  ByteWriter writer;
  writer.U32(kMagic);
  writer.U32(first_packet);
  writer.U8(static_cast<uint8_t>(rails.size()));
  for (const RailAddress& rail : rails) {
    writer.U8(rail.ethernet ? 1 : 0);
    writer.U8(rail.mtu);
    writer.U16(rail.lid);
    writer.Raw(rail.gid);
    writer.U64(rail.inbox);
    writer.U32(rail.inbox_key);
  }
  for (const uint32_t number : queue_pairs) writer.U32(number);
  return writer.bytes();
}

bool RankAddress::Decode(std::span<const std::byte> bytes, int nranks, RankAddress* address) {
  ByteReader reader(bytes);
  uint32_t magic = 0;
  uint8_t rails = 0;
  if (!reader.U32(&magic) || magic != kMagic || !reader.U32(&address->first_packet) ||
      !reader.U8(&rails) || rails == 0 || rails > kMostRails) {
    return false;
  }
  address->rails.resize(rails);
  for (RailAddress& rail : address->rails) {
    uint8_t ethernet = 0;
    if (!reader.U8(&ethernet) || ethernet > 1 || !reader.U8(&rail.mtu) || !reader.U16(&rail.lid) ||
        !reader.Raw(rail.gid) || !reader.U64(&rail.inbox) || !reader.U32(&rail.inbox_key)) {
      return false;
    }
    rail.ethernet = ethernet == 1;
  }
  if (reader.remaining() != static_cast<size_t>(nranks) * sizeof(uint32_t)) return false;
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
