// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/groups.h"

#include <algorithm>
#include <cstring>

#include "compress/hbi/walker.h"

namespace inccl::hbi {
namespace {

// The number of contributions in the fields of a ring's sum of `contributions`.
uint32_t InGroup(uint32_t contributions, uint32_t m) { return (contributions - 1) % m + 1; }

// The two parts of a slice's payload: codes, if it has them, then fields.
struct CodedSink {
  uint8_t* codes = nullptr;
  Sink fields;
};

CodedSink Split(const SliceContext& slice, const Sink& sink, bool coded) {
  CodedSink split{nullptr, sink};
  if (sink.at == nullptr || !coded) return split;
  split.codes = sink.at;
  split.fields.at += size_t{slice.superblocks()} * kBlocks;
  return split;
}

void PutSum(const SliceContext& slice, Walker* walker, uint32_t width, Sink* sink) {
  uint8_t* out = walker->Room(*sink, width);
  slice.kernels->pack(walker->tile(), width, out);
  walker->Put(out, width, sink);
}

// Quantizes y, the sum of all ranks in a superblock, for the result.
class Finish {
 public:
  Finish(const SliceContext& slice, const SliceOutputs& outputs)
      : slice_(slice), result_(Split(slice, outputs.result, true)), elements_(outputs.elements) {}

  bool wanted() const { return result_.codes != nullptr || elements_ != nullptr; }
  void Uncoded(Walker* walker, uint32_t s) {
    const uint8_t* agreed = walker->Codes(s);
    if (result_.codes != nullptr) UncodedResult(agreed, result_.codes + size_t{s} * kBlocks);
    if (elements_ != nullptr) walker->PutUncoded(s, agreed, elements_);
  }
  void Put(Walker* walker, uint32_t s, const Point& point, float* y) {
    uint8_t local[kBlocks];
    uint8_t* codes = result_.codes != nullptr ? result_.codes + size_t{s} * kBlocks : local;
    RequantizeValues(slice_, walker, ResultRounding(slice_, s, point), y, codes);
    const DecodeArgs decode{.codes = codes,
                            .step = slice_.average ? point.result->average : point.result->step,
                            .zero = point.k2};
    PutResult(slice_, walker, s, point, decode, &result_.fields, elements_);
  }

 private:
  const SliceContext& slice_;
  CodedSink result_;
  std::byte* elements_;
};

// One hop of a ring for a superblock that has levels.
class HopFold {
 public:
  HopFold(const SliceContext& slice, const RingHop& hop)
      : slice_(slice), hop_(hop), m_(slice.planner->group()) {
    before_ = hop.contributions == 0 ? 0 : InGroup(hop.contributions, m_);
    source_ = {.at = hop.payload, .end = hop.payload + hop.bytes, .contributions = before_};
    if (hop.payload == nullptr || !HasOwnCodes(*slice.planner, hop.contributions)) return;
    codes_in_ = hop.payload;
    source_.at += size_t{slice.superblocks()} * kBlocks;
  }

  // Contributions in the output fields; 1 at the beginning of a group.
  uint32_t contributions() const { return begins() ? 1 : before_ + 1; }
  // The scales of the fields in the tile.
  const uint8_t* codes() const { return codes_; }
  const float* y() const { return y_; }

  // Adds this rank's elements to the sum: in the tile, or in y at the end of the last group
  // (`complete`).
  bool Fold(Walker* walker, uint32_t s, const Point& point, bool complete) {
    const Kernels& kernels = *slice_.kernels;
    const uint8_t* agreed = walker->Codes(s);
    codes_ = codes_in_ != nullptr ? codes_in_ + size_t{s} * kBlocks : agreed;
    if (!begins()) {
      kernels.unpack(walker->Take(&source_, Width(before_, point.k)), Width(before_, point.k),
                     walker->tile());
      kernels.quantize_add(walker->Own(s, hop_.elements, point, codes_), walker->tile());
      return true;
    }
    if (before_ == 0) {
      kernels.quantize(walker->Own(s, hop_.elements, point), walker->tile());
      return true;
    }
    const uint32_t width = Width(before_, point.k);
    kernels.unpack_decode({.codes = codes_, .step = point.sum->step, .zero = before_ * point.k},
                          walker->Take(&source_, width), width, y_);
    const float* x = walker->Elements(s, hop_.elements);
    for (uint32_t e = 0; e < kSuperblock; ++e) y_[e] += x[e];
    if (complete) return false;
    // Later contributions of this group are as large as the agreed codes allow.
    kernels.block_codes(y_, 1, own_codes_);
    for (uint32_t b = 0; b < kBlocks; ++b) own_codes_[b] = std::max(own_codes_[b], agreed[b]);
    if (HasPoison(own_codes_)) ClearPoisoned(own_codes_, y_);
    codes_ = own_codes_;
    kernels.quantize({.x = y_,
                      .codes = codes_,
                      .factor = point.sum->factor,
                      .k = point.k,
                      .counter = slice_.counter + s * (kSuperblock / 2),
                      .shift = slice_.shift},
                     walker->tile());
    return true;
  }
  float* values() { return y_; }

