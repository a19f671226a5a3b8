// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/part_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "compress/checked_state.h"
#include "compress/hbi/checksum.h"
#include "compress/hbi/codes.h"
#include "compress/hbi/error_bound.h"
#include "compress/hbi/format.h"
#include "compress/kernels/convert.h"

namespace inccl::hbi {
namespace {

uint8_t* Bytes(std::byte* data) { return reinterpret_cast<uint8_t*>(data); }

uint32_t Superblocks(uint64_t elements) {
  return static_cast<uint32_t>((elements + kSuperblock - 1) / kSuperblock);
}

Status Unexpected(const Term& term, const char* where) {
  return InternalError(fmt::format("hbi: {} of {} contributions cannot be {} here",
                                   Name(term.format.form), term.format.contributions, where));
}

bool IsPayload(Form form) { return form == Form::kSum || form == Form::kResult; }

}  // namespace

Status PartState::Begin(const CallDesc& call) {
  for (const Status& status :
       {CheckCall(config(), call.collective, call.type, call.op, call.nranks),
        CheckFit(config(), call.collective, call.nranks)}) {
    if (!status.ok()) return status;
  }
  if (call.rank < 0 || call.rank >= call.nranks) {
    return InvalidArgument(fmt::format("hbi: rank {} of {} ranks", call.rank, call.nranks));
  }
  call_ = call;
  stats_ = {};
  const uint32_t window = Superblocks(std::min<uint64_t>(call.count, kWindow));
  const auto n = static_cast<uint32_t>(call.nranks);
  const uint32_t largest = (window + n - 1) / n;
  sum_coder_.Reset(sums_->Get(Collective::kAllGather, call.nranks), largest);
  result_coder_.Reset(results_->Get(Collective::kAllGather, call.nranks), largest);
  values_.resize(std::max<size_t>(values_.size(), size_t{largest} * kSuperblock));
  more_.resize(values_.size());
  own_.resize(std::max<size_t>(own_.size(), sum_coder_.Bytes(largest)));
  result_.resize(std::max<size_t>(result_.size(), result_coder_.Bytes(largest)));
  parts_.reserve(n);
  return Status::Ok();
}

Status PartState::CutRange(const Range& range) {
  parts_.clear();
  const uint64_t end = range.first + range.count;
  const uint64_t window = range.first / kWindow * kWindow;
  if (range.segment == 0 && range.count != 0 && end > range.first && end <= call_.count) {
    const uint64_t length = std::min<uint64_t>(kWindow, call_.count - window);
    const uint64_t all = Superblocks(length), n = static_cast<uint64_t>(call_.nranks);
    uint64_t first = window, sum_at = 0, result_at = 0;
    for (uint64_t p = 0; p < n && first < end; ++p) {
      const uint64_t mine = all / n + (p < all % n ? 1 : 0);
      const uint64_t last = std::min(window + length, first + mine * kSuperblock);
      if (first >= range.first && last > first) {
        parts_.push_back({first, static_cast<uint32_t>(last - first), sum_at, result_at});
        sum_at += sum_coder_.Bytes(static_cast<uint32_t>(mine));
        result_at += result_coder_.Bytes(static_cast<uint32_t>(mine));
      }
      first = last;
    }
    if (!parts_.empty() && parts_[0].first == range.first && first == end) return Status::Ok();
  }
  return InternalError(
      fmt::format("hbi: elements {} to {} of segment {} are not whole parts of a window of a call "
                  "of {} on {} ranks",
                  range.first, end, range.segment, call_.count, call_.nranks));
}

uint64_t PartState::BytesOf(Form form, const Range& range) const {
  if (!IsPayload(form)) return range.count * SizeOf(call_.type);
  const Shape& last = parts_.back();
  const uint32_t superblocks = Superblocks(last.count);
  return TrailerBytes(config()) + (form == Form::kSum
                                       ? last.sum_at + sum_coder_.Bytes(superblocks)
                                       : last.result_at + result_coder_.Bytes(superblocks));
}

Status PartState::CheckPayload(const Range& range, const Term& input) const {
  const uint64_t due = BytesOf(input.format.form, range);
  if (input.bytes != due) {
    return InternalError(fmt::format("hbi: {} payload: expected {} bytes, got {}",
                                     Name(input.format.form), due, input.bytes));
  }
  if (!config().checksum) return Status::Ok();
  return VerifyChecksum(input.data, due - kChecksumBytes, Name(input.format.form), range,
                        call_.rank);
}

Status PartState::CheckInputs(const Range& range, std::span<const Term> inputs,
                              uint32_t* contributions) {
  const auto n = static_cast<uint32_t>(call_.nranks);
  *contributions = 0;
  for (const Term& input : inputs) {
    const uint32_t h = input.format.contributions;
    if (input.format.form == Form::kInput) {
      const uint64_t bytes = BytesOf(Form::kInput, range);
      if (input.data == nullptr || input.bytes < bytes) {
        return InternalError(fmt::format("hbi: an input of {} bytes for {} elements of {}",
                                         input.bytes, range.count, Name(call_.type)));
      }
      *contributions += 1;
      continue;
    }
    const bool one = h == 1 || (config().policy == Policy::kR && h > 1);
    if (input.format.form != Form::kSum || !one) return Unexpected(input, "an input");
    if (Status status = CheckPayload(range, input); !status.ok()) return status;
    *contributions += h;
    if (*contributions > n) break;
  }
  if (*contributions <= n) return Status::Ok();
  return InternalError(fmt::format("hbi: {} contributions of {} ranks", *contributions, n));
}

Status PartState::CheckOutputs(const Range& range, uint32_t contributions,
                               std::span<Term> outputs) const {
  const bool complete = contributions == static_cast<uint32_t>(call_.nranks);
  for (Term& output : outputs) {
    const Form form = output.format.form;
    if (form != Form::kOutput && !IsPayload(form)) return Unexpected(output, "an output");
    const bool partial = contributions == 1 || config().policy == Policy::kR;
    if (form == Form::kSum && (output.format.contributions != contributions || !partial)) {
      return Unexpected(output, "an output");
    }
    if (form != Form::kSum && !complete) {
      return InternalError(fmt::format("hbi: {} from {} of {} contributions", Name(form),
                                       contributions, call_.nranks));
    }
    const uint64_t bytes = BytesOf(form, range);
    if (output.data == nullptr || output.bytes < bytes) {
      return InternalError(fmt::format("hbi: room for {} bytes of {} where {} are needed",
                                       output.bytes, Name(form), bytes));
    }
    output.bytes = static_cast<uint32_t>(bytes);
  }
  return Status::Ok();
}

const std::byte* PartState::ElementsOf(const Term& term, const Range& range,
                                       const Shape& part) const {
  return term.data + (part.first - range.first) * SizeOf(call_.type);
}

namespace {

// Loads the caller's elements for coding: as fp32, padded with zeros, rotated.
void Load(const CallDesc& call, bool rotate, uint64_t first, uint32_t count,
          const std::byte* elements, float* x) {
  const uint32_t padded = Superblocks(count) * kSuperblock;
  ToFloat(call.type, elements, x, count);
  std::fill(x + count, x + padded, 0.0f);
  if (!rotate) return;
  uint32_t counter = HashCounter(call.seed, call.step, first / kBlock, Salt::kSigns);
  for (uint32_t e = 0; e < padded; e += kSuperblock, counter += kSuperblock / 2) {
    BestKernels().rotate(x + e, counter);
  }
}

// Stores coded elements to the caller's memory; overwrites x.
void Store(const CallDesc& call, bool rotate, uint64_t first, uint32_t count, float* x,
           std::byte* elements) {
  uint32_t counter = HashCounter(call.seed, call.step, first / kBlock, Salt::kSigns);
  for (uint32_t e = 0; rotate && e < count; e += kSuperblock, counter += kSuperblock / 2) {
    BestKernels().rotate_back(x + e, counter);
  }
  FromFloat(call.type, x, elements, count);
}

}  // namespace

double PartState::InputError() const {
  return (call_.type == DataType::kFloat64 ? 0x1p-23 : 0) + (config().rht ? 0x1p-16 : 0);
}

Status PartState::Fold(const Range& range, const Shape& part, std::span<const Term> inputs,
                       PartSummary* summary) {
  const uint32_t superblocks = Superblocks(part.count);
  const bool codes_own = inputs.size() > 1 && config().policy == Policy::kD;
  bool first = true;
  for (const Term& input : inputs) {
    float* to = first ? values_.data() : more_.data();
    PartSummary term;
    const uint8_t* payload = Bytes(input.data) + part.sum_at;
    if (input.format.form == Form::kInput) {
      Load(call_, config().rht, part.first, part.count, ElementsOf(input, range, part), to);
      payload = nullptr;
      if (codes_own) {  // all ranks' elements are coded, including the owner's
        EncodeSum(part, to, &term, own_.data());
        payload = own_.data();
      }
    }
    if (payload != nullptr) {
      Status status = sum_coder_.Decode(payload, superblocks, false, to, &term);
      if (!status.ok()) return status;
    }
    if (!first) {
      for (size_t e = 0; e < size_t{superblocks} * kSuperblock; ++e) values_[e] += more_[e];
    }
    first = false;
    summary->error += term.error;
    summary->dropped += term.dropped;
    summary->magnitude += term.magnitude;
  }
  // Each addition rounds; an uncoded addend is no larger than the other addend and the sum
  // together.
  if (inputs.size() > 1) {
    const double additions = 0x1p-23 * static_cast<double>(inputs.size());
    summary->error += (additions + InputError()) * summary->magnitude;
  }
  return Status::Ok();
}

void PartState::EncodeSum(const Shape& part, float* x, PartSummary* summary, uint8_t* payload) {
  const PartRounding rounding{
      .nearest = false,
      .shift = RankShift(call_.rank, call_.nranks),
      .counter = HashCounter(call_.seed, call_.step, part.first / kBlock, Salt::kSum),
      .relative = InputError() + 0x1p-23};
  sum_coder_.Encode(x, Superblocks(part.count), rounding, summary, payload);
}

void PartState::EncodeResult(const Shape& part, PartSummary* summary, uint8_t* payload) {
  const PartRounding rounding{
      .nearest = !config().unbiased,
      .shift = 0,
      .counter = HashCounter(call_.seed, call_.step, part.first / kBlock, Salt::kResult),
      .relative = InputError() + 0x1p-23};
  result_coder_.Encode(values_.data(), Superblocks(part.count), rounding, summary, payload);
}

Status PartState::TakeResult(const Shape& part, const uint8_t* payload, std::byte* elements) {
  PartSummary summary;
  Status status = result_coder_.Decode(payload, Superblocks(part.count), call_.op == ReduceOp::kAvg,
                                       values_.data(), &summary);
  if (!status.ok()) return status;
  const double bound = FinishBound({.error = summary.error,
                                    .sum = summary.magnitude + summary.error,
                                    .divisor = call_.op == ReduceOp::kAvg ? call_.nranks : 1.0,
                                    .rotated = config().rht,
                                    .type = call_.type});
  stats_.error_bound = std::max(stats_.error_bound, bound);
  stats_.dropped_superblocks += summary.dropped;
  CountBlocks(payload, (uint64_t{part.count} + kBlock - 1) / kBlock, config().rht, &stats_);
  Store(call_, config().rht, part.first, part.count, values_.data(), elements);
  return Status::Ok();
}

Status PartState::Forward(const Range& range, const Term& input, std::span<Term> outputs) {
  if (Status status = CheckPayload(range, input); !status.ok()) return status;
  Status status = CheckOutputs(range, static_cast<uint32_t>(call_.nranks), outputs);
  if (!status.ok()) return status;
  const std::byte* decoded = nullptr;
  for (const Term& output : outputs) {
    if (output.format.form == Form::kSum) return Unexpected(output, "an output");
    if (output.format.form == Form::kResult) {
      std::memcpy(output.data, input.data, output.bytes);
    } else if (decoded != nullptr) {
      std::memcpy(output.data, decoded, output.bytes);
    } else {
      decoded = output.data;
      for (const Shape& part : parts_) {
        const size_t offset = (part.first - range.first) * SizeOf(call_.type);
        Status taken = TakeResult(part, Bytes(input.data) + part.result_at, output.data + offset);
        if (!taken.ok()) return taken;
      }
    }
  }
  return Status::Ok();
}

Status PartState::Combine(const Range& range, std::span<const Term> inputs,
                          std::span<Term> outputs) {
  if (Status status = CutRange(range); !status.ok()) return status;
  if (inputs.empty() || outputs.empty()) {
    return InternalError(
        fmt::format("hbi: {} inputs and {} outputs", inputs.size(), outputs.size()));
  }
  if (inputs.size() == 1 && inputs[0].format.form == Form::kResult) {
    return Forward(range, inputs[0], outputs);
  }
  uint32_t contributions = 0;
  if (Status status = CheckInputs(range, inputs, &contributions); !status.ok()) return status;
  Status status = CheckOutputs(range, contributions, outputs);
  if (!status.ok()) return status;
  const auto find = [&](Form form) -> std::byte* {
    for (const Term& output : outputs) {
      if (output.format.form == form) return output.data;
    }
    return nullptr;
  };
  std::byte *sum = find(Form::kSum), *result = find(Form::kResult), *elements = find(Form::kOutput);
  for (const Shape& part : parts_) {
    PartSummary summary;
    if (status = Fold(range, part, inputs, &summary); !status.ok()) return status;
    if (sum != nullptr) {
      if (result != nullptr || elements != nullptr) return Unexpected(outputs[0], "with a sum");
      EncodeSum(part, values_.data(), &summary, Bytes(sum) + part.sum_at);
      continue;
    }
    uint8_t* payload = result != nullptr ? Bytes(result) + part.result_at : result_.data();
    EncodeResult(part, &summary, payload);
    if (elements == nullptr) continue;
    const size_t offset = (part.first - range.first) * SizeOf(call_.type);
    if (status = TakeResult(part, payload, elements + offset); !status.ok()) return status;
  }
  for (const Term& output : outputs) {
    const Form form = output.format.form;
    const std::byte* from = find(form);
    if (output.data != from) {
      std::memcpy(output.data, from, output.bytes);
    } else if (config().checksum && IsPayload(form)) {
      PutChecksum(output.data, output.bytes - kChecksumBytes);
    }
  }
  return Status::Ok();
}

void PartState::Finish(CodecStats* stats) {
  if (stats != nullptr) *stats = stats_;
}

}  // namespace inccl::hbi
