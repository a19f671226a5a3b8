// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/hbi_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/log.h"
#include "compress/checked_state.h"
#include "compress/device_work.h"
#include "compress/hbi/device_slices.h"
#include "compress/hbi/format.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/stream.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kWindowSuperblocks = kWindow / kSuperblock;

uint64_t Superblocks(uint64_t elements) { return (elements + kSuperblock - 1) / kSuperblock; }

}  // namespace

Status HbiState::Begin(const CollectiveArgs& call) {
  Status unsupported =
      CheckCall(planners_->config(), call.collective, call.type, call.op, call.nranks);
  if (!unsupported.ok()) return unsupported;
  Status unfit = CheckFit(planners_->config(), call.collective, call.nranks);
  if (!unfit.ok()) return unfit;
  if (call.rank < 0 || call.rank >= call.nranks) {
    return InvalidArgument(fmt::format("hbi: rank {} of {} ranks", call.rank, call.nranks));
  }
  if (planner_ == nullptr || planner_->nranks() != call.nranks ||
      planner_->collective() != call.collective) {
    planner_ = planners_->Get(call.collective, call.nranks);
    levels_ = nullptr;
  }
  call_ = call;
  segments_ = SegmentsOf(call.collective, static_cast<uint64_t>(call.nranks));
  superblocks_ = Superblocks(call.count);
  windows_ = (call.count + kWindow - 1) / kWindow;
  words_.resize(segments_ * superblocks_ * kWordBytes);
  points_.resize(segments_ * superblocks_);
  planned_.assign(segments_ * windows_, 0);
  trailer_ = TrailerBytes(planners_->config());
  summary_ = {};
  known_.assign(segments_ * windows_, {});
  sources_.reserve(static_cast<size_t>(call.nranks));
  if (planner_->group() != 0) groups_.reserve(static_cast<size_t>(call.nranks));
  return Status::Ok();
}

uint64_t HbiState::BytesOfSum(const SliceContext& slice, uint32_t contributions) const {
  return planner_->group() != 0 ? GroupedSumBytes(slice, contributions)
                                : SumBytes(slice, contributions);
}

SliceContext HbiState::Slice(const Range& range) const {
  const uint64_t superblock = FirstSuperblock(range.segment) + range.first / kSuperblock;
  const auto counter = [&](Salt salt) {
    return HashCounter(call_.seed, call_.step, range.first / kBlock, salt);
  };
  const Config& config = planners_->config();
  const bool reduces = Reduces(call_.collective);
  return {.kernels = &BestKernels(),
          .planner = planner_.get(),
          .type = call_.type,
          .average = reduces && call_.op == ReduceOp::kAvg,
          .nearest = !reduces && !config.unbiased,
          .rotate = config.rht,
          .unbiased = config.unbiased,
          .stream = non_temporal_output(),
          .offsets = reduces ? OffsetsOf(call_.rank, call_.nranks, config.unbiased) : Offsets{},
          .counter = counter(reduces ? Salt::kSum : Salt::kResult),
          .result_counter = config.unbiased ? counter(Salt::kResult) : 0,
          .sign_counter = config.rht ? counter(Salt::kSigns) : 0,
          .group_counter = config.unbiased ? counter(Salt::kGroups) : 0,
          .count = range.count,
          .words = words_.data() + superblock * kWordBytes,
          .points = points_.data() + superblock};
}

void HbiState::Plan(uint32_t segment, uint64_t window) {
  uint8_t& planned = planned_[FirstWindow(segment) + window];
  if (planned != 0) return;
  planned = 1;
  const uint64_t before = window * kWindowSuperblocks;
  const uint64_t first = FirstSuperblock(segment) + before;
  const uint64_t count = std::min<uint64_t>(kWindowSuperblocks, superblocks_ - before);
  planner_->Plan(words_.data() + first * kWordBytes, {points_.data() + first, count}, &summary_,
                 team());
}

