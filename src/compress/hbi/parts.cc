// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/parts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>

#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/walker.h"

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

namespace {

constexpr uint32_t kStripSlack = 64;  // bytes behind packed fields that strips read or write
constexpr uint32_t kTogether = 8;     // superblocks whose side words fold_strip computes at once
// Copies of the end of packed sums.
constexpr size_t kCopyBytes = 16384;
constexpr size_t kMostCopies = kCopyBytes / (kMaxPacked + kStripSlack);

// The superblocks that strips take. The slack of all but `last` is that of a superblock with levels
// that follows.
struct Reach {
  uint32_t last = 0;     // the last one with levels
  bool partial = false;  // whether `last` has less than kSuperblock elements
  uint32_t end() const { return last + 1; }
};

std::optional<Reach> ReachOf(const SliceContext& slice) {
  const bool narrow = slice.type == DataType::kFloat16 || slice.type == DataType::kBfloat16;
  if (slice.rotate || (!narrow && slice.type != DataType::kFloat32)) return std::nullopt;
  uint32_t end = slice.superblocks();
  while (end > 0 && slice.planner->points()[slice.points[end - 1]].k == 0) --end;
  if (end == 0) return std::nullopt;
  return Reach{.last = end - 1, .partial = end > slice.count / kSuperblock};
}

const Point& PointOf(const SliceContext& slice, uint32_t s) {
  return slice.planner->points()[slice.points[s]];
}

Strip StripOf(const SliceContext& slice, uint32_t first, uint32_t superblocks,
              const uint8_t* words) {
  return {.points = slice.planner->points().data(),
          .plan = slice.points + first,
          .words = words + size_t{first} * kWordBytes,
          .superblocks = superblocks,
          .type = slice.type,
          .stream = slice.stream};
}

// Kernels::strip_pays, of all superblocks within reach.
bool Pays(const SliceContext& slice, const Reach& reach, const Offsets& offsets,
          uint32_t contributions, uint32_t total) {
  const auto pays = slice.kernels->strip_pays;
  return pays == nullptr ||
         pays(StripOf(slice, 0, reach.end(), slice.words), offsets, contributions, total);
}

uint32_t CounterOf(const SliceContext& slice, uint32_t s) {
  return slice.counter + s * (kSuperblock / 2);
}

// Where the elements of superblock s are; nullptr stays nullptr.
template <typename Byte>
Byte* ElementsAt(const SliceContext& slice, uint32_t s, Byte* elements) {
  return elements == nullptr ? nullptr : elements + size_t{s} * kSuperblock * SizeOf(slice.type);
}

// A whole superblock for the elements of the last, partial one of a slice.
struct Padded {
  explicit Padded(const SliceContext& slice)
      : bytes(slice.count % kSuperblock * SizeOf(slice.type)) {}
  // Copies them and continues them with zeros.
  const std::byte* Of(const std::byte* from) {
    std::memcpy(elements, from, bytes);
    std::memset(elements + bytes, 0, sizeof elements - bytes);
    return elements;
  }

  const size_t bytes;
  alignas(64) std::byte elements[kSuperblock * sizeof(float)];
};

// The side words and packed fields of a few superblocks.
struct Scratch {
  uint8_t words[kTogether * kWordBytes];
  alignas(64) uint8_t packed[kTogether * kMaxPacked + kStripSlack];
};

// True if that many superblocks fit, with slack.
bool HasRoom(const Sink& sink, uint32_t superblocks) {
  return static_cast<size_t>(sink.limit - sink.at) >=
         size_t{superblocks} * kMaxPacked + kStripSlack;
}

// Appends what has been packed to `end`.
void Append(const uint8_t* packed, const uint8_t* end, Sink* sink) {
  std::memcpy(sink->at, packed, static_cast<size_t>(end - packed));
  sink->at += end - packed;
}

// Copies of the ends of packed sums, with slack behind them.
class Copies {
 public:
  // The first superblock to copy: of the last kTogether as many as there is room for.
  static uint32_t First(const SliceContext& slice, const Reach& reach, const StripFold& fold) {
    uint32_t first = reach.last;
    if (reach.partial) return first;
    const size_t sums = fold.packed_sources.size();
    size_t left = kCopyBytes - sums * (BytesOf(slice, first, fold) + kStripSlack);
    while (first % kTogether != 0 && sums * BytesOf(slice, first - 1, fold) <= left) {
      left -= sums * BytesOf(slice, --first, fold);
    }
    return first;
  }

  // Makes them the sources, from superblock `first` on.
  void Take(const SliceContext& slice, uint32_t first, const Reach& reach, StripFold* fold) {
    size_t bytes = 0;
    for (uint32_t s = first; s < reach.end(); ++s) bytes += BytesOf(slice, s, *fold);
    uint8_t* to = packed_;
    size_t sums = 0;
    for (Source& source : fold->packed_sources) {
      std::memcpy(to, source.at, bytes);
      source.at += bytes;
      sources_[sums++] = {.at = to, .contributions = source.contributions};
      to += bytes + kStripSlack;
    }
    fold->packed_sources = std::span(sources_).first(sums);
  }

 private:
  static size_t BytesOf(const SliceContext& slice, uint32_t s, const StripFold& fold) {
    return PackedBytes(Width(fold.contributions, PointOf(slice, s).k));
  }

