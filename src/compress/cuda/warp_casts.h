// SPDX-License-Identifier: Apache-2.0
//
// The casts on a warp: fp32 to and from the payloads of the codecs bf16, fp16, fp8 and mxfp8
// (wire/wire_codec.cc). Lane l has elements 8 l to 8 l + 7 of a superblock. The work is
// divided as in warp_slice.h.
#ifndef INCCL_COMPRESS_CUDA_WARP_CASTS_H_
#define INCCL_COMPRESS_CUDA_WARP_CASTS_H_

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"
#include "compress/cuda/warp_fields.h"
#include "compress/float_types.h"
#include "compress/wire/float_wire.h"

namespace inccl::cuda {

// A cast format: its type, whether finite values saturate, whether blocks have scales, and the
// exponent of the type's largest power of two.
template <class Float, bool kSaturates, bool kScales = false, int kTopExponent = 0>
struct Cast {
  using Type = Float;
  using Code = typename Float::Code;
  static constexpr bool kSaturated = kSaturates;
  static constexpr bool kScaled = kScales;
  static constexpr int kTop = kTopExponent;
};

// A lane's codes, 16 or 8 bytes.
template <class Code>
struct alignas(8 * sizeof(Code)) LaneCodes {
  Code at[kLaneElements];
};

template <class Code>
INCCL_HOST_DEVICE bool HasVectors(const void* codes) {
  return reinterpret_cast<uintptr_t>(codes) % sizeof(LaneCodes<Code>) == 0;
}

// The offsets of a superblock's scales and codes; `here` is its number of elements.
template <class Format>
struct CastPlace {
  uint64_t scales, codes;
  uint32_t here;
  INCCL_HOST_DEVICE CastPlace(uint32_t superblock, uint32_t count) {
    const uint32_t left = count - superblock * kSuperblock;
    here = left < kSuperblock ? left : kSuperblock;
    const uint64_t each =
        kSuperblock * sizeof(typename Format::Code) + (Format::kScaled ? kSuperblock / kBlock : 0);
    scales = superblock * each;
    codes = scales + (Format::kScaled ? (here + kBlock - 1) / kBlock : 0);
  }
};

template <class Format, class Warp>
INCCL_HOST_DEVICE void CastEncodeSuperblock(const Warp& warp, const float* in, uint32_t count,
                                            uint8_t* out, uint32_t superblock) {
  using Code = typename Format::Code;
  using Type = typename Format::Type;
  const CastPlace<Format> place(superblock, count);
  const uint32_t first = warp.lane() * kLaneElements;
  float x[kLaneElements];
  LoadEight<Fp32>(in, superblock * kSuperblock + first, count, x);
  uint32_t scale = 0;
  if constexpr (Format::kScaled) {
    scale = MxScale(BlockMagnitude(warp, x), Format::kTop);
    const uint32_t block = warp.lane() / kLanesPerBlock;
    if (warp.lane() % kLanesPerBlock == 0 && block * kBlock < place.here) {
      out[place.scales + block] = static_cast<uint8_t>(scale);
    }
  }
  LaneCodes<Code> codes;
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    float value = x[i];
    if constexpr (Format::kScaled) {
      value = MxScaled(value, scale, Type::Largest());
    } else if constexpr (Format::kSaturated) {
      value = SaturatedTo(value, Type::Largest());
    }
    codes.at[i] = Type::Encode(value);
  }
  auto* to = reinterpret_cast<Code*>(out + place.codes) + first;
  if (first + kLaneElements <= place.here && HasVectors<Code>(to)) {
    *reinterpret_cast<LaneCodes<Code>*>(to) = codes;
  } else {
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      if (first + i < place.here) to[i] = codes.at[i];
    }
  }
}

template <class Format, class Warp>
INCCL_HOST_DEVICE void CastDecodeSuperblock(const Warp& warp, const uint8_t* in, uint32_t count,
                                            float* out, uint32_t superblock) {
  using Code = typename Format::Code;
  using Type = typename Format::Type;
  const CastPlace<Format> place(superblock, count);
  const uint32_t first = warp.lane() * kLaneElements;
  const auto* from = reinterpret_cast<const Code*>(in + place.codes) + first;
  LaneCodes<Code> codes{};
  if (first + kLaneElements <= place.here && HasVectors<Code>(from)) {
    codes = *reinterpret_cast<const LaneCodes<Code>*>(from);
  } else {
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      if (first + i < place.here) codes.at[i] = from[i];
    }
  }
  float y[kLaneElements];
  for (uint32_t i = 0; i < kLaneElements; ++i) y[i] = Type::Decode(codes.at[i]);
  if constexpr (Format::kScaled) {
    const uint32_t block = warp.lane() / kLanesPerBlock;
    const uint32_t scale = block * kBlock < place.here ? in[place.scales + block] : 0;
    for (float& value : y) value = MxUnscaled(value, scale);
  }
  StoreSuperblock<Fp32>(warp, y, out, superblock * kSuperblock, count);
}

// Encodes the four superblocks of one warp.
template <class Format, class Warp>
INCCL_HOST_DEVICE void CastEncodeTile(const Warp& warp, const float* in, uint32_t count,
                                      uint8_t* out, uint32_t tile, uint32_t part) {
  const uint32_t first = tile * kTile + part * kSuperblocksPerWarp;
  for (uint32_t s = first; s < first + kSuperblocksPerWarp && s * kSuperblock < count; ++s) {
    CastEncodeSuperblock<Format>(warp, in, count, out, s);
  }
}

template <class Format, class Warp>
INCCL_HOST_DEVICE void CastDecodeTile(const Warp& warp, const uint8_t* in, uint32_t count,
                                      float* out, uint32_t tile, uint32_t part) {
  const uint32_t first = tile * kTile + part * kSuperblocksPerWarp;
  for (uint32_t s = first; s < first + kSuperblocksPerWarp && s * kSuperblock < count; ++s) {
    CastDecodeSuperblock<Format>(warp, in, count, out, s);
  }
}

// Calls function(Cast<...>{}) for a format; returns `otherwise` for an unknown format.
template <class Function>
int WithCast(CastFormat format, int otherwise, Function function) {
  switch (format) {
    case CastFormat::kBf16: return function(Cast<Bf16, false>{});
    case CastFormat::kFp16: return function(Cast<Fp16, false>{});
    case CastFormat::kE4m3: return function(Cast<Fp8E4m3, true>{});
    case CastFormat::kE5m2: return function(Cast<Fp8E5m2, true>{});
    case CastFormat::kMxE4m3: return function(Cast<Fp8E4m3, true, true, 8>{});
    case CastFormat::kMxE5m2: return function(Cast<Fp8E5m2, true, true, 15>{});
  }
  return otherwise;
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_CASTS_H_
