// SPDX-License-Identifier: Apache-2.0
//
// Enumerators that a C caller passes. A value may be none of its type, so the library checks the
// number before it loads the value as an enumerator.
#ifndef INCCL_API_ENUMS_H_
#define INCCL_API_ENUMS_H_

#include <fmt/format.h>

#include <cstring>

#include "base/status.h"
#include "base/types.h"
#include "inccl/ccl.h"

namespace inccl {

template <typename Enum>
int Number(const Enum& value) {
  int number = 0;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  return number;
}

inline Result<DataType> ToDataType(const ccl_datatype_t& type) {
  const int number = Number(type);
  if (number < 0 || number >= kDataTypes) {
    return InvalidArgument(fmt::format("type: {}: invalid datatype", number));
  }
  return static_cast<DataType>(number);
}

}  // namespace inccl

#endif  // INCCL_API_ENUMS_H_
