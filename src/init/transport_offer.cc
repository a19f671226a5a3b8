// SPDX-License-Identifier: Apache-2.0
#include "init/transport_offer.h"

#include <string_view>

#include "base/bytes.h"
#include "base/escaped.h"
#include "bootstrap/mesh.h"

namespace inccl {
namespace {

constexpr uint32_t kOfferMagic = 0x33666f69;  // "iof3"
constexpr size_t kMaxName = 32, kMaxReason = 2048, kMaxPathReason = 512;

}  // namespace

std::vector<std::byte> TransportOffer::Encode() const {
  ByteWriter writer;
  writer.U32(kOfferMagic);
  writer.String(transport);
  writer.U32(static_cast<uint32_t>(status.code()));
  writer.String(std::string_view(status.message()).substr(0, kMaxReason));
  writer.String({reinterpret_cast<const char*>(payload.data()), payload.size()});
  writer.U8(device_slices ? 1 : 0);
  writer.U32(link_mbps);
  return writer.bytes();
}

Result<TransportOffer> TransportOffer::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  TransportOffer offer;
  uint32_t magic = 0, code = 0;
  uint8_t device_slices = 0;
  std::string reason, payload;
  if (!reader.U32(&magic) || magic != kOfferMagic || !reader.String(&offer.transport, kMaxName) ||
      !reader.U32(&code) || code > static_cast<uint32_t>(Code::kTimeout) ||
      !reader.String(&reason, kMaxReason) || !reader.String(&payload, kMaxBlob) ||
      !reader.U8(&device_slices) || device_slices > 1 || !reader.U32(&offer.link_mbps) ||
      reader.remaining() != 0) {
    return InternalError("malformed offer of a transport");
  }
  offer.status = Status(static_cast<Code>(code), Escaped(reason));
  offer.device_slices = device_slices == 1;
  const auto content = std::as_bytes(std::span(payload));
  offer.payload.assign(content.begin(), content.end());
  return offer;
}

std::vector<std::byte> EncodePathFailures(std::span<const PathFailure> failures) {
  if (failures.empty()) return {};
  ByteWriter writer;
  writer.String(std::string_view(failures.front().why).substr(0, kMaxPathReason));
  for (const PathFailure& failure : failures) writer.U16(static_cast<uint16_t>(failure.peer));
  return writer.bytes();
}

Result<std::vector<PathFailure>> DecodePathFailures(std::span<const std::byte> bytes, int nranks) {
  std::vector<PathFailure> failures;
  if (bytes.empty()) return failures;
  ByteReader reader(bytes);
  std::string why;
  if (!reader.String(&why, kMaxPathReason)) return InternalError("malformed failures of paths");
  while (reader.remaining() > 0) {
    uint16_t peer = 0;
    if (!reader.U16(&peer) || peer >= nranks) return InternalError("malformed failures of paths");
    failures.push_back({.peer = peer, .why = Escaped(why)});
  }
  return failures;
}

}  // namespace inccl
