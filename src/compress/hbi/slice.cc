// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "compress/checked_state.h"
#include "compress/hbi/parts.h"
#include "compress/hbi/walker.h"

namespace inccl::hbi {

void PutChecksum(std::byte* payload, uint64_t bytes) {
  const uint32_t crc = Crc32c({payload, bytes});
  static_assert(sizeof crc == kChecksumBytes);
  std::memcpy(payload + bytes, &crc, sizeof crc);
}

Status VerifyChecksum(const std::byte* payload, uint64_t bytes, const char* what,
                      const Range& range, int rank) {
  uint32_t carried;
  std::memcpy(&carried, payload + bytes, sizeof carried);
  const uint32_t found = Crc32c({payload, bytes});
  if (carried == found) return Status::Ok();
  return InternalError(fmt::format(
      "hbi: checksum of a {} payload of {} bytes, elements {} to {} of segment {}, at rank {}: it "
      "carries {:08x}, its bytes have {:08x}; it was damaged on its way",
      what, bytes, range.first, range.first + range.count, range.segment, rank, carried, found));
}

Status CheckCapacity(const Term& term, uint64_t needed) {
  if (term.bytes >= needed) return Status::Ok();
  return InternalError(fmt::format("hbi: room for {} bytes of {} where {} are needed", term.bytes,
                                   Name(term.format.form), needed));
}

namespace {

// Sums with a fused kernel that needs no tile.
enum class Fused : uint8_t { kNone, kEncode, kAddOwn, kAddPacked };

Fused FusedWay(std::span<const Source> sources) {
  size_t own = 0;
  for (const Source& source : sources) own += source.elements != nullptr ? 1 : 0;
  if (sources.size() == 1 && own == 1) return Fused::kEncode;
  if (sources.size() == 2 && own == 1) return Fused::kAddOwn;
  if (sources.size() == 2 && own == 0) return Fused::kAddPacked;
  return Fused::kNone;
}

// Encodes own elements of up to `run` superblocks from s on, added to a packed sum if `packed` is
// not nullptr. Returns the number of superblocks done.
uint32_t EncodeRun(const Kernels& kernels, Walker* walker, uint32_t s, uint32_t run,
                   const Source& own, Source* packed, uint32_t width, Sink* sink) {
  const Point& point = walker->PointOf(s);
  const uint32_t in_width = packed == nullptr ? 0 : Width(packed->contributions, point.k);
  run = walker->AtOnce(s, run);
  run = Walker::Within(sink->limit - sink->at, width, kWriteSlack, run);
  if (packed != nullptr) {
    run = Walker::Within(packed->end - packed->at, in_width, kReadSlack, run);
  }
  const QuantizeArgs args = walker->Own(s, own.elements, point, run);
  uint8_t* out = walker->Room(*sink, width, run);
  if (packed == nullptr) {
    kernels.encode(args, width, out);
  } else {
    kernels.add_encode(args, walker->Take(packed, in_width, run), in_width, width, out);
  }
  walker->Put(out, width, sink, run);
  return run;
}

// Makes the packed sum of all sources by `way`. Returns false if widths grow, which needs a tile.
bool FoldFused(const Kernels& kernels, Walker* walker, Fused way, uint32_t s,
               std::span<Source> sources, uint32_t width, Sink* sink, uint32_t* done) {
  if (way == Fused::kNone) return false;
  const uint32_t run = way == Fused::kAddPacked ? walker->Run(s) : walker->Run(s, walker->most());
  if (way == Fused::kAddPacked) {
    const uint32_t k = walker->PointOf(s).k;
    if (Width(sources[0].contributions, k) != width ||
        Width(sources[1].contributions, k) != width) {
      return false;
    }
    const size_t bytes = size_t{run} * PackedBytes(width);
    AddPacked(sources[0].at, sources[1].at, bytes / 8, width, sink->at);
    for (Source& source : sources) source.at += bytes;
    sink->at += bytes;
    *done = run;
    return true;
  }
  const size_t own = sources[0].elements != nullptr ? 0 : 1;
  Source* packed = way == Fused::kAddOwn ? &sources[1 - own] : nullptr;
  *done = EncodeRun(kernels, walker, s, run, sources[own], packed, width, sink);
  return true;
}

// The bytes of all superblocks. `bytes_of` tells those of a superblock of a point.
template <typename BytesOf>
uint64_t BytesByPoint(const SliceContext& slice, BytesOf bytes_of) {
  const std::span<const Point> points = slice.planner->points();
  uint64_t bytes = 0;
  if (slice.superblocks() <= points.size()) {
    for (uint32_t s = 0; s < slice.superblocks(); ++s) bytes += bytes_of(points[slice.points[s]]);
    return bytes;
  }
  std::array<uint16_t, 256> table;
  for (size_t p = 0; p < points.size(); ++p) table[p] = static_cast<uint16_t>(bytes_of(points[p]));
  for (uint32_t s = 0; s < slice.superblocks(); ++s) bytes += table[slice.points[s]];
  return bytes;
}

bool IsNarrow(DataType type) { return type == DataType::kFloat16 || type == DataType::kBfloat16; }

}  // namespace

uint64_t SumBytes(const SliceContext& slice, uint32_t contributions) {
  return BytesByPoint(
      slice, [=](const Point& point) { return PackedBytes(Width(contributions, point.k)); });
}

uint64_t ResultBytes(const SliceContext& slice) {
  if (!slice.planner->requantizes()) return SumBytes(slice, slice.planner->contributions());
  return BytesByPoint(
      slice, [](const Point& point) { return kWordBytes + PackedBytes(Width(1, point.k2)); });
}

void FoldSlice(const SliceContext& slice, std::span<Source> sources, const SliceOutputs& outputs) {
  const Kernels& kernels = *slice.kernels;
  Sink sum = outputs.sum, result = outputs.result;
  uint8_t* result_words = outputs.result_words;
  if (result.at != nullptr && result_words == nullptr) {
    result_words = result.at;
    result.at += size_t{slice.superblocks()} * kWordBytes;
  }
  const bool sum_only = result.at == nullptr && outputs.elements == nullptr;
  const Fused way = sum_only && !slice.nearest ? FusedWay(sources) : Fused::kNone;
  const bool requant = slice.planner->requantizes();
  uint32_t contributions = 0;
  for (const Source& source : sources) contributions += source.contributions;
  uint8_t local_words[kAtOnce * kWordBytes];
  uint32_t begun = 0;  // superblocks that strips have done
  if (sum_only && FusedWay(sources) == Fused::kEncode) {
    begun = EncodeStrips(slice, sources[0].elements, &sum);
  } else if (requant && !slice.unbiased && !slice.nearest && sum.at == nullptr) {
    begun = FoldStrips(slice, sources, result_words, &result, outputs.elements);
  }
  if (begun == slice.superblocks()) return;
  Walker walker(slice);
  for (uint32_t s = begun, done = 1; s < slice.superblocks(); s += done) {
    done = 1;
    const Point& point = walker.PointOf(s);
    const uint32_t width = Width(contributions, point.k);
    uint8_t* own_words = result_words != nullptr ? result_words + size_t{s} * kWordBytes : nullptr;
    if (point.k == 0) {
      if (own_words != nullptr) StoreWord(kZeroWord, own_words, 0);
      if (outputs.elements != nullptr) walker.PutUncoded(s, outputs.elements);
      continue;
    }
    if (FoldFused(kernels, &walker, way, s, sources, width, &sum, &done)) continue;
    done = walker.Run(s, kAtOnce);
    FoldTile(slice, &walker, s, done, point, sources);
    if (sum.at != nullptr) PackTile(slice, &walker, width, done, &sum);
    if (sum_only) continue;
    DecodeArgs decode{.words = walker.Words(s),
                      .step = point.sum->step,
                      .zero = contributions * point.k,
                      .superblocks = done};
    if (requant) {
      if (own_words == nullptr) own_words = local_words;
      RequantizeTile(slice, &walker, s, point, decode, own_words);
      decode.words = own_words;
      decode.zero = point.k2;
    }
    const LevelTable& table = requant ? *point.result : *point.sum;
    decode.step = slice.average ? table.average : table.step;
    PutResult(slice, &walker, s, point, decode, &result, outputs.elements);
  }
}

void DecodeResult(const SliceContext& slice, const uint8_t* payload, std::byte* elements) {
  const bool sums = !slice.planner->requantizes();
  const size_t words_bytes = sums ? 0 : size_t{slice.superblocks()} * kWordBytes;
  DecodeFields(slice, payload, {.at = payload + words_bytes, .end = payload + ResultBytes(slice)},
               elements);
}

void DecodeFields(const SliceContext& slice, const uint8_t* result_words, Source source,
                  std::byte* elements) {
  const bool sums = !slice.planner->requantizes();
  const uint32_t contributions = slice.planner->contributions();
  const uint32_t begun = DecodeStrips(slice, sums ? slice.words : result_words, &source, elements);
  if (begun == slice.superblocks()) return;
  Walker walker(slice);
  for (uint32_t s = begun, run = 1; s < slice.superblocks(); s += run) {
    const Point& point = walker.PointOf(s);
    const uint8_t* words = sums ? walker.Words(s) : result_words + size_t{s} * kWordBytes;
    run = 1;
    if (point.k == 0) {
      walker.PutUncoded(s, elements);
      continue;
    }
    const LevelTable& table = sums ? *point.sum : *point.result;
    const uint32_t width = sums ? Width(contributions, point.k) : Width(1, point.k2);
    float* y = walker.ElementRoom(s, elements);
    run = Walker::Within(source.end - source.at, width, kReadSlack,
                         walker.AtOnce(s, walker.Run(s, walker.most())));
    slice.kernels->unpack_decode({.words = words,
                                  .step = slice.average ? table.average : table.step,
                                  .zero = sums ? contributions * point.k : point.k2,
                                  .superblocks = run},
                                 walker.Take(&source, width, run), width, y);
    walker.PutElements(s, y, elements, run);
  }
}

void FoldOwnWords(const SliceContext& slice, const std::byte* elements, bool first,
                  uint8_t* words) {
  constexpr uint32_t kInPlaceAtOnce = 64;
  uint8_t own[kInPlaceAtOnce * kWordBytes];
  Walker walker(slice);
  const uint32_t in_place = slice.rotate ? 0 : slice.count / kSuperblock;
  for (uint32_t s = 0, run = 0; s < slice.superblocks(); s += run) {
    uint8_t* const mine = words + size_t{s} * kWordBytes;
    uint8_t* const to = first ? mine : own;
    const std::byte* const x = elements + size_t{s} * kSuperblock * SizeOf(slice.type);
    run = s < in_place ? std::min(in_place - s, kInPlaceAtOnce) : 0;
    if (run != 0 && slice.type == DataType::kFloat32) {
      slice.kernels->side_words(reinterpret_cast<const float*>(x), run, 1.0f, to);
    } else if (run != 0 && IsNarrow(slice.type)) {
      slice.kernels->side_words_narrow(reinterpret_cast<const uint16_t*>(x), slice.type, run, to);
    } else {
      for (run = 0; run < std::min(slice.superblocks() - s, kAtOnce); ++run) {
        walker.Read(s + run, elements, walker.many() + size_t{run} * kSuperblock);
      }
      slice.kernels->side_words(walker.many(), run, 1.0f, to);
    }
    if (!first) slice.kernels->merge_words(own, run, mine);
  }
}

void OwnValues(const SliceContext& slice, const std::byte* elements, float* values) {
  SliceContext decoded = slice;
  decoded.type = DataType::kFloat32;
  Walker reader(slice), writer(decoded);
  auto* const out = reinterpret_cast<std::byte*>(values);
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = reader.PointOf(s);
    if (point.k == 0) {
      std::fill_n(values + size_t{s} * kSuperblock, reader.Count(s), 0.0f);
      continue;
    }
    Source own{.elements = elements};
    FoldTile(slice, &reader, s, 1, point, {&own, 1});
    float* y = writer.ElementRoom(s, out);
    slice.kernels->decode({.words = reader.Words(s), .step = point.sum->step, .zero = point.k},
                          reader.tile(), y);
    writer.PutElements(s, y, out);
  }
}

