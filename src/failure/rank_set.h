// SPDX-License-Identifier: Apache-2.0
//
// A set of ranks of a communicator of any size.
#ifndef INCCL_FAILURE_RANK_SET_H_
#define INCCL_FAILURE_RANK_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace inccl {

// Two sets that meet in |=, == or a message are of communicators of the same size.
class RankSet {
 public:
  RankSet() = default;  // of no ranks
  explicit RankSet(int nranks)
      : nranks_(nranks), words_((static_cast<size_t>(nranks) + kBits - 1) / kBits) {}

  int nranks() const { return nranks_; }
  bool Contains(int rank) const {
    return (words_[static_cast<size_t>(rank) / kBits] >> static_cast<size_t>(rank) % kBits & 1) !=
           0;
  }
  void Add(int rank) {
    words_[static_cast<size_t>(rank) / kBits] |= uint64_t{1} << static_cast<size_t>(rank) % kBits;
  }
  RankSet& operator|=(const RankSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  friend bool operator==(const RankSet&, const RankSet&) = default;

  // Writes ceil(nranks / 8) bytes; bit r % 8 of byte r / 8 stands for rank r.
  void Encode(ByteWriter* writer) const {
    for (size_t i = 0; i < Bytes(); ++i) {
      writer->U8(static_cast<uint8_t>(words_[i / 8] >> i % 8 * 8));
    }
  }
  // Reads such bytes into *this, whose size says how many there are. Returns false if there are
  // fewer, or if a bit stands for no rank; *this is then unspecified.
  bool Decode(ByteReader* reader) {
    words_.assign(words_.size(), 0);
    for (size_t i = 0; i < Bytes(); ++i) {
      uint8_t byte = 0;
      if (!reader->U8(&byte)) return false;
      words_[i / 8] |= uint64_t{byte} << i % 8 * 8;
    }
    const size_t used = static_cast<size_t>(nranks_) % kBits;
    return used == 0 || words_.back() >> used == 0;
  }

 private:
  static constexpr size_t kBits = 64;
  size_t Bytes() const { return (static_cast<size_t>(nranks_) + 7) / 8; }

  int nranks_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace inccl

#endif  // INCCL_FAILURE_RANK_SET_H_
