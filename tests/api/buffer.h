// SPDX-License-Identifier: Apache-2.0
//
// A caller's buffer that shows what is written around it.
#ifndef INCCL_TESTS_API_BUFFER_H_
#define INCCL_TESTS_API_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "api/values.h"

namespace inccl::test {

// Elements between two elements of guard; aligned for the element type only.
class Buffer {
 public:
  Buffer(ccl_datatype_t type, size_t elements)
      : bytes_((elements + 2) * SizeOfType(type), 0x5A), element_(SizeOfType(type)) {}
  char* data() { return bytes_.data() + element_; }
  bool GuardsIntact() const {
    const auto is_guard = [](char c) { return c == 0x5A; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<long>(element_), is_guard) &&
           std::all_of(bytes_.end() - static_cast<long>(element_), bytes_.end(), is_guard);
  }

 private:
  std::vector<char> bytes_;
  size_t element_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_BUFFER_H_
