// SPDX-License-Identifier: Apache-2.0
#include "compress/residual/feedback_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "compress/kernels/convert.h"

namespace inccl {
namespace {

uint64_t Superblocks(uint64_t elements) { return (elements + kSuperblock - 1) / kSuperblock; }

template <typename T>
T LoadAs(const std::byte* elements, size_t i) {
  T value;
  std::memcpy(&value, elements + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

Status FeedbackState::Begin(const CollectiveArgs& call) {
  codec_->set_non_temporal(non_temporal_output(), non_temporal_payloads());
  codec_->set_team(team());
  if (Status status = codec_->Begin(call); !status.ok()) return status;
  if (one_owner_ && call.collective == Collective::kAllReduce) codec_->set_total_feedback(this);
  call_ = call;
  const uint64_t segments =
      call.collective == Collective::kReduceScatter ? static_cast<uint64_t>(call.nranks) : 1;
  if (residual_->count() != segments * call.count) {
    return InternalError(fmt::format("residual of {} elements for an input of {} x {}",
                                     residual_->count(), segments, call.count));
  }
  superblocks_ = Superblocks(call.count);
  missing_ = segments * superblocks_;
  accounted_.assign(missing_, 0);
  return Status::Ok();
}

uint64_t FeedbackState::FirstOf(const Range& range) const {
  const bool segmented = call_.collective == Collective::kReduceScatter;
  return (segmented ? range.segment * call_.count : 0) + range.first;
}

void FeedbackState::Correct(const Range& range, const std::byte* elements) {
  const size_t count = range.count, bytes = count * SizeOf(call_.type);
  if (own_.size() < count) own_.resize(count);
  if (corrected_.size() < bytes) corrected_.resize(bytes);
  if (call_.type == DataType::kFloat64) {
    const std::span<float> residual{own_.data(), count};
    residual_->Scaled(FirstOf(range), residual);
    if (double_sums_.size() < count) double_sums_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      double_sums_[i] = LoadAs<double>(elements, i) + static_cast<double>(residual[i]);
    }
    std::memcpy(corrected_.data(), double_sums_.data(), bytes);
    return;
  }
  if (call_.type == DataType::kFloat32) {
    sums_ = reinterpret_cast<float*>(corrected_.data());
    residual_->Add(FirstOf(range), reinterpret_cast<const float*>(elements), {sums_, count});
    return;
  }
  if (wide_.size() < count) wide_.resize(count);
  sums_ = wide_.data();
  ToFloat(call_.type, elements, sums_, count);
  residual_->Add(FirstOf(range), sums_, {sums_, count});
  FromFloat(call_.type, sums_, corrected_.data(), count);
}

Status FeedbackState::Account(const Range& range) {
  const uint64_t first =
      (call_.collective == Collective::kReduceScatter ? range.segment * superblocks_ : 0) +
      range.first / kSuperblock;
  const auto begin = accounted_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(Superblocks(range.count));
  const auto known = static_cast<uint64_t>(std::count(begin, end, 1));
  if (known == static_cast<uint64_t>(end - begin)) return Status::Ok();
  const size_t count = range.count;
  Result<bool> own = codec_->Own(range, corrected_.data(), own_.data());
  if (!own.ok()) return own.status();
  if (call_.type == DataType::kFloat64) {
    for (size_t i = 0; i < count; ++i) {
      own_[i] = *own ? static_cast<float>(double_sums_[i] - static_cast<double>(own_[i])) : 0.0f;
    }
    residual_->SetErrors(FirstOf(range), {own_.data(), count});
  } else {
    if (!*own) ToFloat(call_.type, corrected_.data(), own_.data(), count);
    residual_->SetErrors(FirstOf(range), {sums_, count}, own_.data());
  }
  std::fill(begin, end, 1);
  missing_ -= static_cast<uint64_t>(end - begin) - known;
  return Status::Ok();
}

Status FeedbackState::Combine(const Range& range, std::span<const Term> inputs,
                              std::span<Term> outputs) {
  const auto own = std::find_if(inputs.begin(), inputs.end(), [](const Term& input) {
    return input.format.form == Form::kInput;
  });
  if (own == inputs.end() || range.count == 0) return codec_->Combine(range, inputs, outputs);
  Correct(range, own->data);
  inputs_.assign(inputs.begin(), inputs.end());
  inputs_[static_cast<size_t>(own - inputs.begin())].data = corrected_.data();
  Status status = codec_->Combine(range, inputs_, outputs);
  if (!status.ok() || outputs[0].format.form == Form::kSide) return status;
  return Account(range);
}

Status FeedbackState::CheckComplete() const {
  if (missing_ == 0) return Status::Ok();
  return InternalError(
      fmt::format("residual: {} superblocks of the input were never summed", missing_));
}

void FeedbackState::CombineAlone(const CollectiveArgs& call, const std::byte* input,
                                 std::byte* output, Residual* residual) {
  constexpr size_t kFeedbackTile = 1024;
  float sums[kFeedbackTile], sent[kFeedbackTile];
  const size_t size = SizeOf(call.type);
  for (uint64_t at = 0; at < call.count; at += kFeedbackTile) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kFeedbackTile, call.count - at));
    if (call.type == DataType::kFloat64) {
      residual->Scaled(at, {sums, count});
      for (size_t i = 0; i < count; ++i) {
        const double exact = LoadAs<double>(input + at * size, i) + static_cast<double>(sums[i]);
        std::memcpy(output + (at + i) * size, &exact, size);
      }
      std::copy_n(sums, count, sent);
    } else {
      ToFloat(call.type, input + at * size, sums, count);
      residual->Add(at, sums, {sums, count});
      FromFloat(call.type, sums, output + at * size, count);
      ToFloat(call.type, output + at * size, sent, count);
    }
    residual->SetErrors(at, {sums, count}, sent);
  }
}

}  // namespace inccl
