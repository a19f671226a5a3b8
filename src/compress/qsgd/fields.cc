// SPDX-License-Identifier: Apache-2.0
#include "compress/qsgd/fields.h"

#include <algorithm>
#include <cstring>

#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/qsgd_kernels.h"

namespace inccl::qsgd {
namespace {

constexpr uint32_t kSlack = 64;
static_assert(kSlack >= hbi::kReadSlack && kSlack >= hbi::kWriteSlack);
// Kernels handle whole superblocks; up to kFew fields are faster one by one.
constexpr uint32_t kFew = 64, kWidest = 16;

// A superblock's fields with slack behind them.
struct Buffer {
  alignas(64) std::byte bytes[FieldBytes(kSuperblock, kWidest) + kSlack];

  // The fields at `in`, copied if fewer bytes follow than kernels read.
  const std::byte* From(const std::byte* in, uint64_t left, uint32_t count, uint32_t width) {
    if (left >= FieldBytes(kSuperblock, width) + kSlack) return in;
    const uint32_t length = FieldBytes(count, width);
    std::memcpy(bytes, in, length);
    std::memset(bytes + length, 0, FieldBytes(kSuperblock, width) + kSlack - length);
    return bytes;
  }
};

const uint8_t* Octets(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }
uint8_t* Octets(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

}  // namespace

uint32_t AddSums(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                 uint32_t* sums) {
  if (width > kWidest) {
    uint32_t fields[kSuperblock], largest = 0;
    UnpackFields(in, count, width, fields);
    for (uint32_t i = 0; i < count; ++i) {
      largest = std::max(largest, fields[i]);
      sums[i] += fields[i];
    }
    return largest;
  }
  alignas(64) uint16_t tile[kSuperblock];
  if (count < kFew) {
    UnpackFields(in, count, width, tile);
  } else {
    Buffer buffer;
    hbi::BestKernels().unpack(Octets(buffer.From(in, left, count, width)), 2 * width, tile, 1);
  }
  std::fill(tile + count, tile + (count + 31) / 32 * 32, uint16_t{0});
  return BestKernels().add_fields(tile, count, sums);
}

void PackSums(const uint32_t* sums, uint32_t count, uint32_t width, std::byte* out) {
  if (width > kWidest || count < kFew) return PackFields(sums, count, width, out);
  alignas(64) uint16_t tile[kSuperblock];
  BestKernels().narrow(sums, count, tile);
  std::fill(tile + count, tile + kSuperblock, uint16_t{0});
  Buffer buffer;
  hbi::BestKernels().pack(tile, 2 * width, Octets(buffer.bytes), 1);
  std::memcpy(out, buffer.bytes, FieldBytes(count, width));
}

void UnpackIndices(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                   uint8_t* indices) {
  if (count < kFew) return UnpackFields(in, count, width, indices);
  Buffer buffer;
  BestKernels().unpack_bytes(buffer.From(in, left, count, width), width, indices);
}

void PackIndices(const uint8_t* indices, uint32_t count, uint32_t width, std::byte* out) {
  if (count < kFew) return PackFields(indices, count, width, out);
  uint8_t fields[kSuperblock] = {};
  std::memcpy(fields, indices, count);
  Buffer buffer;
  BestKernels().pack_bytes(fields, width, buffer.bytes);
  std::memcpy(out, buffer.bytes, FieldBytes(count, width));
}

}  // namespace inccl::qsgd
