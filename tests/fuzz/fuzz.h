// SPDX-License-Identifier: Apache-2.0
//
// A fuzz target is one function over bytes of another process, and a few well-formed examples
// of them. Every target is built twice: with replay.cc, which runs the examples, the corpus and
// mutations of both, as a plain test; and, with clang and INCCL_FUZZ=ON, with libFuzzer.
#ifndef INCCL_TESTS_FUZZ_FUZZ_H_
#define INCCL_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace inccl::fuzz {

using Data = std::span<const std::byte>;

// Defined by each target.
void Run(Data data);
std::vector<std::vector<std::byte>> Examples();

inline std::vector<std::byte> FromText(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}
inline std::string ToText(Data data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Bytes at the very end of memory of their own, so that a sanitizer sees one too many.
inline std::vector<std::byte> Exact(Data data) {
  std::vector<std::byte> copy(data.begin(), data.end());
  copy.shrink_to_fit();
  return copy;
}

// What must hold whatever the bytes are.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Takes small numbers from the front.
class Input {
 public:
  explicit Input(Data data) : data_(data) {}
  uint8_t Byte() {
    if (data_.empty()) return 0;
    const auto value = std::to_integer<uint8_t>(data_.front());
    data_ = data_.subspan(1);
    return value;
  }
  uint32_t Below(uint32_t limit) { return (Byte() | uint32_t{Byte()} << 8) % limit; }
  Data Take(size_t count) {
    const Data taken = data_.first(std::min(count, data_.size()));
    data_ = data_.subspan(taken.size());
    return taken;
  }
  Data Rest() { return Take(data_.size()); }
  bool empty() const { return data_.empty(); }

 private:
  Data data_;
};

}  // namespace inccl::fuzz

#endif  // INCCL_TESTS_FUZZ_FUZZ_H_
