// SPDX-License-Identifier: Apache-2.0
//
// Little-endian reading and writing of messages. A reader never reads past its end: a call that would returns false and
// changes nothing.
#ifndef INCCL_BASE_BYTES_H_
#define INCCL_BASE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace inccl {

class ByteWriter {
 public:
  void U8(uint8_t v) { Put(v); }
  void U16(uint16_t v) { Put(v); }
  void U32(uint32_t v) { Put(v); }
  void U64(uint64_t v) { Put(v); }
  void Bytes(std::span<const std::byte> data) {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  // Length (u32), then the characters.
  void String(const std::string& text) {
    U32(static_cast<uint32_t>(text.size()));
    Bytes(std::as_bytes(std::span(text)));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  template <typename T>
  void Put(T v) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : data_(data) {}
  bool U8(uint8_t* v) { return Get(v); }
  bool U16(uint16_t* v) { return Get(v); }
  bool U32(uint32_t* v) { return Get(v); }
  bool U64(uint64_t* v) { return Get(v); }
  bool Bytes(std::span<std::byte> out) {
    if (data_.size() < out.size()) return false;
    std::memcpy(out.data(), data_.data(), out.size());
    data_ = data_.subspan(out.size());
    return true;
  }
  bool String(std::string* text) {
    uint32_t length = 0;
    const std::span<const std::byte> before = data_;
    if (!Get(&length) || data_.size() < length) {
      data_ = before;
      return false;
    }
    text->assign(reinterpret_cast<const char*>(data_.data()), length);
    data_ = data_.subspan(length);
    return true;
  }
  size_t remaining() const { return data_.size(); }

 private:
  template <typename T>
  bool Get(T* v) {
    if (data_.size() < sizeof(T)) return false;
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(data_[i]) << (8 * i);
    *v = static_cast<T>(value);
    data_ = data_.subspan(sizeof(T));
    return true;
  }
  std::span<const std::byte> data_;
};

}  // namespace inccl

#endif  // INCCL_BASE_BYTES_H_