Status HbiState::Combine(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) {
  if (Status status = CheckOperation(range, inputs, outputs); !status.ok()) return status;
  if (outputs[0].format.form == Form::kSide) {
    const SliceContext slice = Slice(range);
    if (Status status = CheckSide(range, slice, inputs, outputs); !status.ok()) return status;
    const uint8_t* const own = KeptWords(range, inputs);
    Status status = FoldSide(range, slice, own, inputs, outputs);
    if (status.ok()) KeepWords(range, inputs, outputs);
    return status;
  }
  Plan(range.segment, range.first / kWindow);
  const SliceContext slice = Slice(range);
  codes_ = Codes();
  if (codes_) return CombineCoded(range, slice, inputs, outputs);
  is_coded_ = false;
  Status status = CombineData(range, slice, inputs, outputs);
  return is_coded_ ? CombineCoded(range, slice, inputs, outputs) : status;
}

bool HbiState::Codes() const {
  const Config& config = planners_->config();
  return config.MayCode() && (config.coding == Coding::kEntropy || shortens());
}

Status HbiState::CombineCoded(const Range& range, const SliceContext& slice,
                              std::span<const Term> inputs, std::span<Term> outputs) {
  const CodedPayloads::Call call{&range, &slice, call_.rank, trailer_, codes_, team()};
  Status status = coded_.Take(call, inputs, outputs);
  if (!status.ok()) return status;
  if (!coded_.outputs().empty()) {
    const uint32_t trailer = std::exchange(trailer_, 0);  // checksums are those of coded payloads
    status = CombineData(range, slice, coded_.inputs(), coded_.outputs());
    trailer_ = trailer;
    if (!status.ok()) return status;
  }
  return coded_.Put(call, inputs, outputs);
}

uint8_t* HbiState::WordsAt(const Range& range) {
  const uint64_t superblock = FirstSuperblock(range.segment) + range.first / kSuperblock;
  return words_.data() + superblock * kWordBytes;
}

const uint8_t* HbiState::KeptWords(const Range& range, std::span<const Term> inputs) {
  if (inputs.size() == 1) return nullptr;  // these elements are to be sent
  const bool own = std::any_of(inputs.begin(), inputs.end(),
                               [](const Term& input) { return input.format.form == Form::kInput; });
  const WordsOfRange& known = Known(range);
  return own && known.Are(range) && !known.agreed ? WordsAt(range) : nullptr;
}

void HbiState::KeepWords(const Range& range, std::span<const Term> inputs,
                         std::span<const Term> outputs) {
  WordsOfRange& known = Known(range);
  const bool agreed = std::any_of(outputs.begin(), outputs.end(),
                                  [](const Term& output) { return output.data == nullptr; });
  const bool own = inputs.size() == 1 && inputs[0].format.form == Form::kInput;
  if (agreed || !own) {
    known = {range.first, range.count, agreed};
    return;
  }
  if (known.Are(range) && known.agreed) return;  // sent after all others have arrived
  std::memcpy(WordsAt(range), outputs[0].data, outputs[0].bytes - trailer_);
  known = {range.first, range.count, false};
}

Status HbiState::FoldSide(const Range& range, const SliceContext& slice, const uint8_t* own_words,
                          std::span<const Term> inputs, std::span<Term> outputs) {
  const size_t superblocks = slice.superblocks(), bytes = superblocks * kWordBytes;
  // Fold in the final place: in the state if an output wants it there, else in the first lane.
  uint8_t* to = Unsigned(outputs[0].data);
  for (Term& output : outputs) {
    if (output.data == nullptr) to = WordsAt(range);
  }
  // Their validity again: a peer may have changed its words since CheckSide looked at them.
  if (!FoldWordsParts(team(), slice, inputs, own_words, to)) return InvalidWords(range);
  for (Term& output : outputs) {
    output.bytes = static_cast<uint32_t>(bytes);
    if (output.data == nullptr) continue;
    if (Unsigned(output.data) != to) std::memcpy(output.data, to, bytes);
    if (trailer_ != 0) PutChecksum(output.data, bytes);
    output.bytes += trailer_;
  }
  return Status::Ok();
}

