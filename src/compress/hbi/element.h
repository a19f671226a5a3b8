// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one element (docs/format.md), shared by the scalar reference
// (kernels/scalar_kernels.cc) and the CUDA kernels (cuda/). The compiler must not contract products
// and sums (--fmad=false, -ffp-contract=off).
#ifndef INCCL_COMPRESS_HBI_ELEMENT_H_
#define INCCL_COMPRESS_HBI_ELEMENT_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

// Rounds to the nearest integer, ties to even; |v| < 2^31.
INCCL_HOST_DEVICE inline int32_t NearestInt(float v) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(v);
#else
  return static_cast<int32_t>(std::nearbyint(v));
#endif
}

// The 16-bit offset of element j (0 <= j < 32) of a block, from the hash that it shares with
// element j + 16 or j - 16.
constexpr uint32_t RoundingOffset(uint32_t hash, uint32_t j, const Offsets& offsets) {
  const uint32_t random = (j < 16 ? hash : hash >> 16) & 0xffff;
  const uint32_t beyond = (random * offsets.ranks & 0xffff) * offsets.inverse >> 16;
  return (random - beyond + offsets.add) & 0xffff;
}

// Rounds the fp32 product to a fixed-point integer, clamps it, adds the offset and drops the 16
// fraction bits. With a factor of 0 every value counts as zero.
INCCL_HOST_DEVICE inline uint32_t QuantizeElement(float x, float factor, uint32_t k,
                                                  uint32_t offset) {
  const float limit = factor == 0 ? 0.0f : static_cast<float>(k * 65536);
#ifdef __CUDA_ARCH__
  const float v = fminf(fmaxf(x * factor, -limit), limit);  // NaN becomes -limit
#else
  float v = x * factor;
  if (!(v > -limit)) v = -limit;
  if (v > limit) v = limit;
#endif
  return (static_cast<uint32_t>(NearestInt(v)) + offset + k * 65536) >> 16;
}

// Decodes a sum of codes in which `zero` stands for 0. If the step is NaN, the result has its bits;
// a product on a GPU would change them.
constexpr float DecodeElement(uint32_t field, uint32_t zero, float step) {
  if (step != step) return step;
  return static_cast<float>(static_cast<int16_t>(field - zero)) * step;
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ELEMENT_H_
