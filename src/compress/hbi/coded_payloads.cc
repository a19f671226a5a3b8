// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/coded_payloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "compress/checked_state.h"
#include "compress/hbi/entropy.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

// Single contributions and results. Sums on their way have packed fields.
bool IsCoded(const Format& format) {
  return format.form == Form::kResult || (format.form == Form::kSum && format.contributions == 1);
}

// The bytes of side words that a payload begins with.
size_t OwnWordBytes(const SliceContext& slice, const Format& format) {
  const bool own = format.form == Form::kResult && slice.planner->requantizes();
  return own ? size_t{slice.superblocks()} * kWordBytes : 0;
}

// Checks a payload's checksum and takes it off its length.
Status TakeChecksum(const CodedPayloads::Call& call, Term* input) {
  if (call.trailer == 0) return Status::Ok();
  const char* const name = Name(input->format.form);
  if (input->bytes < call.trailer) {
    return InternalError(fmt::format("hbi: {} payload of {} bytes has no checksum of {}", name,
                                     input->bytes, call.trailer));
  }
  input->bytes -= call.trailer;
  return VerifyChecksum(input->data, input->bytes, name, *call.range, call.rank);
}

}  // namespace

std::span<const uint16_t> CodedPayloads::LevelsOf(const SliceContext& slice, Form form) {
  const bool second = form == Form::kResult && slice.planner->requantizes();
  const std::span<const Point> points = slice.planner->points();
  levels_.resize(slice.superblocks());
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = points[slice.points[s]];
    levels_[s] = second ? point.k2 : point.k;
  }
  return levels_;
}

Status CodedPayloads::Decode(const Call& call, const Term& input, const Term& packed) {
  const size_t words = OwnWordBytes(*call.slice, input.format);
  const uint64_t most = packed.bytes + HeadBytes(call.slice->superblocks());
  if (input.bytes < words || input.bytes > most) {
    return InternalError(fmt::format("hbi: {} payload: expected {} to {} bytes, got {}",
                                     Name(input.format.form), words, most, input.bytes));
  }
  const uint8_t* const in = Unsigned(input.data);
  uint8_t* const to = Unsigned(packed.data);
  if (words != 0) std::memcpy(to, in, words);
  if (EntropyDecode(call.team, *call.slice->kernels, LevelsOf(*call.slice, input.format.form),
                    in + words, input.bytes - words, to + words)) {
    return Status::Ok();
  }
  return InternalError(
      fmt::format("hbi: {} payload of {} bytes for elements {} to {} is not made of codes",
                  Name(input.format.form), input.bytes, call.range->first,
                  call.range->first + call.range->count));
}

Status CodedPayloads::Encode(const Call& call, const Term& packed, Term* output) {
  const size_t words = OwnWordBytes(*call.slice, packed.format);
  const uint64_t most = packed.bytes + HeadBytes(call.slice->superblocks()) + call.trailer;
  if (Status status = CheckCapacity(*output, most); !status.ok()) return status;
  uint8_t* const out = Unsigned(output->data);
  const uint8_t* const from = Unsigned(packed.data);
  std::memcpy(out, from, words);
  const size_t bytes =
      words + EntropyEncode(call.team, *call.slice->kernels,
                            LevelsOf(*call.slice, packed.format.form), from + words, out + words);
  output->bytes = static_cast<uint32_t>(bytes);
  return Status::Ok();
}

bool CodedPayloads::IsMade(const Format& format) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const Term& term) { return term.format == format; });
}

Status CodedPayloads::Take(const Call& call, std::span<const Term> inputs,
                           std::span<const Term> outputs) {
  const uint64_t sum = SumBytes(*call.slice, 1), result = ResultBytes(*call.slice);
  const size_t each = (std::max(sum, result) + kReadSlack + 63) / 64 * 64;
  const size_t needed = (inputs.size() + 2) * each;  // of outputs there are at most two forms
  if (buffer_.size() < needed) buffer_.resize(needed);
  auto* at = reinterpret_cast<std::byte*>(buffer_.data());
  const auto place = [&](const Format& format) {
    std::byte* const here = std::exchange(at, at + each);
    return Term{format, here, static_cast<uint32_t>(format.form == Form::kSum ? sum : result)};
  };
  inputs_.clear();
  outputs_.clear();
  for (Term input : inputs) {
    if (input.format.form != Form::kInput) {
      if (Status status = TakeChecksum(call, &input); !status.ok()) return status;
    }
    if (IsCoded(input.format)) {
      const Term packed = place(input.format);
      if (Status status = Decode(call, input, packed); !status.ok()) return status;
      input = packed;
    }
    inputs_.push_back(input);
  }
  for (Term output : outputs) {
    if (IsCoded(output.format)) {
      if (IsForward(inputs) || IsMade(output.format)) continue;
      output = place(output.format);
    } else if (output.format.form != Form::kOutput) {
      output.bytes -= std::min(output.bytes, call.trailer);
    }
    outputs_.push_back(output);
  }
  return Status::Ok();
}

Status CodedPayloads::Put(const Call& call, std::span<const Term> inputs, std::span<Term> outputs) {
  size_t next = 0;  // of outputs_
  for (size_t i = 0; i < outputs.size(); ++i) {
    Term& output = outputs[i];
    const Term* same = nullptr;
    if (IsCoded(output.format)) {
      if (IsForward(inputs)) same = inputs.data();
      for (const Term& before : outputs.first(i)) {
        if (before.format == output.format) same = &before;
      }
    }
    if (same != nullptr) {
      if (Status status = CheckCapacity(output, same->bytes); !status.ok()) return status;
      std::memcpy(output.data, same->data, same->bytes);
      output.bytes = same->bytes;
      continue;
    }
    const Term& made = outputs_[next++];
    if (IsCoded(output.format)) {
      if (Status status = Encode(call, made, &output); !status.ok()) return status;
    } else {
      output.bytes = made.bytes;
    }
    if (output.format.form == Form::kOutput || call.trailer == 0) continue;
    PutChecksum(output.data, output.bytes);
    output.bytes += call.trailer;
  }
  return Status::Ok();
}

}  // namespace inccl::hbi