Status HbiState::CombineData(const Range& range, const SliceContext& slice,
                             std::span<const Term> inputs, std::span<Term> outputs) {
  if (IsForward(inputs)) {
    Status status = CheckForward(range, slice, inputs[0], outputs);
    if (status.ok()) ForwardResult(slice, inputs[0], outputs);
    return status;
  }
  if (planner_->group() != 0) return CombineGroups(range, slice, inputs, outputs);
  uint32_t contributions = 0;
  if (Status status = TakeInputs(range, slice, inputs, &contributions); !status.ok()) return status;
  SliceOutputs places;
  Status status = PlaceOutputs(slice, contributions, outputs, &places);
  if (!status.ok()) return status;
  // A payload for non-temporal stores is built in cached memory and then copied as a whole.
  Sink* const payload = places.sum.at != nullptr ? &places.sum : &places.result;
  const bool streams = non_temporal_payloads() && payload->at != nullptr && !codes_;
  if (streams) {
    const auto capacity = static_cast<size_t>(payload->limit - payload->at);
    if (outgoing_bytes_ < capacity) {
      outgoing_ = std::make_unique_for_overwrite<uint8_t[]>(capacity);  // touched as it is used
      outgoing_bytes_ = capacity;
    }
    *payload = {outgoing_.get(), outgoing_.get() + capacity};
  }
  FoldSources(slice, places, outputs);
  return Status::Ok();
}

void HbiState::FoldSources(const SliceContext& slice, const SliceOutputs& places,
                           std::span<Term> outputs) {
  const auto copy = [&](const PartExtents& part) { CopyPart(outputs, places, &part); };
  const bool cut = FoldParts(team(), slice, sources_, places, &part_sources_, std::cref(copy));
  if (cut) return PutChecksums(outputs, places);
  FoldSlice(slice, sources_, places);
  CopyOutputs(outputs, places);
}

void HbiState::CopyOutputs(std::span<Term> outputs, const SliceOutputs& places) {
  CopyPart(outputs, places, nullptr);
  PutChecksums(outputs, places);
}

// Outputs of the same form get the same bytes; without a second quantization the sum is the result.
uint8_t* HbiState::MadeIn(const Term& output, const SliceOutputs& places) {
  const bool second = output.format.form == Form::kResult && places.result.at != nullptr;
  return second ? places.result.at : places.sum.at;
}

void HbiState::CopyPart(std::span<const Term> outputs, const SliceOutputs& places,
                        const PartExtents* part) const {
  for (const Term& output : outputs) {
    const bool elements = output.format.form == Form::kOutput;
    const uint8_t* const from = elements ? Unsigned(places.elements) : MadeIn(output, places);
    uint8_t* const to = Unsigned(output.data);
    if (to == from) continue;
    Extent all{0, output.bytes - (elements ? 0 : trailer_)};
    if (part != nullptr) all = elements ? part->elements : part->sum;
    if (part != nullptr && !elements && from == places.result.at) {
      std::memcpy(to + part->words.begin, from + part->words.begin,
                  part->words.end - part->words.begin);
      all = part->fields;
    }
    if (all.begin == all.end) continue;
    if (from == outgoing_.get()) {
      StreamCopy(to + all.begin, from + all.begin, all.end - all.begin);
    } else {
      std::memcpy(to + all.begin, from + all.begin, all.end - all.begin);
    }
  }
}

