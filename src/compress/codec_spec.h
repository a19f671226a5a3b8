// SPDX-License-Identifier: Apache-2.0
//
// The text of a codec specification, "name:key=value,...", before anybody knows what its keys mean.
// Grammar (docs/format.md): name and keys are lower-case letters, digits and '_', starting with a
// letter; values are letters, digits, '.', '_', '+' and '-'. No blanks, no empty items, no key
// twice.
#ifndef INCCL_COMPRESS_CODEC_SPEC_H_
#define INCCL_COMPRESS_CODEC_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace inccl {

class CodecSpec {
 public:
  static constexpr size_t kMaxText = 512;
  static constexpr size_t kMaxName = 32;   // of a codec and of a key
  static constexpr size_t kMaxValue = 64;  // bytes of a value

  // kInvalidArgument that shows what is wrong and where.
  static Result<CodecSpec> Parse(std::string_view text);

  const std::string& name() const { return name_; }
  // The value of `key`, or null.
  const std::string* Find(std::string_view key) const;

  // An error for the first key that is not in `keys`; it names key, value and the keys there are.
  Status AllowOnly(std::span<const std::string_view> keys) const;

  // Typed values; `fallback` where the key is absent. Errors name key, value and what is allowed.
  Result<uint64_t> Integer(std::string_view key, uint64_t fallback, uint64_t low,
                           uint64_t high) const;
  // A decimal number in whole eighths, times 8: "5.5" is 44.
  Result<uint64_t> Eighths(std::string_view key, uint64_t fallback8, uint64_t low8,
                           uint64_t high8) const;
  // The index of the value in `choices`.
  Result<size_t> Choice(std::string_view key, size_t fallback,
                        std::span<const std::string_view> choices) const;

 private:
  std::string name_;
  std::vector<std::pair<std::string, std::string>> items_;
};

// A number of eighths as it stands in a canonical spec: 44 is "5.5".
std::string FormatEighths(uint64_t eighths);

}  // namespace inccl

#endif  // INCCL_COMPRESS_CODEC_SPEC_H_
