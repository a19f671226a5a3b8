// SPDX-License-Identifier: Apache-2.0
#include "compress/qsgd/qsgd_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "compress/kernels/convert.h"
#include "compress/qsgd/fields.h"

namespace inccl::qsgd {

Status State::OnBegin() {
  const CollectiveArgs& c = call();
  Status status = CheckCall(*config_, c.collective, c.type, c.op, c.nranks);
  if (!status.ok()) return status;
  largest_.assign(segments() * Windows(c.count), 0);
  const uint64_t superblocks = (c.count + kSuperblock - 1) / kSuperblock;
  scales_.resize(segments() * superblocks * FieldBytes(kSuperblock, config_->index_bits()));
  return Status::Ok();
}

uint64_t State::RangeBytes(const Range& range, uint32_t width) const {
  const uint32_t whole = range.count / kSuperblock, tail = range.count % kSuperblock;
  return uint64_t{whole} * FieldBytes(kSuperblock, width) + FieldBytes(tail, width);
}

uint64_t State::PayloadBytes(const Range& range, const Format& format) const {
  const uint32_t h = format.form == Form::kSum ? format.contributions : complete();
  return RangeBytes(range, Width(h, config_->levels()));
}

Status State::Enter(const Range& range) {
  if (range.first / kWindow != (range.first + range.count - 1) / kWindow) {
    return Error(range, fmt::format("not inside a window of {}", kWindow));
  }
  const CollectiveArgs& c = call();
  const uint32_t bits = LargestOfWindow(range);
  const double largest = static_cast<double>(std::bit_cast<float>(bits));
  for (size_t k = 0; k < config_->scales.size(); ++k) {
    const double levels = config_->scales[k];
    factor_[k] = bits == 0 || bits == kPoison ? 0 : levels / largest;
    unit_[k] = bits == kPoison ? std::numeric_limits<double>::quiet_NaN() : largest / levels;
    if (Reduces(c.collective) && c.op == ReduceOp::kAvg) unit_[k] /= c.nranks;
  }
  const uint64_t place = Mix64(range.first / kWindow ^ Mix64(range.segment));
  key_ = static_cast<uint32_t>(
      Mix64(c.seed ^ Mix64(c.step ^ Mix64(place ^ Mix64(static_cast<uint64_t>(c.rank))))));
  return Status::Ok();
}

const float* State::Load(const Part& part, const std::byte* elements, float* x) const {
  const DataType type = call().type;
  const std::byte* from = elements + part.at * SizeOf(type);
  if (type == DataType::kFloat32 && part.count == kSuperblock) {
    return reinterpret_cast<const float*>(from);
  }
  ToFloat(type, from, x, part.count);
  std::fill(x + part.count, x + Padded(part.count), 0.0f);
  return x;
}

ScaleChoice State::ByScale(const Range& range, const Part& part, const double* by_scale,
                           uint8_t* scales) {
  if (config_->index_bits() == 0) return {nullptr, 1, by_scale};
  const std::byte* from = Scales(range, part);
  UnpackIndices(from, static_cast<uint64_t>(scales_.data() + scales_.size() - from), part.count,
                config_->index_bits(), scales);
  return {scales, config_->scales.size(), by_scale};
}

// Adds floor(x * s / M + r) with r uniform in [0, 1): its mean is x * s / M, and zero stays zero.
void State::AddElements(const Range& range, const Part& part, const std::byte* elements,
                        uint32_t* sums) {
  if (factor_[0] == 0) {
    for (uint32_t i = 0; i < part.count; ++i) sums[i] += config_->levels();
    return;
  }
  float x[kSuperblock];
  uint8_t scales[kSuperblock];
  const uint32_t first =
      key_ + static_cast<uint32_t>(part.superblock % (kWindow / kSuperblock)) * kSuperblock;
  BestKernels().add_codes({.x = Load(part, elements, x),
                           .first = first,
                           .levels = config_->levels(),
                           .factor = ByScale(range, part, factor_, scales)},
                          part.count, sums);
}

Status State::AddPayload(const Range& range, const Part& part, const std::byte* payload,
                         uint64_t left, uint32_t contributions, uint32_t* sums) const {
  const uint32_t width = Width(contributions, config_->levels());
  const uint64_t at = Offset(part, width);
  const uint32_t largest = AddSums(payload + at, left - at, part.count, width, sums);
  if (largest <= 2 * contributions * config_->levels()) return Status::Ok();
  return Error(range, fmt::format("a sum of {} codes of {} levels is {}", contributions,
                                  config_->levels(), largest));
}

void State::Store(const Range& range, const Part& part, const uint32_t* sums,
                  uint32_t contributions, DataType type, std::byte* elements) {
  std::byte* to = elements + part.at * SizeOf(type);
  float x[kSuperblock];
  uint8_t scales[kSuperblock];
  const bool straight = type == DataType::kFloat32 && part.count == kSuperblock;
  float* values = straight ? reinterpret_cast<float*>(to) : x;
  const ScaleChoice unit = ByScale(range, part, unit_, scales);
  // The units descend with the scales.
  if (unit_[0] * contributions * config_->levels() > static_cast<double>(inccl::LargestOf(type))) {
    return StoreLarge(sums, contributions, unit, part.count, type, to);
  }
  BestKernels().decode(sums, contributions * config_->levels(), unit, part.count, values);
  if (!straight) FromFloat(type, values, to, part.count);
}

// A sum is off by less than a unit for each contribution. If that can explain why it is beyond the
// type's largest number, it becomes that number; fp64 holds it as it is.
void State::StoreLarge(const uint32_t* sums, uint32_t contributions, const ScaleChoice& unit,
                       uint32_t count, DataType type, std::byte* to) {
  const auto top = static_cast<double>(inccl::LargestOf(type));
  const uint32_t zero = contributions * config_->levels();
  for (uint32_t i = 0; i < count; ++i) {
    const double one = unit.by_scale[unit.index == nullptr ? 0 : unit.index[i]];
    const double value = one * static_cast<int32_t>(sums[i] - zero), size = std::fabs(value);
    if (type == DataType::kFloat64 && size > top) {
      std::memcpy(to + i * sizeof value, &value, sizeof value);
      continue;
    }
    const bool explained = size > top && size - one * contributions <= top;
    const auto x = static_cast<float>(explained ? std::copysign(top, value) : value);
    FromFloat(type, &x, to + i * SizeOf(type), 1);
  }
}

Status State::Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
                   std::span<Term> outputs) {
  if (Status status = Enter(range); !status.ok()) return status;
  const uint32_t width = Width(contributions, config_->levels());
  Term* elements = FindOutput(Form::kOutput, outputs);
  Status status = ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock];
    std::fill_n(sums, Padded(part.count), 0u);
    for (const Term& input : inputs) {
      if (input.format.form == Form::kInput) {
        AddElements(range, part, input.data, sums);
        continue;
      }
      Status added =
          AddPayload(range, part, input.data, input.bytes, input.format.contributions, sums);
      if (!added.ok()) return added;
    }
    for (const Term& output : outputs) {
      if (output.format.form == Form::kOutput) continue;
      PackSums(sums, part.count, width, output.data + Offset(part, width));
    }
    if (elements != nullptr) Store(range, part, sums, complete(), call().type, elements->data);
    return Status::Ok();
  });
  if (status.ok() && elements != nullptr) CopyToOthers(Form::kOutput, outputs);
  return status;
}