namespace {

// The side words that a payload begins with, and what follows them; null where it is not wanted.
struct CodedSink {
  uint8_t* words = nullptr;
  Sink fields;
};

CodedSink Split(const SliceContext& slice, const Sink& sink) {
  CodedSink split{nullptr, sink};
  if (sink.at == nullptr) return split;
  split.words = sink.at;
  split.fields.at += size_t{slice.superblocks()} * kWordBytes;
  return split;
}

// The end of a superblock: y, the sum of all ranks, is quantized for the result.
class Finish {
 public:
  Finish(const SliceContext& slice, const SliceOutputs& outputs)
      : slice_(slice), result_(Split(slice, outputs.result)), elements_(outputs.elements) {}

  bool wanted() const { return result_.words != nullptr || elements_ != nullptr; }
  void Uncoded(Walker* walker, uint32_t s) {
    if (result_.words != nullptr) StoreWord(kZeroWord, result_.words, s);
    if (elements_ != nullptr) walker->PutUncoded(s, elements_);
  }
  void Put(Walker* walker, uint32_t s, const Point& point, float* y) {
    uint8_t local[kWordBytes];
    uint8_t* word = result_.words != nullptr ? result_.words + size_t{s} * kWordBytes : local;
    slice_.kernels->side_words(y, 1, point.result->own, word);
    RequantizeValues(slice_, ResultRounding(slice_, s, point), y, word, walker->tile());
    const DecodeArgs decode{.words = word,
                            .step = slice_.average ? point.result->average : point.result->step,
                            .zero = point.k2};
    PutResult(slice_, walker, s, point, decode, &result_.fields, elements_);
  }

