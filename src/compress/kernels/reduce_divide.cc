// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <type_traits>

#include "compress/kernels/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/reduce_divide.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

// Plain loops, which the compiler vectorizes. The rounded quotient of 32-bit integers in double, or
// of 8-bit integers in float, truncates to the exact result: a quotient that is not an integer is
// further from one than the rounding error.
template <typename T>
void Divide(void* data, size_t count, int divisor) {
  auto* values = static_cast<T*>(data);
  if constexpr (sizeof(T) == 8) {
    for (size_t i = 0; i < count; ++i) values[i] /= static_cast<T>(divisor);
  } else {
    using Quotient = std::conditional_t<sizeof(T) == 1, float, double>;
    const auto by = static_cast<Quotient>(divisor);
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<T>(static_cast<Quotient>(values[i]) / by);
    }
  }
}

void DivideTarget(DataType type, void* data, size_t count, int divisor) {
  switch (type) {
    case DataType::kInt8: return Divide<int8_t>(data, count, divisor);
    case DataType::kUint8: return Divide<uint8_t>(data, count, divisor);
    case DataType::kInt32: return Divide<int32_t>(data, count, divisor);
    case DataType::kUint32: return Divide<uint32_t>(data, count, divisor);
    case DataType::kInt64: return Divide<int64_t>(data, count, divisor);
    case DataType::kUint64: return Divide<uint64_t>(data, count, divisor);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(DivideTarget);

void DivideIntegers(DataType type, void* data, size_t count, int divisor) {
  HWY_DYNAMIC_DISPATCH(DivideTarget)(type, data, count, divisor);
}

}  // namespace inccl
#endif  // HWY_ONCE
