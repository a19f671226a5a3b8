// SPDX-License-Identifier: Apache-2.0
//
// The scale of an MXFP8 block and its application to an element, shared by the codec
// (wire_codec.cc) and the CUDA kernels.
#ifndef INCCL_COMPRESS_WIRE_MX_BLOCK_H_
#define INCCL_COMPRESS_WIRE_MX_BLOCK_H_

#include <bit>
#include <cstdint>

namespace inccl {

inline constexpr uint32_t kMxNanScale = 0xFF;

// 2^exponent for -127 to 127; 2^-127 is denormal.
constexpr float MxPowerOfTwo(int exponent) {
  return std::bit_cast<float>(exponent == -127 ? 1u << 22
                                               : static_cast<uint32_t>(exponent + 127) << 23);
}

// The biased exponent of the scale of a block whose largest magnitude has these bits (fp32, sign
// cleared). top_exponent is the exponent of the element type's largest power of two. Denormal
// floats are below every scale of e4m3 and e5m2, so they get the lowest scale.
constexpr uint32_t MxScale(uint32_t magnitude, int top_exponent) {
  if (magnitude >= 0x7F800000u) return kMxNanScale;
  const int scale = static_cast<int>(magnitude >> 23) - top_exponent;
  return scale > 0 ? static_cast<uint32_t>(scale) : 0;
}

// The scaled and clamped element, before it is rounded to the element type.
constexpr float MxScaled(float x, uint32_t scale, float largest) {
  if (scale == kMxNanScale) return 0.0f;
  const float scaled = x * MxPowerOfTwo(127 - static_cast<int>(scale));
  if (scaled < -largest) return -largest;
  return scaled > largest ? largest : scaled;
}

// A decoded element. NaN keeps its bits, which a product on a GPU would change.
constexpr float MxUnscaled(float x, uint32_t scale) {
  if (scale == kMxNanScale) return std::bit_cast<float>(0x7FC00000u);
  return x != x ? x : x * MxPowerOfTwo(static_cast<int>(scale) - 127);
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_WIRE_MX_BLOCK_H_
