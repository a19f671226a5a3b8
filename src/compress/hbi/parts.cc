// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/parts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

// The smallest parts that pay, in superblocks times packed or own inputs (docs/threads.md).
constexpr uint64_t kLeastFold = 32;
constexpr uint64_t kLeastDecode = 32;
// Likewise for side words, in words; to compute one takes as long as to merge many.
constexpr uint64_t kLeastWords = 1024;
constexpr uint64_t kWordsPerRead = 16;

// Superblocks [begin, end) of a slice.
struct Part {
  uint32_t begin, end;
};

Part PartAt(uint32_t superblocks, uint32_t i, uint32_t parts) {
  const auto bound = [&](uint32_t at) {
    return static_cast<uint32_t>(uint64_t{superblocks} * at / parts);
  };
  return {bound(i), bound(i + 1)};
}

SliceContext SliceOf(const SliceContext& slice, const Part& part) {
  SliceContext own = slice;
  const uint32_t hashes = part.begin * (kSuperblock / 2);
  own.counter += hashes;
  own.result_counter += hashes;
  own.sign_counter += hashes;
  own.group_counter += hashes;
  own.count = std::min(slice.count, part.end * kSuperblock) - part.begin * kSuperblock;
  own.words += size_t{part.begin} * kWordBytes;
  own.points += part.begin;
  return own;
}

Extent ElementsOf(const SliceContext& slice, const Part& part) {
  const size_t size = SizeOf(slice.type);
  const size_t end = std::min<size_t>(slice.count, size_t{part.end} * kSuperblock);
  return {size_t{part.begin} * kSuperblock * size, end * size};
}

Extent WordsOf(const Part& part) {
  return {size_t{part.begin} * kWordBytes, size_t{part.end} * kWordBytes};
}

// How often each point occurs in front of a part, and in it: these give the place of the part in
// any payload.
class PointCounts {
 public:
  PointCounts(const SliceContext& slice, const Part& part) : points_(slice.planner->points()) {
    for (uint32_t s = 0; s < part.begin; ++s) ++before_[slice.points[s]];
    for (uint32_t s = part.begin; s < part.end; ++s) ++within_[slice.points[s]];
  }

  Extent Sum(uint32_t contributions) const {
    return Of([=](const Point& point) { return PackedBytes(Width(contributions, point.k)); });
  }
  // The fields of a second quantization, which follow `words` side words.
  Extent Fields(uint32_t words) const {
    Extent fields = Of([](const Point& point) { return PackedBytes(Width(1, point.k2)); });
    fields.begin += size_t{words} * kWordBytes;
    fields.end += size_t{words} * kWordBytes;
    return fields;
  }

 private:
  template <typename BytesOf>
  Extent Of(BytesOf bytes_of) const {
    Extent extent;
    for (size_t p = 0; p < points_.size(); ++p) {
      const size_t bytes = bytes_of(points_[p]);
      extent.begin += before_[p] * bytes;
      extent.end += within_[p] * bytes;
    }
    extent.end += extent.begin;
    return extent;
  }

  const std::span<const Point> points_;
  std::array<uint32_t, 256> before_{}, within_{};
};

// Where a part of a sink ends. Behind the last part there may be room that kernels use.
Sink Within(const Sink& sink, const Extent& extent, bool last) {
  if (sink.at == nullptr) return {};
  return {sink.at + extent.begin, last ? sink.limit : sink.at + extent.end};
}

// The sources from the beginning of a part on.
void Advance(std::span<Source> sources, const Extent& elements, const PointCounts& counts) {
  uint32_t known = 0;  // number of contributions that `at` is for
  size_t at = 0;
  for (Source& source : sources) {
    if (source.elements != nullptr) {
      source.elements += elements.begin;
      continue;
    }
    if (source.contributions != known) at = counts.Sum(source.contributions).begin;
    known = source.contributions;
    source.at += at;
  }
}

}  // namespace