void HbiState::PutChecksums(std::span<Term> outputs, const SliceOutputs& places) const {
  if (trailer_ == 0) return;
  bool sealed[2] = {};
  for (Term& output : outputs) {
    if (output.format.form == Form::kOutput) continue;
    auto* const from = reinterpret_cast<std::byte*>(MadeIn(output, places));
    bool& done = sealed[Unsigned(from) == places.result.at ? 1 : 0];
    const size_t bytes = output.bytes - trailer_;
    if (!done) PutChecksum(from, bytes);
    done = true;
    if (output.data != from) std::memcpy(output.data + bytes, from + bytes, trailer_);
  }
}

void HbiState::ForwardResult(const SliceContext& slice, const Term& input,
                             std::span<Term> outputs) const {
  const std::byte* decoded = nullptr;
  for (Term& output : outputs) {
    if (output.format.form == Form::kResult) {
      if (input.bytes != 0) std::memcpy(output.data, input.data, input.bytes);
    } else if (decoded == nullptr) {
      DecodeParts(team(), slice, Unsigned(input.data), output.data);
      decoded = output.data;
    } else {
      std::memcpy(output.data, decoded, output.bytes);
    }
  }
}

Result<bool> HbiState::Own(const Range& range, const std::byte* x, float* y) {
  if (Status status = CheckRange(range); !status.ok()) return status;
  Plan(range.segment, range.first / kWindow);
  OwnValues(Slice(range), x, y);
  return true;
}

void HbiState::Finish(CodecStats* stats) {
  if (planner_ != nullptr && !warned_of_drops_) WarnOfDrops();
  if (stats == nullptr) return;
  *stats = {};
  if (planner_ == nullptr) return;
  stats->dropped_superblocks = summary_.dropped;
  for (uint32_t segment = 0; segment < segments_; ++segment) {
    CountBlocks(words_.data() + FirstSuperblock(segment) * kWordBytes,
                (call_.count + kBlock - 1) / kBlock, stats);
  }
  const std::span<const Point> points = planner_->points();
  const auto include = [&](size_t point, uint32_t top) {
    const double bound = ErrorBound(*planner_, points[point], top, call_.type, call_.op);
    stats->error_bound = std::max(stats->error_bound, bound);
  };
  if (stats->zero_blocks != 0) include(Planner::kDead, kZeroCode);
  if (stats->poisoned_blocks != 0) include(Planner::kDead, kPoison);
  for (size_t p = Planner::kDead + 1; p < points.size(); ++p) {
    if (summary_.top[p] != 0) include(p, summary_.top[p]);
  }
}

void HbiState::WarnOfDrops() {
  const Config& config = planners_->config();
  if (summary_.dropped == 0 || config.levels == Levels::kEnergy) return;
  warned_of_drops_ = true;
  const uint32_t least8 = LeastBits8(call_.collective, call_.nranks, config);
  Log(LogLevel::kWarn, LogSubsystem::kCodec,
      "rank {}/{}: {} with codec {}: {} superblocks of 256 elements became zero, since bits={} "
      "does "
      "not give each of them a level; bits={} does. (A residual keeps what a call has left out.) "
      "Later calls with this codec are not reported.",
      call_.rank, call_.nranks, Name(call_.collective), config.Canonical(), summary_.dropped,
      FormatEighths(config.bits8), FormatEighths(least8));
}

// The checks that HbiState makes before it touches a byte, for host and device memory.

namespace {

Status WrongLength(const Term& term, uint64_t expected) {
  return InternalError(fmt::format("hbi: {} payload: expected {} bytes, got {}",
                                   Name(term.format.form), expected, term.bytes));
}

Status Unexpected(const Term& term, const char* where) {
  return InternalError(fmt::format("hbi: {} cannot be {} here", Name(term.format.form), where));
}

}  // namespace

Status HbiState::CheckOperation(const Range& range, std::span<const Term> inputs,
                                std::span<const Term> outputs) const {
  if (Status status = CheckRange(range); !status.ok()) return status;
  if (!inputs.empty() && !outputs.empty()) return Status::Ok();
  return InternalError(fmt::format("hbi: {} inputs and {} outputs", inputs.size(), outputs.size()));
}