 private:
  const SliceContext& slice_;
  CodedSink result_;
  std::byte* elements_;
};

// The groups of one superblock that has levels.
class GroupFold {
 public:
  explicit GroupFold(const SliceContext& slice) : slice_(slice) {}

  // Quantizes the group's sum on its own scales: fields in the tile, scales in `word`.
  void Requantize(Walker* walker, uint32_t s, const Point& point, Group* group, uint8_t* word) {
    FoldTile(slice_, walker, s, 1, point, group->members);
    Decode(walker, s, point, *group, y_);
    RequantizeGroup(walker, s, point, *group, y_, word);
  }
  // Adds all groups, in order.
  float* Sum(Walker* walker, uint32_t s, const Point& point, std::span<Group> groups) {
    bool first = true;
    for (Group& group : groups) {
      float* to = first ? y_ : more_;
      Value(walker, s, point, &group, to);
      for (uint32_t e = 0; e < kSuperblock && !first; ++e) y_[e] += more_[e];
      first = false;
    }
    return y_;
  }

 private:
  QuantizeArgs Rounding(uint32_t s, const Point& point, const Group& group) const {
    return {.factor = point.result->factor,
            .k = point.k2,
            .counter = slice_.group_counter + s * (kSuperblock / 2),
            .offsets = {.add = group.shift}};
  }
  // On scales that are no finer than the agreed ones.
  void RequantizeGroup(Walker* walker, uint32_t s, const Point& point, const Group& group, float* y,
                       uint8_t* word) const {
    slice_.kernels->side_words(y, 1, point.result->own, word);
    slice_.kernels->merge_words(walker->Words(s), 1, word);
    RequantizeValues(slice_, Rounding(s, point, group), y, word, walker->tile());
  }
  void Decode(Walker* walker, uint32_t s, const Point& point, const Group& group, float* y) const {
    const auto members = static_cast<uint32_t>(group.members.size());
    slice_.kernels->decode(
        {.words = walker->Words(s), .step = point.sum->step, .zero = members * point.k},
        walker->tile(), y);
  }
  // The value of a group after quantization, no matter which rank has summed it.
  void Value(Walker* walker, uint32_t s, const Point& point, Group* group, float* y) {
    const Kernels& kernels = *slice_.kernels;
    DecodeArgs decode{.step = point.result->step, .zero = point.k2};
    if (group->members.empty()) {
      decode.words = group->words + size_t{s} * kWordBytes;
      const uint32_t width = Width(1, point.k2);
      kernels.unpack_decode(decode, walker->Take(&group->sum, width), width, y);
      return;
    }
    FoldTile(slice_, walker, s, 1, point, group->members);
    Decode(walker, s, point, *group, y);
    if (group->members.size() == 1) return;
    uint8_t word[kWordBytes];
    RequantizeGroup(walker, s, point, *group, y, word);
    decode.words = word;
    kernels.decode(decode, walker->tile(), y);
  }

  const SliceContext& slice_;
  alignas(64) float y_[kSuperblock];
  alignas(64) float more_[kSuperblock];
};

}  // namespace

uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions) {
  return contributions == 1 ? SumBytes(slice, 1) : ResultBytes(slice);
}

void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs) {
  Walker walker(slice);
  GroupFold fold(slice);
  Finish finish(slice, outputs);
  CodedSink sum = Split(slice, outputs.sum);
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = walker.PointOf(s);
    uint8_t* word = sum.words == nullptr ? nullptr : sum.words + size_t{s} * kWordBytes;
    if (point.k == 0) {
      if (word != nullptr) StoreWord(kZeroWord, word, 0);
      finish.Uncoded(&walker, s);
      continue;
    }
    if (word != nullptr) {
      fold.Requantize(&walker, s, point, &groups[0], word);
      const uint32_t width = Width(1, point.k2);
      PackTile(slice, &walker, width, 1, &sum.fields);
    }
    if (finish.wanted()) finish.Put(&walker, s, point, fold.Sum(&walker, s, point, groups));
  }
}

}  // namespace inccl::hbi
