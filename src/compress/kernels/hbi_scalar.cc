// SPDX-License-Identifier: Apache-2.0
//
// The scalar reference of docs/format.md: one element at a time.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/hbi/element.h"
#include "compress/hbi/format.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
namespace {

void BlockCodes(const float* x, size_t superblocks, uint8_t* codes) {
  for (size_t b = 0; b < superblocks * kBlocks; ++b) {
    uint32_t magnitude = 0;
    for (uint32_t j = 0; j < kBlock; ++j) {
      magnitude = std::max(magnitude, std::bit_cast<uint32_t>(x[b * kBlock + j]) & 0x7fffffff);
    }
    codes[b] = CodeOfMagnitude(magnitude);
  }
}

void TopCodes(const uint8_t* codes, size_t superblocks, uint8_t* tops) {
  for (size_t s = 0; s < superblocks; ++s, codes += kBlocks) {
    uint8_t top = kZeroCode;
    for (uint32_t b = 0; b < kBlocks; ++b) {
      if (codes[b] != kPoison) top = std::max(top, codes[b]);
    }
    tops[s] = top;
  }
}

// True if element j of block `block` changes its sign.
bool Negated(uint32_t counter, uint32_t block, uint32_t j) {
  const uint32_t hash = LowBias32(counter + block * 16 + j % 16);
  return ((j < 16 ? hash : hash >> 16) & 1) != 0;
}

// Sums and differences with strides 1, 2, 4, .. 128, in this order, then times 1/16.
void Hadamard(float* x) {
  for (uint32_t stride = 1; stride < kSuperblock; stride *= 2) {
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  for (uint32_t i = 0; i < kSuperblock; ++i) x[i] *= 1.0f / 16;
}

void Rotate(float* x, uint32_t counter) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
  }
  Hadamard(x);
}

void RotateBack(float* x, uint32_t counter) {
  Hadamard(x);
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
    if (std::isnan(x[i])) x[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

template <typename Store>
void QuantizeWithHash(const QuantizeArgs& args, Store store) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const uint32_t block = i / kBlock, j = i % kBlock;
    const uint32_t hash = LowBias32(args.counter + block * 16 + j % 16);
    const uint32_t offset = RoundingOffset(hash, j, args.shift);
    const float factor = args.factor[args.codes[block]];
    store(i, static_cast<uint16_t>(QuantizeElement(args.x[i], factor, args.k, offset)));
  }
}

void Quantize(const QuantizeArgs& args, uint16_t* tile) {
  QuantizeWithHash(args, [tile](uint32_t i, uint16_t code) { tile[i] = code; });
}

void QuantizeAdd(const QuantizeArgs& args, uint16_t* tile) {
  QuantizeWithHash(
      args, [tile](uint32_t i, uint16_t code) { tile[i] = static_cast<uint16_t>(tile[i] + code); });
}

void QuantizeNearest(const QuantizeArgs& args, uint16_t* tile) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const float factor = args.factor[args.codes[i / kBlock]];
    tile[i] = static_cast<uint16_t>(QuantizeElement(args.x[i], factor, args.k, kRoundHalfUp));
  }
}

template <typename Store>
void UnpackFields(const uint8_t* in, uint32_t width, Store store) {
  uint64_t bits = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    for (; have < width; have += 8) bits |= uint64_t{*in++} << have;
    store(i, static_cast<uint16_t>(bits & ((1u << width) - 1)));
    bits >>= width;
    have -= width;
  }
}

void Unpack(const uint8_t* in, uint32_t width, uint16_t* tile) {
  UnpackFields(in, width, [tile](uint32_t i, uint16_t field) { tile[i] = field; });
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile) {
  UnpackFields(in, width, [tile](uint32_t i, uint16_t field) {
    tile[i] = static_cast<uint16_t>(tile[i] + field);
  });
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out) {
  uint64_t bits = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    bits |= uint64_t{tile[i]} << have;
    for (have += width; have >= 8; have -= 8) {
      *out++ = static_cast<uint8_t>(bits);
      bits >>= 8;
    }
  }
}

// Moves on to the next superblock.
void Advance(QuantizeArgs* args) {
  args->x += kSuperblock;
  args->codes += kBlocks;
  args->counter += kSuperblock / 2;
}

void Encode(const QuantizeArgs& args, uint32_t width, uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one), out += PackedBytes(width)) {
    Quantize(one, tile);
    Pack(tile, width, out);
  }
}

void AddEncode(const QuantizeArgs& args, const uint8_t* in, uint32_t in_width, uint32_t out_width,
               uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one)) {
    Unpack(in, in_width, tile);
    QuantizeAdd(one, tile);
    Pack(tile, out_width, out);
    in += PackedBytes(in_width);
    out += PackedBytes(out_width);
  }
}

void Decode(const DecodeArgs& args, const uint16_t* tile, float* y) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    y[i] = DecodeElement(tile[i], args.zero, args.step[args.codes[i / kBlock]]);
  }
}

void UnpackDecode(const DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  uint16_t tile[kSuperblock];
  DecodeArgs one = args;
  for (uint32_t s = 0; s < args.superblocks; ++s, one.codes += kBlocks, y += kSuperblock) {
    Unpack(in, width, tile);
    Decode(one, tile, y);
    in += PackedBytes(width);
  }
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {BlockCodes,  TopCodes,        Rotate, RotateBack,  Quantize,
                                       QuantizeAdd, QuantizeNearest, Unpack, UnpackAdd,   Pack,
                                       Encode,      AddEncode,       Decode, UnpackDecode};
  return kKernels;
}

}  // namespace inccl::hbi