Status HbiState::CheckRange(const Range& range) const {
  const bool inside = range.first <= call_.count && range.count <= call_.count - range.first;
  if (range.segment >= segments_ || range.count == 0 || !inside) {
    return InternalError(fmt::format("hbi: elements {} to {} of segment {} in a call of {} in {}",
                                     range.first, range.first + range.count, range.segment,
                                     call_.count, segments_));
  }
  const bool at_end = range.first + range.count == call_.count;
  if (range.first % kSuperblock != 0 || (range.count % kSuperblock != 0 && !at_end) ||
      range.first / kWindow != (range.first + range.count - 1) / kWindow) {
    return InternalError(
        fmt::format("hbi: elements {} to {} are not whole superblocks of {} inside a window",
                    range.first, range.first + range.count, kSuperblock));
  }
  return Status::Ok();
}

Status HbiState::CheckPayload(const Range& range, const Term& input, uint64_t expected) {
  if (input.bytes != expected + trailer_) {
    is_coded_ = planners_->config().MayCode() && CodedPayloads::Admits(input.format) &&
                input.bytes < expected + trailer_;
    if (is_coded_) return {Code::kInternalError, "coded"};  // nobody sees it, and no memory
    return WrongLength(input, expected + trailer_);
  }
  if (trailer_ == 0) return Status::Ok();
  return VerifyChecksum(input.data, expected, Name(input.format.form), range, call_.rank);
}

Status HbiState::CheckElements(const SliceContext& slice, const Term& term,
                               const char* what) const {
  const uint64_t bytes = slice.count * SizeOf(slice.type);
  if (term.bytes >= bytes && term.data != nullptr) return Status::Ok();
  return InternalError(fmt::format("hbi: {} of {} bytes for {} elements of {}", what, term.bytes,
                                   slice.count, Name(slice.type)));
}

Status HbiState::InvalidWords(const Range& range) {
  return InternalError(fmt::format("hbi: an invalid side word among those of elements {} to {}",
                                   range.first, range.first + range.count));
}

Status HbiState::CheckSide(const Range& range, const SliceContext& slice,
                           std::span<const Term> inputs, std::span<Term> outputs) {
  const size_t bytes = size_t{slice.superblocks()} * kWordBytes;
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(slice, input, "an input"); !status.ok()) return status;
      continue;
    }
    if (input.format.form != Form::kSide) return Unexpected(input, "an input");
    if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
    if (!AreValidParts(team(), Unsigned(input.data), slice.superblocks()))
      return InvalidWords(range);
  }
  for (const Term& output : outputs) {
    if (output.format.form != Form::kSide) return Unexpected(output, "an output");
    if (output.data == nullptr) continue;
    if (Status status = CheckCapacity(output, bytes + trailer_); !status.ok()) return status;
  }
  return Status::Ok();
}

Status HbiState::TakeInputs(const Range& range, const SliceContext& slice,
                            std::span<const Term> inputs, uint32_t* contributions) {
  sources_.clear();
  *contributions = 0;
  const uint32_t n = planner_->contributions();
  uint32_t known = 0;  // number of contributions whose length is in known_bytes
  uint64_t known_bytes = 0;
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(slice, input, "an input"); !status.ok()) return status;
      sources_.push_back({.contributions = 1, .elements = input.data});
    } else if (input.format.form == Form::kSum && Reduces(call_.collective)) {
      const uint32_t h = input.format.contributions;
      if (h == 0 || h > n) {
        return InternalError(fmt::format("hbi: a sum of {} contributions among {} ranks", h, n));
      }
      if (h != known) known_bytes = SumBytes(slice, h);
      known = h;
      if (Status status = CheckPayload(range, input, known_bytes); !status.ok()) return status;
      const uint8_t* at = Unsigned(input.data);
      sources_.push_back({.at = at, .end = at + known_bytes, .contributions = h});
    } else {
      return Unexpected(input, "an input");
    }
    *contributions += sources_.back().contributions;
  }
  if (*contributions > n) {
    return InternalError(fmt::format("hbi: {} contributions of {} ranks", *contributions, n));
  }
  return Status::Ok();
}

