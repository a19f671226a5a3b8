// SPDX-License-Identifier: Apache-2.0
#include "compress/residual/residual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "compress/kernels/convert.h"
#include "compress/kernels/feedback.h"

namespace inccl {

const TotalResidual::Entry* TotalResidual::Find(uint64_t superblock) const {
  if (superblock >= index_.size() || index_[superblock] == 0) return nullptr;
  return &entries_[index_[superblock] - 1];
}

void TotalResidual::AddTo(uint64_t superblock, float factor, std::span<float> sum) const {
  const Entry* entry = Find(superblock);
  if (entry == nullptr) return;
  const auto& errors = entry->rows[entry->now];
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * errors[i];
}

void TotalResidual::Set(uint64_t superblock, float factor, std::span<const float> sum,
                        const float* sent) {
  if (superblock >= index_.size()) index_.resize(superblock + 1, 0);
  uint32_t& index = index_[superblock];
  if (index == 0) {
    entries_.emplace_back().superblock = superblock;
    index = static_cast<uint32_t>(entries_.size());
  }
  Entry& entry = entries_[index - 1];
  entry.pending = true;
  auto& next = entry.rows[(entry.now + 1) % 3];
  for (size_t i = 0; i < sum.size(); ++i) {
    const float error = (sum[i] - sent[i]) / factor;
    next[i] = std::isfinite(error) ? error : 0.0f;
  }
}

void TotalResidual::TakeBack(uint64_t operation) {
  for (Entry& entry : entries_) {
    if (entry.operation == operation) {
      entry.now = (entry.now + 2) % 3;
      entry.empty = false;
    }
    entry.operation = 0;
  }
}

void TotalResidual::Clear() {
  index_.clear();
  entries_.clear();
}

void TotalResidual::AddAll(std::span<float> values) const {
  for (const Entry& entry : entries_) {
    const uint64_t first = entry.superblock * kSuperblock;
    if (first >= values.size()) continue;
    const size_t count = std::min<size_t>(kSuperblock, values.size() - first);
    for (size_t i = 0; i < count; ++i) values[first + i] += entry.rows[entry.now][i];
  }
}

namespace {

constexpr size_t kResidualTile = 1024;

Status InUse() { return InvalidUsage("residual: a call is using it"); }

}  // namespace

Status Residual::Check(const ResidualOptions& options) {
  if (options.storage != DataType::kFloat32 && options.storage != DataType::kBfloat16) {
    return InvalidArgument(
        fmt::format("storage: {}: neither float32 nor bfloat16", Name(options.storage)));
  }
  if (!(options.keep >= 0 && options.keep < 1)) {
    return InvalidArgument(fmt::format("keep: {} is not in [0, 1)", options.keep));
  }
  return Status::Ok();
}

Residual::Residual(uint64_t count, const ResidualOptions& options)
    : count_(count),
      options_(options),
      current_(count * SizeOf(options.storage)),
      former_(current_.size()),
      pending_(current_.size()) {}

Status Residual::Take(const Lineage& lineage) {
  if (taken_.exchange(true, std::memory_order_acquire)) return InUse();
  TakeBackUncounted(lineage);
  return Status::Ok();
}

void Residual::TakeBackUncounted(const Lineage& lineage) {
  if (lineage.Counts(last_)) return;
  std::swap(current_, former_);
  totals_.TakeBack(last_.operation);
  last_ = {};
}

void Residual::End(const std::optional<CallName>& committed) {
  if (committed) {
    std::swap(current_, pending_);
    std::swap(former_, pending_);
    last_ = *committed;
  }
  totals_.End(committed.has_value(), last_.operation,
              [&](uint64_t superblock, std::span<const float> errors) {
                AddToContributions(superblock * kSuperblock, errors);
              });
  taken_.store(false, std::memory_order_release);
}

void Residual::Load(const Bytes& from, uint64_t first, std::span<float> x) const {
  ToFloat(options_.storage, from.data() + first * SizeOf(options_.storage), x.data(), x.size());
}

// Sums and roundings to the storage's type end at its largest number: a residual stays finite.
void Residual::Store(uint64_t first, std::span<const float> x, Bytes* to) const {
  const float top = LargestOf(options_.storage);
  const size_t size = SizeOf(options_.storage);
  float limited[kResidualTile];
  for (size_t at = 0; at < x.size(); at += kResidualTile) {
    const size_t count = std::min(kResidualTile, x.size() - at);
    for (size_t i = 0; i < count; ++i) limited[i] = std::clamp(x[at + i], -top, top);
    FromFloat(options_.storage, limited, to->data() + (first + at) * size, count);
  }
}

void Residual::AddToContributions(uint64_t first, std::span<const float> errors) {
  if (first >= count_) return;
  float sums[kSuperblock];
  const size_t count = std::min<size_t>(errors.size(), count_ - first);
  Load(current_, first, {sums, count});
  for (size_t i = 0; i < count; ++i) sums[i] += errors[i];
  Store(first, {sums, count}, &current_);
}

void Residual::Scaled(uint64_t first, std::span<float> x) const {
  Load(current_, first, x);
  if (scale_ == 1.0f) return;
  for (float& value : x) value *= scale_;
}

Corrected Residual::Correction(uint64_t first, DataType type, const void* x, float scale) const {
  return {.type = type,
          .x = x,
          .storage = options_.storage,
          .residual = current_.data() + first * SizeOf(options_.storage),
          .scale = scale};
}

void Residual::Add(uint64_t first, DataType type, const void* x, uint64_t count, void* sums) const {
  AddResidual(Correction(first, type, x, scale_), sums, count);
}

void Residual::SetErrors(uint64_t first, DataType type, const void* x,
                         std::span<const float> sent) {
  StoreErrors(Correction(first, type, x, scale_), sent.data(), options_.keep * scale_,
              1 - options_.keep, pending_.data() + first * SizeOf(options_.storage), sent.size());
}

void Residual::SetErrors(uint64_t first, std::span<const float> errors) {
  StoreErrors(Correction(first, DataType::kFloat32, errors.data(), 0), nullptr,
              options_.keep * scale_, 1 - options_.keep,
              pending_.data() + first * SizeOf(options_.storage), errors.size());
}

template <typename Body>
Status Residual::WhileUnused(const Body& body) {
  if (taken_.exchange(true, std::memory_order_acquire)) return InUse();
  body();
  taken_.store(false, std::memory_order_release);
  return Status::Ok();
}

Status Residual::CheckCount(size_t count) const {
  if (count == count_) return Status::Ok();
  return InvalidArgument(fmt::format("count: {}, the residual has {} elements", count, count_));
}

Status Residual::SetScale(float scale) {
  return WhileUnused([&] { scale_ = scale; });
}

Status Residual::Export(std::span<float> values) {
  if (Status status = CheckCount(values.size()); !status.ok()) return status;
  return WhileUnused([&] {
    Load(current_, 0, values);
    totals_.AddAll(values);
  });
}

Status Residual::Import(std::span<const float> values) {
  if (Status status = CheckCount(values.size()); !status.ok()) return status;
  return WhileUnused([&] {
    Store(0, values, &current_);
    totals_.Clear();
    last_ = {};
  });
}

Status Residual::Reset() {
  return WhileUnused([&] {
    std::fill(current_.begin(), current_.end(), std::byte{0});
    totals_.Clear();
    last_ = {};
  });
}

Status Residual::Settle(const Lineage& lineage) {
  return WhileUnused([&] { TakeBackUncounted(lineage); });
}

namespace {

// Elements whose errors are found at once: what is read and written stays in the nearest caches.
constexpr uint64_t kPiece = 16 * kSuperblock;

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
  codec_->set_shortens(shortens());
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

void FeedbackState::Correct(const Range& piece, const std::byte* x, std::byte* sums) {
  const size_t count = piece.count;
  if (call_.type != DataType::kFloat64) {
    return residual_->Add(FirstOf(piece), call_.type, x, count, sums);
  }
  residual_->Scaled(FirstOf(piece), {own_.data(), count});
  for (size_t i = 0; i < count; ++i) {
    const double sum = LoadAs<double>(x, i) + static_cast<double>(own_[i]);
    std::memcpy(sums + i * sizeof sum, &sum, sizeof sum);
  }
}

Status FeedbackState::SetErrors(const Range& piece, const std::byte* x, const std::byte* sums) {
  const size_t count = piece.count;
  const Result<bool> own = codec_->Own(piece, sums, own_.data());
  if (!own.ok()) return own.status();
  if (call_.type != DataType::kFloat64) {
    if (!*own) ToFloat(call_.type, sums, own_.data(), count);
    residual_->SetErrors(FirstOf(piece), call_.type, x, {own_.data(), count});
    return Status::Ok();
  }
  for (size_t i = 0; i < count; ++i) {
    const double sum = LoadAs<double>(sums, i);
    own_[i] = *own ? static_cast<float>(sum - static_cast<double>(own_[i])) : 0.0f;
  }
  residual_->SetErrors(FirstOf(piece), {own_.data(), count});
  return Status::Ok();
}

bool FeedbackState::Account(const Range& range) {
  const uint64_t first =
      (call_.collective == Collective::kReduceScatter ? range.segment * superblocks_ : 0) +
      range.first / kSuperblock;
  const auto begin = accounted_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(Superblocks(range.count));
  const auto known = static_cast<uint64_t>(std::count(begin, end, 1));
  std::fill(begin, end, 1);
  missing_ -= static_cast<uint64_t>(end - begin) - known;
  return known < static_cast<uint64_t>(end - begin);
}

Status FeedbackState::Combine(const Range& range, std::span<const Term> inputs,
                              std::span<Term> outputs) {
  const auto own = std::find_if(inputs.begin(), inputs.end(), [](const Term& input) {
    return input.format.form == Form::kInput;
  });
  if (own == inputs.end() || range.count == 0) return codec_->Combine(range, inputs, outputs);
  const size_t size = SizeOf(call_.type);
  if (corrected_.size() < range.count * size) corrected_.resize(range.count * size);
  own_.resize(kPiece);
  // Before the codec, which may write its result over the input.
  const bool account = outputs[0].format.form != Form::kSide && Account(range);
  const uint64_t end = range.first + range.count;
  for (Range piece = range; piece.first < end; piece.first += kPiece) {
    piece.count = static_cast<uint32_t>(std::min<uint64_t>(kPiece, end - piece.first));
    const size_t at = (piece.first - range.first) * size;
    Correct(piece, own->data + at, corrected_.data() + at);
    if (!account) continue;
    if (Status status = SetErrors(piece, own->data + at, corrected_.data() + at); !status.ok()) {
      return status;
    }
  }
  inputs_.assign(inputs.begin(), inputs.end());
  inputs_[static_cast<size_t>(own - inputs.begin())].data = corrected_.data();
  return codec_->Combine(range, inputs_, outputs);
}

Status FeedbackState::CheckComplete() const {
  if (missing_ == 0) return Status::Ok();
  return InternalError(
      fmt::format("residual: {} superblocks of the input were never summed", missing_));
}

void FeedbackState::CombineAlone(const CollectiveArgs& call, const std::byte* input,
                                 std::byte* output, Residual* residual) {
  constexpr size_t kFeedbackTile = 1024;
  float sent[kFeedbackTile];
  const size_t size = SizeOf(call.type);
  for (uint64_t at = 0; at < call.count; at += kFeedbackTile) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kFeedbackTile, call.count - at));
    if (call.type == DataType::kFloat64) {
      residual->Scaled(at, {sent, count});
      for (size_t i = 0; i < count; ++i) {
        const double exact = LoadAs<double>(input + at * size, i) + static_cast<double>(sent[i]);
        std::memcpy(output + (at + i) * size, &exact, size);
      }
      std::fill_n(sent, count, 0.0f);
      residual->SetErrors(at, {sent, count});
      continue;
    }
    // In place the sums take the place of the input.
    std::byte input_tile[kFeedbackTile * sizeof(float)];
    std::memcpy(input_tile, input + at * size, count * size);
    residual->Add(at, call.type, input_tile, count, output + at * size);
    ToFloat(call.type, output + at * size, sent, count);
    residual->SetErrors(at, call.type, input_tile, {sent, count});
  }
}

}  // namespace inccl
