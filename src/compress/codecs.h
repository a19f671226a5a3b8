// SPDX-License-Identifier: Apache-2.0
//
// The factory functions that codecs.cc lists. Each makes a codec from a specification; errors
// name the key and the value. What a codec does before the first call.
#ifndef INCCL_COMPRESS_CODECS_H_
#define INCCL_COMPRESS_CODECS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "compress/codec.h"

namespace inccl {

// Parses the text of a specification, "name:key=value,...", without knowing its keys: of a codec,
// or of the method of a reducer (reduce/reducer.h). Grammar (docs/format.md): name and keys are
// lower-case letters, digits and '_', starting with a letter; values are letters, digits, '.', '_',
// '+' and '-'. Blanks, empty items and repeated keys are errors.
class CodecSpec {
 public:
  static constexpr size_t kMaxText = 512;
  static constexpr size_t kMaxName = 32;   // of a codec and of a key
  static constexpr size_t kMaxValue = 64;  // bytes of a value

  // A kInvalidArgument shows what is wrong and where. `kind`: what the text specifies, for
  // messages.
  static Result<CodecSpec> Parse(std::string_view text, const char* kind = "codec");

  const std::string& name() const { return name_; }
  // The value of `key`, or nullptr.
  const std::string* Find(std::string_view key) const;

  // Fails at the first key that is not in `keys`, naming key, value and the allowed keys.
  Status AllowOnly(std::span<const std::string_view> keys) const;

  // Typed values; `fallback` if the key is absent. Errors name key, value and the allowed values.
  Result<uint64_t> Integer(std::string_view key, uint64_t fallback, uint64_t low,
                           uint64_t high) const;
  // Eight times a decimal number that is a multiple of 1/8: "5.5" is 44.
  Result<uint64_t> Eighths(std::string_view key, uint64_t fallback8, uint64_t low8,
                           uint64_t high8) const;
  // A decimal number in (0, 1], or the fallback.
  Result<double> Fraction(std::string_view key, double fallback) const;
  // The index of the value in `choices`.
  Result<size_t> Choice(std::string_view key, size_t fallback,
                        std::span<const std::string_view> choices) const;

 private:
  const char* kind_ = "codec";
  std::string name_;
  std::vector<std::pair<std::string, std::string>> items_;
};

// Formats a number of eighths for a canonical specification: 44 is "5.5".
std::string FormatEighths(uint64_t eighths);

using MadeCodec = Result<std::shared_ptr<const Codec>>;

MadeCodec MakeBf16Codec(const CodecSpec& spec);      // wire/wire_codec.cc
MadeCodec MakeFp16Codec(const CodecSpec& spec);      // wire/wire_codec.cc
MadeCodec MakeFp8Codec(const CodecSpec& spec);       // wire/wire_codec.cc
MadeCodec MakeMxfp8Codec(const CodecSpec& spec);     // wire/wire_codec.cc
MadeCodec MakeDitherCodec(const CodecSpec& spec);    // published/dither.cc
MadeCodec MakeOnebitCodec(const CodecSpec& spec);    // published/onebit.cc
MadeCodec MakeLosslessCodec(const CodecSpec& spec);  // lossless/lossless_codec.cc
MadeCodec MakeQsgdCodec(const CodecSpec& spec);      // published/qsgd.cc
MadeCodec MakeQsgdMsCodec(const CodecSpec& spec);    // published/qsgd.cc

// Runs the codec's part of a small all-reduce of at most this many ranks, so that a user's first
// call finds the code and the tables in memory. A codec that refuses such calls, or no memory for
// them, is no error.
void WarmUp(const Codec& codec, int nranks);

}  // namespace inccl

#endif  // INCCL_COMPRESS_CODECS_H_
