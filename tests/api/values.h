// SPDX-License-Identifier: Apache-2.0
//
// Small whole numbers in every element type, so that sums and products are exact in all of them and
// the oracle is plain integer arithmetic.
#ifndef INCCL_TESTS_API_VALUES_H_
#define INCCL_TESTS_API_VALUES_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

inline size_t SizeOfType(ccl_datatype_t type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[type];
}

// Encodes a value with at most `mantissa` explicit bits as a binary float, by definition; value is
// exact in the format.
inline uint32_t EncodeSmallFloat(double value, int exponent_bits, int mantissa_bits) {
  if (value == 0) return 0;
  const uint32_t sign = value < 0 ? 1u << (exponent_bits + mantissa_bits) : 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent) * 2 - 1;  // in [0, 1)
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return sign | static_cast<uint32_t>(exponent - 1 + bias) << mantissa_bits |
         static_cast<uint32_t>(std::ldexp(fraction, mantissa_bits));
}

inline double DecodeSmallFloat(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
  return (bits >> (exponent_bits + mantissa_bits)) & 1 ? -magnitude : magnitude;
}

inline void Store(ccl_datatype_t type, void* buffer, size_t index, int64_t value) {
  auto put = [&](auto v) {
    std::memcpy(static_cast<char*>(buffer) + index * sizeof v, &v, sizeof v);
  };
  const auto real = static_cast<double>(value);
  switch (type) {
    case CCL_INT8: return put(static_cast<int8_t>(value));
    case CCL_UINT8: return put(static_cast<uint8_t>(value));
    case CCL_INT32: return put(static_cast<int32_t>(value));
    case CCL_UINT32: return put(static_cast<uint32_t>(value));
    case CCL_INT64: return put(value);
    case CCL_UINT64: return put(static_cast<uint64_t>(value));
    case CCL_FLOAT32: return put(static_cast<float>(value));
    case CCL_FLOAT64: return put(real);
    case CCL_FLOAT16: return put(static_cast<uint16_t>(EncodeSmallFloat(real, 5, 10)));
    case CCL_BFLOAT16: return put(static_cast<uint16_t>(EncodeSmallFloat(real, 8, 7)));
    case CCL_FLOAT8E4M3: return put(static_cast<uint8_t>(EncodeSmallFloat(real, 4, 3)));
    case CCL_FLOAT8E5M2: return put(static_cast<uint8_t>(EncodeSmallFloat(real, 5, 2)));
  }
}

inline double Load(ccl_datatype_t type, const void* buffer, size_t index) {
  auto get = [&](auto v) {
    std::memcpy(&v, static_cast<const char*>(buffer) + index * sizeof v, sizeof v);
    return v;
  };
  switch (type) {
    case CCL_INT8: return get(int8_t{});
    case CCL_UINT8: return get(uint8_t{});
    case CCL_INT32: return get(int32_t{});
    case CCL_UINT32: return get(uint32_t{});
    case CCL_INT64: return static_cast<double>(get(int64_t{}));
    case CCL_UINT64: return static_cast<double>(get(uint64_t{}));
    case CCL_FLOAT32: return get(float{});
    case CCL_FLOAT64: return get(double{});
    case CCL_FLOAT16: return DecodeSmallFloat(get(uint16_t{}), 5, 10);
    case CCL_BFLOAT16: return DecodeSmallFloat(get(uint16_t{}), 8, 7);
    case CCL_FLOAT8E4M3: return DecodeSmallFloat(get(uint8_t{}), 4, 3);
    case CCL_FLOAT8E5M2: return DecodeSmallFloat(get(uint8_t{}), 5, 2);
  }
  return 0;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_VALUES_H_
