// SPDX-License-Identifier: Apache-2.0
//
// One element between the caller's type and fp32, without branches, so that a loop over it becomes
// vector code of whatever instruction set it is compiled for. Exact towards fp32 but for float64,
// which is rounded to nearest even; back to 16 bits: to nearest even, NaN stays NaN (quiet).
#ifndef INCCL_COMPRESS_KERNELS_HBI_ELEMENTS_H_
#define INCCL_COMPRESS_KERNELS_HBI_ELEMENTS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"

namespace inccl::hbi {

inline float FloatOfBfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t Bfloat16OfFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

inline float FloatOfFloat16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t finite = magnitude < 0x400 ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00 ? special : finite));
}

inline uint16_t Float16OfFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  // Adding 1/2 leaves a multiple of 2^-24, the smallest float16, in the low bits.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000 ? special : finite));
}

template <typename T, typename Convert>
inline void ElementsToFloat(const std::byte* in, size_t count, float* out, Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, in + i * sizeof(T), sizeof(T));
    out[i] = convert(element);
  }
}

template <typename T, typename Convert>
inline void ElementsFromFloat(const float* in, size_t count, std::byte* out, Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    const T element = convert(in[i]);
    std::memcpy(out + i * sizeof(T), &element, sizeof(T));
  }
}

// The types of HbiCodec::Supports; others are left alone.
inline void ToFloat(DataType type, const std::byte* in, size_t count, float* out) {
  if (type == DataType::kFloat32) {
    std::memcpy(out, in, count * sizeof(float));
  } else if (type == DataType::kBfloat16) {
    ElementsToFloat<uint16_t>(in, count, out, [](uint16_t x) { return FloatOfBfloat16(x); });
  } else if (type == DataType::kFloat16) {
    ElementsToFloat<uint16_t>(in, count, out, [](uint16_t x) { return FloatOfFloat16(x); });
  } else if (type == DataType::kFloat64) {
    ElementsToFloat<double>(in, count, out, [](double x) { return static_cast<float>(x); });
  }
}

inline void FromFloat(DataType type, const float* in, size_t count, std::byte* out) {
  if (type == DataType::kFloat32) {
    std::memcpy(out, in, count * sizeof(float));
  } else if (type == DataType::kBfloat16) {
    ElementsFromFloat<uint16_t>(in, count, out, [](float x) { return Bfloat16OfFloat(x); });
  } else if (type == DataType::kFloat16) {
    ElementsFromFloat<uint16_t>(in, count, out, [](float x) { return Float16OfFloat(x); });
  } else if (type == DataType::kFloat64) {
    ElementsFromFloat<double>(in, count, out, [](float x) { return static_cast<double>(x); });
  }
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_ELEMENTS_H_
