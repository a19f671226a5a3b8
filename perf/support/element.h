// SPDX-License-Identifier: Apache-2.0
//
// Element types as the benchmarks see them: names, and conversions between their bits and doubles
// that are written from the formats' definitions (IEEE 754; bfloat16: the upper half of an fp32;
// OCP 8-bit Floating Point Specification 1.0), independent of the library under test.
#ifndef INCCL_PERF_SUPPORT_ELEMENT_H_
#define INCCL_PERF_SUPPORT_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/types.h"

namespace inccl::perf {

// What error analysis needs to know of a float type.
struct FloatLimits {
  double roundoff;  // u: half the distance of 1 and the next value
  double tiny;      // smallest positive value
  double largest;   // largest finite value
};
FloatLimits LimitsOf(DataType type);  // type: a float

constexpr bool IsSigned(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
}

// The names in tables and of -d and -o, those of nccl-tests: "float", "half", "fp8_e4m3", "sum"...
const char* TableName(DataType type);
const char* TableName(ReduceOp op);
// The inverse; the names of base/types.h ("float32") and short ones ("fp32", "bf16", "f8e4m3") are
// understood, too.
std::optional<DataType> ParseDataType(std::string_view name);
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

// Rounds to nearest, ties to even, and writes the bits. Beyond the largest value: infinity, and
// +-448 in CCL_FLOAT8E4M3, which has none. out holds values.size() elements of `type`, a float.
void EncodeFloats(DataType type, std::span<const double> values, void* out);

// The values of `count` elements of `type`, a float. Exact.
void DecodeFloats(DataType type, const void* elements, size_t count, double* out);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_ELEMENT_H_
