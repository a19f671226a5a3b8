// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/hbi_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "compress/checked_state.h"
#include "compress/hbi/checksum.h"
#include "compress/hbi/codes.h"
#include "compress/hbi/error_bound.h"
#include "compress/hbi/format.h"
#include "compress/kernels/stream.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kWindowSuperblocks = kWindow / kSuperblock;

uint8_t* Bytes(std::byte* data) { return reinterpret_cast<uint8_t*>(data); }

uint64_t Superblocks(uint64_t elements) { return (elements + kSuperblock - 1) / kSuperblock; }

void MaxInto(const uint8_t* from, size_t count, uint8_t* to) {
  for (size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}

Status WrongLength(const Term& term, uint64_t expected) {
  return InternalError(fmt::format("hbi: {} payload of {} bytes where {} are due",
                                   Name(term.format.form), term.bytes, expected));
}

Status CheckCapacity(const Term& term, uint64_t needed) {
  if (term.bytes >= needed) return Status::Ok();
  return InternalError(fmt::format("hbi: room for {} bytes of {} where {} are needed", term.bytes,
                                   Name(term.format.form), needed));
}

Status Unexpected(const Term& term, const char* where) {
  return InternalError(fmt::format("hbi: {} cannot be {} here", Name(term.format.form), where));
}

}  // namespace

Status HbiState::Begin(const CallDesc& call) {
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
  }
  call_ = call;
  segments_ = SegmentsOf(call.collective, static_cast<uint64_t>(call.nranks));
  superblocks_ = Superblocks(call.count);
  windows_ = (call.count + kWindow - 1) / kWindow;
  codes_.resize(segments_ * superblocks_ * kBlocks);
  points_.resize(segments_ * superblocks_);
  planned_.assign(segments_ * windows_, 0);
  trailer_ = TrailerBytes(planners_->config());
  summary_ = {};
  sources_.reserve(static_cast<size_t>(call.nranks));
  if (planner_->group() != 0) groups_.reserve(static_cast<size_t>(call.nranks));
  return Status::Ok();
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

uint16_t HbiState::Shift() const {
  // Along a ring every group of contributions has offsets that are spread evenly.
  const bool groups = planner_->group() != 0 && planner_->config().policy == Policy::kR;
  const int m = groups ? static_cast<int>(planner_->group()) : call_.nranks;
  return RankShift(call_.rank % m, m);
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
          .shift = reduces ? Shift() : uint16_t{0},
          .counter = counter(reduces ? Salt::kSum : Salt::kResult),
          .result_counter = config.unbiased ? counter(Salt::kResult) : 0,
          .sign_counter = config.rht ? counter(Salt::kSigns) : 0,
          .group_counter = config.unbiased ? counter(Salt::kGroups) : 0,
          .count = range.count,
          .codes = codes_.data() + superblock * kBlocks,
          .points = points_.data() + superblock};
}

void HbiState::Plan(uint32_t segment, uint64_t window) {
  uint8_t& planned = planned_[FirstWindow(segment) + window];
  if (planned != 0) return;
  planned = 1;
  const uint64_t before = window * kWindowSuperblocks;
  const uint64_t first = FirstSuperblock(segment) + before;
  const uint64_t count = std::min<uint64_t>(kWindowSuperblocks, superblocks_ - before);
  planner_->Plan(codes_.data() + first * kBlocks, {points_.data() + first, count}, &summary_);
}

Status HbiState::Combine(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) {
  if (Status status = CheckRange(range); !status.ok()) return status;
  if (inputs.empty() || outputs.empty()) {
    return InternalError(
        fmt::format("hbi: {} inputs and {} outputs", inputs.size(), outputs.size()));
  }
  if (outputs[0].format.form == Form::kSide) return CombineSide(range, inputs, outputs);
  Plan(range.segment, range.first / kWindow);
  return CombineData(range, Slice(range), inputs, outputs);
}

Status HbiState::CheckPayload(const Range& range, const Term& input, uint64_t expected) const {
  if (input.bytes != expected + trailer_) return WrongLength(input, expected + trailer_);
  if (trailer_ == 0) return Status::Ok();
  return VerifyChecksum(input.data, expected, Name(input.format.form), range, call_.rank);
}

Status HbiState::CombineSide(const Range& range, std::span<const Term> inputs,
                             std::span<Term> outputs) {
  const SliceContext slice = Slice(range);
  const size_t bytes = size_t{slice.superblocks()} * kBlocks;
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(slice, input, "an input"); !status.ok()) return status;
      continue;
    }
    if (input.format.form != Form::kSide) return Unexpected(input, "an input");
    if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
    if (HasReserved(Bytes(input.data), bytes)) {
      return InternalError(
          fmt::format("hbi: a reserved scale code among those of elements {} to {}", range.first,
                      range.first + range.count));
    }
  }
  for (Term& output : outputs) {
    if (output.format.form != Form::kSide) return Unexpected(output, "an output");
    if (output.data == nullptr) continue;
    if (Status status = CheckCapacity(output, bytes + trailer_); !status.ok()) return status;
  }
  // Folded where it stays: in the state if it is wanted there, else in the first lane.
  uint8_t* to = Bytes(outputs[0].data);
  for (Term& output : outputs) {
    if (output.data == nullptr) {
      to = codes_.data() + FirstSuperblock(range.segment) * kBlocks + range.first / kBlock;
    }
  }
  bool first = true;
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      FoldOwnCodes(slice, input.data, first, to);
    } else if (first) {
      std::memmove(to, input.data, bytes);
    } else {
      MaxInto(Bytes(input.data), bytes, to);
    }
    first = false;
  }
  for (Term& output : outputs) {
    output.bytes = static_cast<uint32_t>(bytes);
    if (output.data == nullptr) continue;
    if (Bytes(output.data) != to) std::memcpy(output.data, to, bytes);
    if (trailer_ != 0) PutChecksum(output.data, bytes);
    output.bytes += trailer_;
  }
  return Status::Ok();
}

