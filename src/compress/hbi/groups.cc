// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/groups.h"

#include "compress/hbi/walker.h"

namespace inccl::hbi {
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
    if (result_.words != nullptr) StoreWord(kZeroCode, result_.words, s);
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
      if (word != nullptr) StoreWord(kZeroCode, word, 0);
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
