// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/reduce.h"

namespace inccl {
namespace {

// Quotients of 32-bit integers in double are exact after truncation: a quotient that is not an
// integer is further from the next one than half a unit in the last place.
template <typename T>
void Divide(void* data, size_t count, int divisor) {
  auto* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 8) {
      values[i] /= static_cast<T>(divisor);
    } else {
      values[i] = static_cast<T>(static_cast<double>(values[i]) / divisor);
    }
  }
}

}  // namespace

void DivideIntegers(DataType type, void* data, size_t count, int divisor) {
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

}  // namespace inccl
