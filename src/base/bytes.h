// SPDX-License-Identifier: Apache-2.0
//
// Little-endian reading and writing of byte strings. The reader is safe for untrusted bytes: it
// checks every length against the remaining bytes without overflow, and stays failed after the
// first failure.
#ifndef INCCL_BASE_BYTES_H_
#define INCCL_BASE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inccl {

class ByteWriter {
 public:
  void U8(uint8_t value) { Integer(value, 1); }
  void U16(uint16_t value) { Integer(value, 2); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }
  void Raw(std::span<const std::byte> bytes);
  // Writes a u32 length, then the bytes.
  void String(std::string_view text);

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void Integer(uint64_t value, int width);

  std::vector<std::byte> bytes_;
};

// Refers to the bytes, which outlive it. A read that does not fit the remaining bytes returns false
// and leaves its result unchanged.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool U8(uint8_t* value) { return Integer(value); }
  bool U16(uint16_t* value) { return Integer(value); }
  bool U32(uint32_t* value) { return Integer(value); }
  bool U64(uint64_t* value) { return Integer(value); }
  // Reads exactly out.size() bytes.
  bool Raw(std::span<std::byte> out);
  // Reads what ByteWriter::String wrote; also returns false if it is longer than `max_length`.
  // Allocates no more than the remaining bytes.
  bool String(std::string* text, size_t max_length = std::numeric_limits<size_t>::max());
  bool Skip(size_t count) { return Take(count) != nullptr || (count == 0 && ok_); }

  bool ok() const { return ok_; }
  size_t remaining() const { return ok_ ? bytes_.size() : 0; }

 private:
  // The next `count` bytes; nullptr if there are fewer or if count is 0.
  const std::byte* Take(size_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* data = bytes_.data();
    bytes_ = bytes_.subspan(count);
    return count == 0 ? nullptr : data;
  }

  template <typename T>
  bool Integer(T* value) {
    const std::byte* data = Take(sizeof(T));
    if (data == nullptr) return false;
    uint64_t result = 0;
    for (size_t i = 0; i < sizeof(T); ++i) result |= std::to_integer<uint64_t>(data[i]) << (8 * i);
    *value = static_cast<T>(result);
    return true;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace inccl

#endif  // INCCL_BASE_BYTES_H_