 private:
  bool begins() const { return before_ == 0 || before_ == m_; }

  const SliceContext& slice_;
  const RingHop& hop_;
  const uint32_t m_;
  uint32_t before_ = 0;
  Source source_;
  const uint8_t* codes_in_ = nullptr;
  const uint8_t* codes_ = nullptr;
  uint8_t own_codes_[kBlocks];
  alignas(64) float y_[kSuperblock];
};

// The groups of a superblock that has levels.
class GroupFold {
 public:
  explicit GroupFold(const SliceContext& slice) : slice_(slice) {}

  // Quantizes the group's sum on its own scales: fields in the tile, scales in `codes`.
  void Requantize(Walker* walker, uint32_t s, const Point& point, Group* group, uint8_t* codes) {
    FoldTile(slice_, walker, s, point, group->members);
    Decode(walker, s, point, *group, y_);
    RequantizeValues(slice_, walker, Rounding(s, point, *group), y_, codes);
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
            .shift = group.shift};
  }
  void Decode(Walker* walker, uint32_t s, const Point& point, const Group& group, float* y) const {
    const auto members = static_cast<uint32_t>(group.members.size());
    slice_.kernels->decode(
        {.codes = walker->Codes(s), .step = point.sum->step, .zero = members * point.k},
        walker->tile(), y);
  }
  // The value of a group after quantization, no matter which rank has summed it.
  void Value(Walker* walker, uint32_t s, const Point& point, Group* group, float* y) {
    const Kernels& kernels = *slice_.kernels;
    DecodeArgs decode{.step = point.result->step, .zero = point.k2};
    if (group->members.empty()) {
      decode.codes = group->codes + size_t{s} * kBlocks;
      const uint32_t width = Width(1, point.k2);
      kernels.unpack_decode(decode, walker->Take(&group->sum, width), width, y);
      return;
    }
    FoldTile(slice_, walker, s, point, group->members);
    Decode(walker, s, point, *group, y);
    if (group->members.size() == 1) return;
    uint8_t codes[kBlocks];
    RequantizeValues(slice_, walker, Rounding(s, point, *group), y, codes);
    decode.codes = codes;
    kernels.decode(decode, walker->tile(), y);
  }

  const SliceContext& slice_;
  alignas(64) float y_[kSuperblock];
  alignas(64) float more_[kSuperblock];
};

}  // namespace

bool HasOwnCodes(const Planner& planner, uint32_t contributions) {
  if (planner.config().policy == Policy::kR) return contributions > planner.group();
  return contributions > 1;
}

uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions) {
  if (!HasOwnCodes(*slice.planner, contributions)) return SumBytes(slice, contributions);
  if (slice.planner->config().policy == Policy::kH) return ResultBytes(slice);
  return uint64_t{slice.superblocks()} * kBlocks +
         SumBytes(slice, InGroup(contributions, slice.planner->group()));
}

void FoldRingHop(const SliceContext& slice, const RingHop& hop, const SliceOutputs& outputs) {
  Walker walker(slice);
  HopFold fold(slice, hop);
  Finish finish(slice, outputs);
  const uint32_t after = hop.contributions + 1;
  CodedSink sum = Split(slice, outputs.sum, HasOwnCodes(*slice.planner, after));
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = walker.PointOf(s);
    uint8_t* codes = sum.codes == nullptr ? nullptr : sum.codes + size_t{s} * kBlocks;
    if (point.k == 0) {
      if (codes != nullptr) UncodedResult(walker.Codes(s), codes);
      finish.Uncoded(&walker, s);
      continue;
    }
    const bool in_tile = fold.Fold(&walker, s, point, finish.wanted());
    if (outputs.sum.at != nullptr) {
      if (codes != nullptr) std::memcpy(codes, fold.codes(), kBlocks);
      PutSum(slice, &walker, Width(fold.contributions(), point.k), &sum.fields);
    }
    if (!finish.wanted()) continue;
    if (in_tile) {
      slice.kernels->decode(
          {.codes = fold.codes(), .step = point.sum->step, .zero = fold.contributions() * point.k},
          walker.tile(), fold.values());
    }
    finish.Put(&walker, s, point, fold.values());
  }
}

void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs) {
  Walker walker(slice);
  GroupFold fold(slice);
  Finish finish(slice, outputs);
  CodedSink sum = Split(slice, outputs.sum, true);
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = walker.PointOf(s);
    uint8_t* codes = sum.codes == nullptr ? nullptr : sum.codes + size_t{s} * kBlocks;
    if (point.k == 0) {
      if (codes != nullptr) UncodedResult(walker.Codes(s), codes);
      finish.Uncoded(&walker, s);
      continue;
    }
    if (codes != nullptr) {
      fold.Requantize(&walker, s, point, &groups[0], codes);
      PutSum(slice, &walker, Width(1, point.k2), &sum.fields);
    }
    if (finish.wanted()) finish.Put(&walker, s, point, fold.Sum(&walker, s, point, groups));
  }
}

}  // namespace inccl::hbi