Status HbiState::PlaceOutputs(const SliceContext& slice, uint32_t contributions,
                              std::span<Term> outputs, SliceOutputs* places) const {
  const bool complete = contributions == planner_->contributions();
  for (Term& output : outputs) {
    const Form form = output.format.form;
    if (!Travels(call_.collective, form)) return Unexpected(output, "an output");
    if ((form == Form::kResult || form == Form::kOutput) && !complete) {
      return InternalError(fmt::format("hbi: {} from {} of {} contributions", Name(form),
                                       contributions, planner_->contributions()));
    }
    if (form == Form::kSum && output.format.contributions != contributions) {
      return InternalError(fmt::format("hbi: a sum of {} contributions from {}",
                                       output.format.contributions, contributions));
    }
    uint64_t bytes = slice.count * SizeOf(slice.type);
    if (form == Form::kSum) bytes = BytesOfSum(slice, contributions) + trailer_;
    if (form == Form::kResult) bytes = ResultBytes(slice) + trailer_;
    if (Status status = CheckCapacity(output, bytes); !status.ok()) return status;
    uint8_t* data = Unsigned(output.data);
    const Sink sink{data, data + output.bytes};
    if (form == Form::kSum || (form == Form::kResult && !planner_->requantizes())) {
      if (places->sum.at == nullptr) places->sum = sink;
    } else if (form == Form::kResult) {
      if (places->result.at == nullptr) places->result = sink;
    } else if (places->elements == nullptr) {
      places->elements = output.data;
    }
    output.bytes = static_cast<uint32_t>(bytes);
  }
  return Status::Ok();
}

Status HbiState::CheckForward(const Range& range, const SliceContext& slice, const Term& input,
                              std::span<Term> outputs) {
  if (!Travels(call_.collective, input.format.form)) return Unexpected(input, "an input");
  const uint64_t bytes = ResultBytes(slice);
  if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
  if (planner_->requantizes() && !AreValid(Unsigned(input.data), slice.superblocks())) {
    return InternalError(
        fmt::format("hbi: an invalid side word in a result of {} elements", slice.count));
  }
  for (Term& output : outputs) {
    if (output.format.form == Form::kResult) {
      if (Status status = CheckCapacity(output, input.bytes); !status.ok()) return status;
      output.bytes = input.bytes;
    } else if (output.format.form == Form::kOutput) {
      if (Status status = CheckElements(slice, output, "an output"); !status.ok()) return status;
      output.bytes = static_cast<uint32_t>(slice.count * SizeOf(slice.type));
    } else {
      return Unexpected(output, "an output");
    }
  }
  return Status::Ok();
}

// What HbiState does where sums are taken in groups: which inputs make the groups of an owner, and
// whether their payloads can be what they are due to be.

namespace {

Status Unexpected(const Term& term) {
  return InternalError(fmt::format("hbi: {} of {} contributions cannot be an input here",
                                   Name(term.format.form), term.format.contributions));
}

}  // namespace

uint32_t HbiState::GroupFrom(uint32_t first) const {
  return std::min(planner_->group(), planner_->contributions() - first);
}

Status HbiState::CheckGroupedSum(const Range& range, const SliceContext& slice, const Term& input) {
  const uint32_t h = input.format.contributions;
  const uint64_t bytes = GroupedSumBytes(slice, h);
  if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
  if (h == 1 || AreValid(Unsigned(input.data), slice.superblocks())) return Status::Ok();
  return InternalError(fmt::format("hbi: an invalid side word in a sum of elements {} to {}",
                                   range.first, range.first + range.count));
}

