// SPDX-License-Identifier: Apache-2.0
#include "compress/residual/residual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "compress/kernels/convert.h"

namespace inccl {
namespace {

constexpr size_t kResidualTile = 1024;

// fp32 storage; the bytes of a vector are aligned for any type.
const float* Floats(const std::vector<std::byte>& storage) {
  return reinterpret_cast<const float*>(storage.data());
}
float* Floats(std::vector<std::byte>& storage) { return reinterpret_cast<float*>(storage.data()); }

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

Status Residual::Take() {
  if (taken_.exchange(true, std::memory_order_acquire)) return InUse();
  return Status::Ok();
}

void Residual::End(bool committed, uint64_t operation) {
  if (committed) {
    std::swap(current_, pending_);
    std::swap(former_, pending_);
    undoable_ = operation;
  }
  totals_.End(committed, operation, [&](uint64_t superblock, std::span<const float> errors) {
    AddToContributions(superblock * kSuperblock, errors);
  });
  taken_.store(false, std::memory_order_release);
}

void Residual::Load(const std::vector<std::byte>& from, uint64_t first, std::span<float> x) const {
  ToFloat(options_.storage, from.data() + first * SizeOf(options_.storage), x.data(), x.size());
}

// Sums and roundings to the storage's type end at its largest number: a residual stays finite.
void Residual::Store(uint64_t first, std::span<const float> x, std::vector<std::byte>* to) const {
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

void Residual::Add(uint64_t first, const float* x, std::span<float> sums) const {
  float tile[kResidualTile];
  for (size_t at = 0; at < sums.size(); at += kResidualTile) {
    const size_t count = std::min(kResidualTile, sums.size() - at);
    const float* residual = tile;
    if (options_.storage == DataType::kFloat32) {
      residual = Floats(current_) + first + at;
    } else {
      Load(current_, first + at, {tile, count});
    }
    float* const to = sums.data() + at;
    if (scale_ == 1.0f) {
      for (size_t i = 0; i < count; ++i) to[i] = x[at + i] + residual[i];
    } else {
      for (size_t i = 0; i < count; ++i) to[i] = x[at + i] + scale_ * residual[i];
    }
  }
}

void Residual::SetErrors(uint64_t first, std::span<const float> sums, const float* sent) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const bool in_place = options_.storage == DataType::kFloat32 && options_.keep == 0;
  float tile[kResidualTile], kept[kResidualTile];
  for (size_t at = 0; at < sums.size(); at += kResidualTile) {
    const size_t count = std::min(kResidualTile, sums.size() - at);
    const float* const of = sums.data() + at;
    float* const next = in_place ? Floats(pending_) + first + at : tile;
    const auto finite = [](float error) { return std::fabs(error) <= kLargest ? error : 0.0f; };
    if (sent == nullptr) {
      for (size_t i = 0; i < count; ++i) next[i] = finite(of[i]);
    } else {
      for (size_t i = 0; i < count; ++i) next[i] = finite(of[i] - sent[at + i]);
    }
    if (in_place) continue;
    if (options_.keep != 0) {
      Load(current_, first + at, {kept, count});
      for (size_t i = 0; i < count; ++i) {
        next[i] = options_.keep * kept[i] + (1 - options_.keep) * next[i];
      }
    }
    Store(first + at, {next, count}, &pending_);
  }
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
    undoable_ = 0;
  });
}

Status Residual::Reset() {
  return WhileUnused([&] {
    std::fill(current_.begin(), current_.end(), std::byte{0});
    totals_.Clear();
    undoable_ = 0;
  });
}

Status Residual::Rollback(uint64_t operation) {
  return WhileUnused([&] {
    // Otherwise the call is final: later operations may be those of a communicator with numbers of
    // its own.
    if (undoable_ > operation) {
      std::swap(current_, former_);
      totals_.Rollback(undoable_);
    }
    undoable_ = 0;
  });
}

}  // namespace inccl
