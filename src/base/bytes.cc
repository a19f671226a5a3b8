// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <cstring>

namespace inccl {

void ByteWriter::Integer(uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void ByteWriter::Raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void ByteWriter::String(std::string_view text) {
  U32(static_cast<uint32_t>(text.size()));
  Raw(std::as_bytes(std::span(text.data(), text.size())));
}

bool ByteReader::Raw(std::span<std::byte> out) {
  if (out.empty()) return ok_;
  const std::byte* data = Take(out.size());
  if (data == nullptr) return false;
  std::memcpy(out.data(), data, out.size());
  return true;
}

bool ByteReader::String(std::string* text, size_t max_length) {
  uint32_t length = 0;
  if (!U32(&length)) return false;
  if (length > max_length || length > bytes_.size()) {
    ok_ = false;
    return false;
  }
  const std::byte* data = Take(length);
  if (length == 0) {
    text->clear();
  } else {
    text->assign(reinterpret_cast<const char*>(data), length);
  }
  return true;
}

}  // namespace inccl
