// SPDX-License-Identifier: Apache-2.0
//
// Packs and unpacks whole superblocks with the vector kernels.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/lossless/exponent_coding.h"

namespace inccl::lossless {
namespace {

uint32_t PlanesOf(DataType type) { return type == DataType::kFloat32 ? 3 : 1; }
uint32_t RestOf(DataType type) { return type == DataType::kFloat16 ? 3 : 0; }
constexpr uint32_t kWidestField = 8, kFp16Exponents = 32;
constexpr uint32_t kEscapeBits = 8;
}  // namespace

std::optional<uint32_t> PackWhole(const ExponentKernels& kernels, DataType type,
                                  const std::byte* elements, std::byte* out) {
  constexpr uint32_t kCount = kSuperblock;
  const uint32_t raw = kCount * static_cast<uint32_t>(SizeOf(type)), rest = RestOf(type);
  const uint32_t planes = PlanesOf(type) * kCount;
  Exponents parts;
  const Extent extent = kernels.split(elements, &parts, out + kHeader);
  if (!extent.any) {
    *out = std::byte{kZeros};
    return 1;
  }
  const uint32_t hi = extent.most, lo = std::min(extent.least, hi);
  uint16_t counts[256];
  kernels.count(parts, lo, hi, counts);
  const Coding coding = Choose(counts, lo, hi, kCount, kEscapeBits);
  if (coding.width + rest > kWidestField) return {};
  const uint32_t fields = FieldBytes(kCount, coding.width + rest);
  const uint32_t length = kHeader + planes + fields + coding.escapes;
  if (length >= 1 + raw) return PackRaw(elements, raw, out);
  out[0] = static_cast<std::byte>(coding.width | coding.zero << 4);
  const auto base = static_cast<uint16_t>(coding.base);
  std::memcpy(out + 1, &base, sizeof base);
  kernels.encode(parts, {coding.width, coding.zero, coding.base, rest}, out + kHeader + planes);
  return length;
}

std::optional<uint32_t> UnpackWhole(const ExponentKernels& kernels, DataType type,
                                    const std::byte* in, uint64_t bytes, std::byte* elements) {
  constexpr uint32_t kCount = kSuperblock;
  if (bytes < kHeader || in[0] == std::byte{kRaw} || in[0] == std::byte{kZeros}) return {};
  Coding coding;
  if (!ReadControl(std::to_integer<uint32_t>(in[0]), &coding)) return 0;
  uint16_t base = 0;
  std::memcpy(&base, in + 1, sizeof base);
  coding.base = base;
  const uint32_t rest = RestOf(type), width = coding.width + rest;
  const uint32_t at = kHeader + PlanesOf(type) * kCount, fixed = at + FieldBytes(kCount, width);
  // The kernels handle exponents of at most 8 bits.
  if (width > kWidestField || coding.base + coding.direct() > 256) return {};
  if (bytes < fixed) return 0;
  alignas(64) std::byte copied[FieldBytes(kCount, kWidestField) + kFieldSlack];
  const std::byte* fields = in + at;
  if (bytes - fixed < kFieldSlack) {
    std::memcpy(copied, fields, fixed - at);
    fields = copied;
  }
  Exponents parts;
  uint64_t places[4];
  uint32_t top =
      kernels.decode(fields, {coding.width, coding.zero, coding.base, rest}, &parts, places);
  uint64_t next = fixed;
  for (uint32_t part = 0; part < 4; ++part) {
    for (uint64_t left = places[part]; left != 0; left &= left - 1) {
      if (next == bytes) return 0;
      const auto exponent = std::to_integer<uint8_t>(in[next++]);
      parts.exponents[64 * part + static_cast<uint32_t>(std::countr_zero(left))] = exponent;
      top = std::max(top, uint32_t{exponent});
    }
  }
  if (type == DataType::kFloat16 && top >= kFp16Exponents) return 0;
  kernels.join(parts, in + kHeader, elements);
  return static_cast<uint32_t>(next);
}

}  // namespace inccl::lossless
