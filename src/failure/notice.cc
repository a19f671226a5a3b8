// SPDX-License-Identifier: Apache-2.0
#include "failure/notice.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/escaped.h"

namespace inccl {
namespace {

bool IsFatal(uint32_t code) {
  return code >= 1 && code <= static_cast<uint32_t>(Code::kTimeout) &&
         code != static_cast<uint32_t>(Code::kInvalidArgument) &&
         code != static_cast<uint32_t>(Code::kInProgress);
}

}  // namespace

// The layout is ByteWriter's: U32 code, then a string.
size_t WriteNotice(const Status& error, std::span<std::byte> body) {
  const auto put = [&](size_t at, size_t value) {
    for (size_t i = 0; i < 4; ++i) body[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  constexpr size_t kText = 8;
  const std::string_view text = std::string_view(error.message()).substr(0, body.size() - kText);
  put(0, static_cast<size_t>(error.code()));
  put(4, text.size());
  std::memcpy(body.data() + kText, text.data(), text.size());
  return kText + text.size();
}

Status ReadNotice(std::span<const std::byte> body) {
  ByteReader reader(body);
  uint32_t code = 0;
  std::string text;
  if (!reader.U32(&code) || !reader.String(&text) || !IsFatal(code)) return Status::Ok();
  return {static_cast<Code>(code), Escaped(text)};
}

}  // namespace inccl