Status HbiState::CheckElements(const SliceContext& slice, const Term& term,
                               const char* what) const {
  const uint64_t bytes = slice.count * SizeOf(slice.type);
  if (term.bytes >= bytes && term.data != nullptr) return Status::Ok();
  return InternalError(fmt::format("hbi: {} of {} bytes for {} elements of {}", what, term.bytes,
                                   slice.count, Name(slice.type)));
}

Status HbiState::TakeInputs(const Range& range, const SliceContext& slice,
                            std::span<const Term> inputs, uint32_t* contributions) {
  sources_.clear();
  *contributions = 0;
  const uint32_t n = planner_->contributions();
  uint32_t known = 0;  // contributions whose length is in known_bytes
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
      const uint8_t* at = Bytes(input.data);
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
    uint8_t* data = Bytes(output.data);
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

Status HbiState::CombineData(const Range& range, const SliceContext& slice,
                             std::span<const Term> inputs, std::span<Term> outputs) {
  if (inputs.size() == 1 && inputs[0].format.form == Form::kResult) {
    return ForwardResult(range, slice, inputs[0], outputs);
  }
  if (planner_->group() != 0) return CombineGroups(range, slice, inputs, outputs);
  uint32_t contributions = 0;
  if (Status status = TakeInputs(range, slice, inputs, &contributions); !status.ok()) return status;
  SliceOutputs places;
  Status status = PlaceOutputs(slice, contributions, outputs, &places);
  if (!status.ok()) return status;
  // Payloads that go past the caches are made in them, and copied out as a whole.
  Sink* const payload = places.sum.at != nullptr ? &places.sum : &places.result;
  const bool streams = call_.stream_payloads && payload->at != nullptr;
  if (streams) {
    const auto capacity = static_cast<size_t>(payload->limit - payload->at);
    if (outgoing_.size() < capacity) outgoing_.resize(capacity);
    *payload = {outgoing_.data(), outgoing_.data() + capacity};
  }
  FoldSlice(slice, sources_, places);
  CopyOutputs(outputs, places);
  return Status::Ok();
}

void HbiState::CopyOutputs(std::span<Term> outputs, const SliceOutputs& places) {
  // Outputs of one form get equal bytes; without a second quantization the sum is the result.
  for (Term& output : outputs) {
    const void* from = places.sum.at;
    if (output.format.form == Form::kOutput) from = places.elements;
    if (output.format.form == Form::kResult && places.result.at != nullptr) from = places.result.at;
    if (from != nullptr && from == outgoing_.data()) {
      if (trailer_ != 0) {
        PutChecksum(reinterpret_cast<std::byte*>(outgoing_.data()), output.bytes - trailer_);
      }
      StreamCopy(output.data, from, output.bytes);
    } else if (output.data != from) {
      if (output.bytes != 0) std::memcpy(output.data, from, output.bytes);
    } else if (trailer_ != 0 && output.format.form != Form::kOutput) {
      PutChecksum(output.data, output.bytes - trailer_);
    }
  }
}

Status HbiState::ForwardResult(const Range& range, const SliceContext& slice, const Term& input,
                               std::span<Term> outputs) {
  if (!Travels(call_.collective, input.format.form)) return Unexpected(input, "an input");
  const uint64_t bytes = ResultBytes(slice);
  if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
  const uint8_t* payload = Bytes(input.data);
  const size_t codes = size_t{slice.superblocks()} * kBlocks;
  if (planner_->requantizes() && HasReserved(payload, codes)) {
    return InternalError(
        fmt::format("hbi: a reserved scale code in a result of {} elements", slice.count));
  }
  const std::byte* decoded = nullptr;
  for (Term& output : outputs) {
    if (output.format.form == Form::kResult) {
      if (Status status = CheckCapacity(output, input.bytes); !status.ok()) return status;
      output.bytes = input.bytes;
      if (input.bytes != 0) std::memcpy(output.data, input.data, input.bytes);
    } else if (output.format.form == Form::kOutput) {
      if (Status status = CheckElements(slice, output, "an output"); !status.ok()) return status;
      output.bytes = static_cast<uint32_t>(slice.count * SizeOf(slice.type));
      if (decoded == nullptr) {
        DecodeResult(slice, payload, output.data);
        decoded = output.data;
      } else {
        std::memcpy(output.data, decoded, output.bytes);
      }
    } else {
      return Unexpected(output, "an output");
    }
  }
  return Status::Ok();
}

void HbiState::Finish(CodecStats* stats) {
  if (stats == nullptr) return;
  *stats = {};
  if (planner_ == nullptr) return;
  stats->dropped_superblocks = summary_.dropped;
  for (uint32_t segment = 0; segment < segments_; ++segment) {
    CountBlocks(codes_.data() + FirstSuperblock(segment) * kBlocks,
                (call_.count + kBlock - 1) / kBlock, planners_->config().rht, stats);
  }
  const std::span<const Point> points = planner_->points();
  for (size_t p = 1; p < points.size(); ++p) {
    const double bound = ErrorBound(*planner_, points[p], summary_.top[p], call_.type, call_.op);
    stats->error_bound = std::max(stats->error_bound, bound);
  }
}

}  // namespace inccl::hbi