Status HbiState::TakeGroups(const Range& range, const SliceContext& slice,
                            std::span<const Term> inputs, uint32_t* contributions) {
  const uint32_t n = planner_->contributions(), m = planner_->group();
  *contributions = 0;
  for (const Term& input : inputs) {
    *contributions += input.format.form == Form::kInput ? 1u : input.format.contributions;
  }
  // The inputs are all groups, this rank's whole group, or a part of this rank's group.
  uint32_t rank = *contributions == n ? 0 : static_cast<uint32_t>(call_.rank) / m * m;
  if (*contributions > n || (*contributions != n && *contributions > GroupFrom(rank))) {
    return InternalError(
        fmt::format("hbi: {} contributions of {} ranks in groups of {}", *contributions, n, m));
  }
  sources_.clear();
  groups_.clear();
  uint32_t members = 0;  // missing members of the current group
  for (const Term& input : inputs) {
    const uint32_t h = input.format.form == Form::kInput ? 1 : input.format.contributions;
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(slice, input, "an input"); !status.ok()) return status;
    } else if (input.format.form != Form::kSum || h == 0) {
      return Unexpected(input);
    } else if (Status status = CheckGroupedSum(range, slice, input); !status.ok()) {
      return status;
    }
    if (members == 0) {
      members = GroupFrom(rank);
      const auto groups = static_cast<int>((n + m - 1) / m);
      groups_.emplace_back().shift = RankShift(static_cast<int>(rank / m), groups);
    } else if (h != 1) {
      return Unexpected(input);
    }
    Group& group = groups_.back();
    const uint8_t* at = Unsigned(input.data);
    if (h != 1) {
      if (h != members) return Unexpected(input);
      group.words = at;
      group.sum = {.at = at + size_t{slice.superblocks()} * kWordBytes,
                   .end = at + GroupedSumBytes(slice, h)};
    } else {
      Source source{.elements = input.data};
      if (input.format.form == Form::kSum) source = {.at = at, .end = at + SumBytes(slice, 1)};
      sources_.push_back(source);
      group.members = {sources_.data() + sources_.size() - group.members.size() - 1,
                       group.members.size() + 1};
    }
    members -= h;
    rank += h;
  }
  return Status::Ok();
}

Status HbiState::CombineGroups(const Range& range, const SliceContext& slice,
                               std::span<const Term> inputs, std::span<Term> outputs) {
  uint32_t contributions = 0;
  Status status = TakeGroups(range, slice, inputs, &contributions);
  if (!status.ok()) return status;
  SliceOutputs places;
  status = PlaceOutputs(slice, contributions, outputs, &places);
  if (!status.ok()) return status;
  if (contributions == 1) {
    FoldSources(slice, places, outputs);
    return Status::Ok();
  }
  if (places.sum.at != nullptr &&
      contributions !=
          GroupFrom(static_cast<uint32_t>(call_.rank) / planner_->group() * planner_->group())) {
    return InternalError(fmt::format("hbi: a sum of {} contributions in groups of {}",
                                     contributions, planner_->group()));
  }
  FoldGroups(slice, groups_, places);
  CopyOutputs(outputs, places);
  return Status::Ok();
}

// HbiState for elements in device memory: Combine in two halves, with the same checks and the same
// bytes. Kernels process elements; the host merges side words, forwards payloads and computes
// checksums.

namespace {

size_t Count(std::span<const Term> terms, Form form) {
  return static_cast<size_t>(std::count_if(
      terms.begin(), terms.end(), [form](const Term& term) { return term.format.form == form; }));
}

// Indices into DeviceWork::kept.
enum Kept : uint8_t { kOwnWords, kSum, kResult };

}  // namespace

