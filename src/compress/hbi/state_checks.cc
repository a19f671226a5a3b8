// SPDX-License-Identifier: Apache-2.0
//
// The checks that HbiState makes before it touches a byte, for host and device memory.
#include <fmt/format.h>

#include "compress/checked_state.h"
#include "compress/hbi/checksum.h"
#include "compress/hbi/format.h"
#include "compress/hbi/hbi_state.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

Status WrongLength(const Term& term, uint64_t expected) {
  return InternalError(fmt::format("hbi: {} payload: expected {} bytes, got {}",
                                   Name(term.format.form), expected, term.bytes));
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

Status HbiState::CheckPayload(const Range& range, const Term& input, uint64_t expected) const {
  if (input.bytes != expected + trailer_) return WrongLength(input, expected + trailer_);
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
                           std::span<const Term> inputs, std::span<Term> outputs) const {
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
                              std::span<Term> outputs) const {
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

}  // namespace inccl::hbi