Status State::DecodeResult(const Range& range, const Term& payload, std::byte* elements) {
  if (Status status = Enter(range); !status.ok()) return status;
  return ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock];
    std::fill_n(sums, Padded(part.count), 0u);
    Status status = AddPayload(range, part, payload.data, payload.bytes, complete(), sums);
    if (status.ok()) Store(range, part, sums, complete(), call().type, elements);
    return status;
  });
}

Result<bool> State::Own(const Range& range, const std::byte* x, float* y) {
  if (Status status = Enter(range); !status.ok()) return status;
  Status status = ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock];
    std::fill_n(sums, Padded(part.count), 0u);
    AddElements(range, part, x, sums);
    Store(range, part, sums, 1, DataType::kFloat32, reinterpret_cast<std::byte*>(y));
    return Status::Ok();
  });
  if (!status.ok()) return status;
  if (Reduces(call().collective) && call().op == ReduceOp::kAvg) {
    for (uint32_t i = 0; i < range.count; ++i) y[i] *= static_cast<float>(call().nranks);
  }
  return true;
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Half a unit in the last place of a result of magnitude `top`.
double TypeError(DataType type, double top) {
  top = std::min(top, static_cast<double>(inccl::LargestOf(type)));
  if (type == DataType::kFloat16) return top * 0x1p-11 + 0x1p-25;
  if (type == DataType::kBfloat16) return top * 0x1p-8 + 0x1p-134;
  return 0;
}

}  // namespace

void State::Finish(CodecStats* stats) {
  if (stats == nullptr) return;
  *stats = {};
  const uint64_t windows = Windows(call().count);
  const double n = complete();
  const double divide = Reduces(call().collective) && call().op == ReduceOp::kAvg ? n : 1;
  for (uint64_t w = 0; w < largest_.size(); ++w) {
    const uint64_t first = w % windows * kWindow;
    const uint64_t elements = std::min<uint64_t>(kWindow, call().count - first);
    const uint64_t blocks = (elements + kBlock - 1) / kBlock;
    if (largest_[w] == 0) stats->zero_blocks += blocks;
    if (largest_[w] == kPoison) {
      stats->poisoned_blocks += blocks;
      stats->error_bound = kInfinity;
      continue;
    }
    // Each code is off by less than one unit; fp32 rounds in the conversion and in the result.
    const double largest = static_cast<double>(std::bit_cast<float>(largest_[w]));
    if (n * largest / divide > static_cast<double>(inccl::LargestOf(call().type))) {
      stats->error_bound = kInfinity;  // the sum may leave the type
      continue;
    }
    const double error =
        n * (largest / config_->levels() + largest * 0x1p-22 + 0x1p-149) / divide +
        TypeError(call().type, n * largest * (1 + 1.0 / config_->levels()) / divide);
    stats->error_bound = std::max(stats->error_bound, error);
  }
}

std::unique_ptr<CodecState> NewState(std::shared_ptr<const Config> config) {
  return std::make_unique<State>(std::move(config));
}

}  // namespace inccl::qsgd
