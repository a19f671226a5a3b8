// SPDX-License-Identifier: Apache-2.0
#include "config/values.h"

#include <algorithm>
#include <cmath>

namespace inccl {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// How many bits a unit shifts a number; negative: it is none.
int ShiftOf(std::string_view unit) {
  if (unit.empty()) return 0;
  const std::string lower = Lower(unit);
  return lower == "k" ? 10 : lower == "m" ? 20 : lower == "g" ? 30 : -1;
}

}  // namespace

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string WithoutBlanks(std::string_view text) {
  constexpr std::string_view kSeparators = ",;:^=-|";
  const auto separates = [&](char c) { return kSeparators.find(c) != kSeparators.npos; };
  std::string kept;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && IsBlank(text[end])) ++end;
    const bool drops =
        i == 0 || end == text.size() || separates(text[i - 1]) || separates(text[end]);
    if (!drops) kept.append(text.substr(i, end - i));
    if (end < text.size()) kept += text[end];
    i = end + 1;
  }
  return kept;
}

std::string ParseBytes(std::string_view value, int64_t low, int64_t high, int64_t* field) {
  const size_t digits = std::min(value.size(), value.find_first_not_of("0123456789"));
  const int shift = ShiftOf(value.substr(digits));
  int64_t number = 0;
  if (shift < 0 || !ParseInteger(value.substr(0, digits), 0, INT64_MAX, &number).empty()) {
    return "no number of bytes";
  }
  if (number > INT64_MAX >> shift || number << shift < low || number << shift > high) {
    return fmt::format("not in [{}, {}]", low, high);
  }
  *field = number << shift;
  return "";
}

std::string ParseReal(std::string_view value, double high, double* field) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) return "not a number";
  if (number < 0 || number > high) return fmt::format("not in [0, {}]", high);
  *field = number;
  return "";
}

std::string ParseFlag(std::string_view value, bool* field) {
  if (value != "0" && value != "1") return "neither 0 nor 1";
  *field = value == "1";
  return "";
}

Result<NameList> ParseNameList(std::string_view text) {
  NameList list;
  std::string_view sign;
  for (bool first = true; !text.empty() || first; first = false) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const size_t signs = std::min(word.size(), word.find_first_not_of("^="));
    const std::string_view own = word.substr(0, signs);
    if (first) sign = own;
    if (own != sign && (!own.empty() || first)) {
      return InvalidArgument(
          fmt::format("a list with \"{}\", whose sign is not that of the first name", word));
    }
    if (first && sign != "" && sign != "^" && sign != "=" && sign != "^=") {
      return InvalidArgument(fmt::format("a list that begins with \"{}\", not ^, = or ^=", sign));
    }
    if (signs < word.size()) list.names.push_back(word.substr(signs));
  }
  list.inverted = sign.starts_with('^');
  list.exact = sign.ends_with('=');
  return list;
}

}  // namespace inccl
