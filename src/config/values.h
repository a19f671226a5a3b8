// SPDX-License-Identifier: Apache-2.0
//
// Parsers of values as people write them. A function that returns text says what is wrong with a
// value, or "".
#ifndef INCCL_CONFIG_VALUES_H_
#define INCCL_CONFIG_VALUES_H_

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace inccl {

std::string Lower(std::string_view text);

// Without blanks at the ends and beside the separators of lists, ranges and assignments:
// "ring, tree ; allreduce : direct".
std::string WithoutBlanks(std::string_view text);

template <typename T>
std::string ParseInteger(std::string_view value, int64_t low, int64_t high, T* field) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) return "not a whole number";
  if (number < low || number > high) return fmt::format("not in [{}, {}]", low, high);
  if constexpr (std::is_same_v<T, int64_t>) {
    *field = number;
  } else {
    *field = static_cast<int>(number);  // the limits fit an int
  }
  return "";
}

// A number of bytes; K, M and G after it are powers of 1024.
std::string ParseBytes(std::string_view value, int64_t low, int64_t high, int64_t* field);

std::string ParseReal(std::string_view value, double high, double* field);

std::string ParseFlag(std::string_view value, bool* field);

// A choice among names in the grammar of NCCL_SOCKET_IFNAME and NCCL_IB_HCA: comma-separated
// prefixes; "=" before the list: exact names; "^": all but these; "^=": all but these exact names.
// The sign may stand again before each further name.
struct NameList {
  bool inverted = false;
  bool exact = false;
  std::vector<std::string_view> names;  // parts of the text; none of them is empty

  // Whether there is a name in the list that `matches`, or none if the list is inverted.
  template <typename Matches>
  bool Admits(Matches&& matches) const {
    bool named = false;
    for (const std::string_view name : names) named = named || matches(name);
    return named != inverted;
  }
};

// kInvalidArgument: a sign that is not the one before the list.
Result<NameList> ParseNameList(std::string_view text);

}  // namespace inccl

#endif  // INCCL_CONFIG_VALUES_H_