bool HbiState::HasKernels(std::span<const Term> inputs, std::span<const Term> outputs) const {
  const Config& config = planner_->config();
  if (config.rht || config.coding == Coding::kEntropy || planner_->group() != 0) return false;
  const size_t own = Count(inputs, Form::kInput), wanted = Count(outputs, Form::kOutput);
  if (own > 1 || wanted > 1 || own + wanted == 0) return false;
  if (Count(inputs, Form::kSum) > cuda::kMaxSources) return false;
  const auto aligned = [this](const Term& term) {
    const bool elements = term.format.form == Form::kInput || term.format.form == Form::kOutput;
    return !elements || IsAlignedTo(term.data, SizeOf(call_.type));
  };
  return std::all_of(inputs.begin(), inputs.end(), aligned) &&
         std::all_of(outputs.begin(), outputs.end(), aligned);
}

Status HbiState::LaunchForward(const SliceContext& slice, const Term& input,
                               std::span<Term> outputs, DeviceWork* work) {
  for (const Term& output : outputs) {
    if (output.format.form != Form::kOutput) continue;
    const auto* payload = reinterpret_cast<const uint8_t*>(input.data);
    Status status = LaunchDecode(slice, levels_.get(), payload, output.data, work);
    if (!status.ok()) return status;
  }
  for (const Term& output : outputs) {
    if (output.format.form == Form::kResult && input.bytes != 0) {
      std::memcpy(output.data, input.data, input.bytes);
    }
  }
  return Status::Ok();
}

Result<bool> HbiState::Launch(const Range& range, std::span<const Term> inputs,
                              std::span<Term> outputs, DeviceWork* work) {
  if (Status status = CheckOperation(range, inputs, outputs); !status.ok()) return status;
  if (!HasKernels(inputs, outputs)) return false;
  is_coded_ = false;
  if (outputs[0].format.form == Form::kSide) {
    const SliceContext slice = Slice(range);
    if (Status status = CheckSide(range, slice, inputs, outputs); !status.ok()) return status;
    const auto own = std::find_if(inputs.begin(), inputs.end(), [](const Term& input) {
      return input.format.form == Form::kInput;
    });
    const Result<std::byte*> words = LaunchWords(slice, own->data, work);
    if (!words.ok()) return words.status();
    work->kept[kOwnWords] = *words;
    return true;
  }
  Plan(range.segment, range.first / kWindow);
  if (levels_ == nullptr) levels_ = planners_->LevelsOf(planner_);
  const SliceContext slice = Slice(range);
  if (IsForward(inputs)) {
    Status status = CheckForward(range, slice, inputs[0], outputs);
    if (is_coded_) return false;
    if (status.ok()) status = LaunchForward(slice, inputs[0], outputs, work);
    if (!status.ok()) return status;
    return true;
  }
  uint32_t contributions = 0;
  SliceOutputs places;
  Status status = TakeInputs(range, slice, inputs, &contributions);
  if (is_coded_) return false;
  if (status.ok()) status = PlaceOutputs(slice, contributions, outputs, &places);
  if (status.ok()) status = LaunchFold(slice, levels_.get(), sources_, work, &places);
  if (!status.ok()) return status;
  work->kept[kSum] = reinterpret_cast<std::byte*>(places.sum.at);
  work->kept[kResult] = reinterpret_cast<std::byte*>(places.result.at);
  return true;
}

Status HbiState::Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                          DeviceWork* work) {
  const auto kept = [work](Kept which) { return reinterpret_cast<uint8_t*>(work->kept[which]); };
  if (outputs[0].format.form == Form::kSide) {
    return FoldSide(range, Slice(range), kept(kOwnWords), inputs, outputs);
  }
  if (IsForward(inputs)) return Status::Ok();
  SliceOutputs places;
  places.sum.at = kept(kSum);
  places.result.at = kept(kResult);
  const auto elements = std::find_if(outputs.begin(), outputs.end(), [](const Term& output) {
    return output.format.form == Form::kOutput;
  });
  if (elements != outputs.end()) places.elements = elements->data;
  CopyOutputs(outputs, places);
  return Status::Ok();
}

}  // namespace inccl::hbi