  std::array<Source, kMostCopies> sources_;
  alignas(64) uint8_t packed_[kCopyBytes];
};

// Sets what FoldStrips folds. False if strips do not take it.
bool SetSources(std::span<Source> sources, StripFold* fold) {
  const auto own = std::find_if(sources.begin(), sources.end(),
                                [](const Source& source) { return source.elements != nullptr; });
  if (own == sources.end() || sources.size() > kMostCopies) return false;
  std::rotate(own, own + 1, sources.end());
  fold->packed_sources = sources.first(sources.size() - 1);
  fold->own = sources.back().elements;
  fold->total = 1;
  for (const Source& source : fold->packed_sources) {
    if (source.elements != nullptr) return false;
    if (source.contributions != fold->packed_sources[0].contributions) return false;
    fold->contributions = source.contributions;
    fold->total += source.contributions;
  }
  return true;
}

}  // namespace

uint32_t EncodeStrips(const SliceContext& slice, const std::byte* elements, Sink* sum) {
  const std::optional<Reach> reach = ReachOf(slice);
  if (slice.kernels->encode_strip == nullptr || !reach) return 0;
  if (!Pays(slice, *reach, slice.nearest ? Offsets() : slice.offsets, 1, 1)) return 0;
  const auto encode = [&](uint32_t first, uint32_t count, const std::byte* x, uint8_t* out) {
    return slice.kernels->encode_strip(StripOf(slice, first, count, slice.words), x,
                                       CounterOf(slice, first), slice.offsets, slice.nearest, out);
  };
  const uint32_t last = reach->last;
  if (!reach->partial && HasRoom(*sum, reach->end())) {
    sum->at = encode(0, reach->end(), elements, sum->at);
    return reach->end();
  }
  sum->at = encode(0, last, elements, sum->at);
  Padded padded(slice);
  const std::byte* x = ElementsAt(slice, last, elements);
  if (reach->partial) x = padded.Of(x);
  Scratch scratch;
  Append(scratch.packed, encode(last, 1, x, scratch.packed), sum);
  return reach->end();
}

uint32_t FoldStrips(const SliceContext& slice, std::span<Source> sources, uint8_t* result_words,
                    Sink* result, std::byte* elements) {
  const std::optional<Reach> reach = ReachOf(slice);
  StripFold fold;
  fold.offsets = slice.offsets;
  fold.average = slice.average;
  if (slice.kernels->fold_strip == nullptr || !reach || !SetSources(sources, &fold)) return 0;
  if (!Pays(slice, *reach, slice.offsets, fold.contributions, fold.total)) return 0;
  const std::byte* const own = fold.own;
  Scratch scratch;
  uint32_t s = 0;  // the next superblock
  const auto fold_next = [&](uint32_t count, bool copied) {
    const bool direct = result->at != nullptr && (!copied || HasRoom(*result, count));
    fold.counter = CounterOf(slice, s);
    fold.words = result->at != nullptr ? result_words + size_t{s} * kWordBytes : scratch.words;
    fold.packed = direct ? result->at : scratch.packed;
    slice.kernels->fold_strip(StripOf(slice, s, count, slice.words), &fold);
    if (direct) {
      result->at = fold.packed;
    } else if (result->at != nullptr) {
      Append(scratch.packed, fold.packed, result);
    }
    s += count;
  };
  const uint32_t copied = Copies::First(slice, *reach, fold);
  while (s < copied) {
    fold.own = ElementsAt(slice, s, own);
    fold.elements = ElementsAt(slice, s, elements);
    fold_next(result->at != nullptr ? copied : std::min(copied - s, kTogether), false);
  }
  Copies copies;
  copies.Take(slice, s, *reach, &fold);
  Padded in(slice), out(slice);
  fold.own = ElementsAt(slice, s, own);
  fold.elements = ElementsAt(slice, s, elements);
  std::byte* const last = fold.elements;
  if (reach->partial) fold.own = in.Of(fold.own);
  if (reach->partial && last != nullptr) fold.elements = out.elements;
  fold_next(reach->end() - s, true);
  if (fold.elements != last) std::memcpy(last, out.elements, out.bytes);
  return reach->end();
}

uint32_t DecodeStrips(const SliceContext& slice, const uint8_t* words, Source* source,
                      std::byte* elements) {
  const std::optional<Reach> reach = ReachOf(slice);
  if (slice.kernels->decode_strip == nullptr || !reach) return 0;
  const bool sums = !slice.planner->requantizes();
  const auto decode = [&](uint32_t first, uint32_t count, const uint8_t* in, std::byte* y) {
    return slice.kernels->decode_strip(StripOf(slice, first, count, words),
                                       {.result = !sums,
                                        .contributions = slice.planner->contributions(),
                                        .average = slice.average,
                                        .agreed = slice.words + size_t{first} * kWordBytes},
                                       in, y);
  };
  const uint32_t last = reach->last;
  source->at = decode(0, last, source->at, elements);
  const Point& point = PointOf(slice, last);
  const size_t bytes = PackedBytes(sums ? point.sum_width : point.result_width);
  uint8_t copy[kMaxPacked + kStripSlack];
  std::memcpy(copy, source->at, bytes);
  source->at += bytes;
  Padded out(slice);
  std::byte* const to = ElementsAt(slice, last, elements);
  decode(last, 1, copy, reach->partial ? out.elements : to);
  if (reach->partial) std::memcpy(to, out.elements, out.bytes);
  return reach->end();
}

}  // namespace inccl::hbi
