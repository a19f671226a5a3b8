// SPDX-License-Identifier: Apache-2.0
//
// What happens to one element, as docs/format.md says it: the scalar reference
// (kernels/hbi_scalar.cc) and the CUDA kernels (cuda/) are made of these functions, so that there
// is one arithmetic. Products and sums are never contracted (--fmad=false, -ffp-contract=off).
#ifndef INCCL_COMPRESS_HBI_ELEMENT_H_
#define INCCL_COMPRESS_HBI_ELEMENT_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

// To the nearest integer, ties to even; |v| < 2^31.
INCCL_HOST_DEVICE inline int32_t NearestInt(float v) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(v);
#else
  return static_cast<int32_t>(std::nearbyint(v));
#endif
}

// The 16-bit offset of element j (0 <= j < 32) of a block from the hash that it shares with the
// element 16 beside it.
constexpr uint32_t RoundingOffset(uint32_t hash, uint32_t j, uint32_t shift) {
  return ((j < 16 ? hash : hash >> 16) + shift) & 0xffff;
}

// Rounds one fp32 product to an integer, clamps, adds the offset and keeps what is above it. With a
// factor of 0 the value counts as zero, whatever it is.
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

// A sum of codes in which `zero` stands for 0, times the step. NaN has the bits of the step
// everywhere: a GPU's product would have others.
constexpr float DecodeElement(uint32_t field, uint32_t zero, float step) {
  if (step != step) return step;
  return static_cast<float>(static_cast<int16_t>(field - zero)) * step;
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ELEMENT_H_