bool FoldParts(Team* team, const SliceContext& slice, std::span<const Source> sources,
               const SliceOutputs& outputs, std::vector<Source>* scratch,
               const std::function<void(const PartExtents&)>& made) {
  const uint32_t superblocks = slice.superblocks();
  const uint32_t parts =
      std::min(superblocks, team->PartsOf(superblocks * sources.size(), kLeastFold));
  if (parts <= 1) return false;
  scratch->resize(sources.size() * parts);
  uint32_t contributions = 0;
  for (const Source& source : sources) contributions += source.contributions;
  team->Run(parts, [&](uint32_t i) noexcept {
    const Part part = PartAt(slice.superblocks(), i, parts);
    const bool last = i + 1 == parts;
    const PointCounts counts(slice, part);
    const PartExtents extents{.sum = counts.Sum(contributions),
                              .words = WordsOf(part),
                              .fields = counts.Fields(superblocks),
                              .elements = ElementsOf(slice, part)};
    const std::span<Source> own{scratch->data() + i * sources.size(), sources.size()};
    std::copy(sources.begin(), sources.end(), own.begin());
    Advance(own, extents.elements, counts);
    SliceOutputs places{.sum = Within(outputs.sum, extents.sum, last),
                        .result = Within(outputs.result, extents.fields, last)};
    if (outputs.result.at != nullptr) places.result_words = outputs.result.at + extents.words.begin;
    if (outputs.elements != nullptr) places.elements = outputs.elements + extents.elements.begin;
    FoldSlice(SliceOf(slice, part), own, places);
    made(extents);
  });
  return true;
}

void DecodeParts(Team* team, const SliceContext& slice, const uint8_t* payload,
                 std::byte* elements) {
  const uint32_t parts = team->PartsOf(slice.superblocks(), kLeastDecode);
  if (parts <= 1) return DecodeResult(slice, payload, elements);
  const uint8_t* const end = payload + ResultBytes(slice);
  const bool requantizes = slice.planner->requantizes();
  const uint32_t contributions = slice.planner->contributions();
  team->Run(parts, [&](uint32_t i) noexcept {
    const Part part = PartAt(slice.superblocks(), i, parts);
    const PointCounts counts(slice, part);
    const Extent fields =
        requantizes ? counts.Fields(slice.superblocks()) : counts.Sum(contributions);
    DecodeFields(SliceOf(slice, part), payload + WordsOf(part).begin,
                 {.at = payload + fields.begin, .end = end},
                 elements + ElementsOf(slice, part).begin);
  });
}

bool FoldWordsParts(Team* team, const SliceContext& slice, std::span<const Term> inputs,
                    const uint8_t* own_words, uint8_t* words) {
  const uint32_t superblocks = slice.superblocks();
  const bool reads =
      own_words == nullptr && std::any_of(inputs.begin(), inputs.end(), [](const Term& input) {
        return input.format.form == Form::kInput;
      });
  const uint32_t parts =
      team->PartsOf(reads ? superblocks * kWordsPerRead : superblocks * inputs.size(), kLeastWords);
  std::atomic<bool> valid{true};
  team->Run(parts, [&](uint32_t i) noexcept {
    const Part part = PartAt(slice.superblocks(), i, parts);
    const SliceContext own = SliceOf(slice, part);
    const Extent extent = WordsOf(part);
    uint8_t* const to = words + extent.begin;
    bool first = own_words != words;
    for (const Term& input : inputs) {
      const bool elements = input.format.form == Form::kInput;
      if (elements && own_words == words) continue;
      const uint8_t* const from =
          (elements ? own_words : reinterpret_cast<const uint8_t*>(input.data));
      if (elements && own_words == nullptr) {
        FoldOwnWords(own, input.data + ElementsOf(slice, part).begin, first, to);
      } else if (first) {
        std::memmove(to, from + extent.begin, extent.end - extent.begin);
      } else {
        slice.kernels->merge_words(from + extent.begin, own.superblocks(), to);
      }
      first = false;
    }
    if (!AreValid(to, own.superblocks())) valid.store(false, std::memory_order_relaxed);
  });
  return valid.load(std::memory_order_relaxed);
}

bool AreValidParts(Team* team, const uint8_t* words, uint32_t superblocks) {
  const uint32_t parts = team->PartsOf(superblocks, kLeastWords);
  std::atomic<bool> valid{true};
  team->Run(parts, [&](uint32_t i) noexcept {
    const Part part = PartAt(superblocks, i, parts);
    if (!AreValid(words + WordsOf(part).begin, part.end - part.begin)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid.load(std::memory_order_relaxed);
}

}  // namespace inccl::hbi
