// SPDX-License-Identifier: Apache-2.0
#include "reduce/bitmap_union.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "reduce/methods.h"

namespace inccl {

InnerCall BitmapUnion::Call(int round) const {
  if (round == 0) {
    return {
        .collective = Collective::kAllToAll, .type = DataType::kUint32, .count = SegmentWords()};
  }
  return {.collective = Collective::kAllGather,
          .type = DataType::kUint32,
          .count = SegmentWords() + extra_};
}

std::span<uint32_t> BitmapUnion::MakeBitmap(std::vector<std::byte>* out) const {
  const std::span<uint32_t> words = ResizeFor<uint32_t>(out, SegmentWords() * ranks_);
  std::fill(words.begin(), words.end(), 0u);
  return words;
}

void BitmapUnion::Merge(std::span<const std::byte> parts) {
  const std::span<const uint32_t> words = ElementsOf<uint32_t>(parts);
  segment_.assign(SegmentWords(), 0u);
  for (size_t i = 0; i < words.size(); ++i) segment_[i % segment_.size()] |= words[i];
}

std::span<uint32_t> BitmapUnion::MakeMerged(std::vector<std::byte>* out) const {
  const std::span<uint32_t> words = ResizeFor<uint32_t>(out, segment_.size() + extra_);
  std::copy(segment_.begin(), segment_.end(), words.begin());
  return words.last(extra_);
}

Status BitmapUnion::Read(std::span<const std::byte> gathered, const char* method,
                         std::vector<uint32_t>* members) const {
  const std::span<const uint32_t> words = ElementsOf<uint32_t>(gathered);
  const size_t segment = SegmentWords();
  members->clear();
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const std::span<const uint32_t> part = words.subspan(rank * (segment + extra_), segment);
    for (size_t i = 0; i < segment; ++i) {
      for (uint32_t bits = part[i]; bits != 0; bits &= bits - 1) {
        const uint64_t bit =
            (rank * segment + i) * 32 + static_cast<uint64_t>(std::countr_zero(bits));
        if (bit >= bits_) {
          return InternalError(
              fmt::format("{}: rank {} sent bit {} of {}", method, rank, bit, bits_));
        }
        members->push_back(static_cast<uint32_t>(bit));
      }
    }
  }
  return Status::Ok();
}

std::span<const uint32_t> BitmapUnion::Extra(std::span<const std::byte> gathered,
                                             size_t rank) const {
  const size_t segment = SegmentWords();
  return ElementsOf<uint32_t>(gathered).subspan(rank * (segment + extra_) + segment, extra_);
}

}  // namespace inccl
