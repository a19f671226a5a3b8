// SPDX-License-Identifier: Apache-2.0
//
// One call of QSGDMaxNorm on one rank. The side phase agrees on the largest magnitude M of a window
// (in an all-gather it is the sender's); codes are integers in units of M / s, their sums are exact
// and travel in fields that n ranks cannot overflow. With several scales a second side phase agrees
// on the finest one that fits an element on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/hbi/format.h"
#include "compress/kernels/convert.h"
#include "compress/qsgd/qsgd_config.h"
#include "compress/qsgd/selection.h"

namespace inccl::qsgd {
namespace {

constexpr uint32_t kPoison = 0x7F800000;  // a magnitude that is not finite

uint64_t Windows(uint64_t count) { return (count + kWindow - 1) / kWindow; }

// A superblock of a range: which elements it has, and where they are in the range.
struct Part {
  uint64_t superblock;
  uint32_t at, count;  // elements of the range
  uint8_t places[kSuperblock];
  uint32_t picked;
};

class State final : public CheckedState {
 public:
  explicit State(std::shared_ptr<const Config> config)
      : CheckedState(config->name), config_(std::move(config)) {}

  void Finish(CodecStats* stats) override;

 protected:
  Status OnBegin() override;
  uint64_t PayloadBytes(const Range& range, const Format& format) const override;
  Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
              std::span<Term> outputs) override;
  Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) override;
  Status Side(const Range& range, std::span<const Term> inputs, std::span<Term> outputs) override;

 private:
  template <typename Body>
  Status ForEachPart(const Range& range, const Body& body) const;
  uint32_t LargestOf(const Range& range, const std::byte* elements) const;
  Status SideLargest(const Range& range, std::span<const Term> inputs, std::span<Term> outputs);
  Status SideScales(const Range& range, std::span<const Term> inputs, std::span<Term> outputs);
  Status FoldScales(const Range& range, const Part& part, const Term& input, uint8_t* scales) const;
  // Of all superblocks of a range: fields of `width` bits; and of those before a part.
  uint64_t RangeBytes(const Range& range, uint32_t width) const;
  uint64_t Offset(const Part& part, uint32_t width) const {
    return uint64_t{part.at / kSuperblock} * FieldBytes(selection_.size(), width);
  }
  // The agreed indices of a part's scales.
  std::byte* Scales(const Range& range, const Part& part) {
    const uint64_t superblocks = (call().count + kSuperblock - 1) / kSuperblock;
    return scales_.data() + (range.segment * superblocks + part.superblock) *
                                FieldBytes(selection_.size(), config_->index_bits());
  }
  // values[i] = by_scale[scale of element i].
  void Spread(const Range& range, const Part& part, const double* by_scale, double* values);
  void Load(const Part& part, const std::byte* elements, float* x) const;
  void AddElements(const Range& range, const Part& part, const std::byte* elements, uint32_t* sums);
  Status AddPayload(const Range& range, const Part& part, const std::byte* payload,
                    uint32_t contributions, uint32_t* sums) const;
  void Store(const Range& range, const Part& part, const uint32_t* sums, std::byte* elements);
  // Sets what the parts of a range have in common.
  Status Enter(const Range& range);
  uint32_t& LargestOfWindow(const Range& range) {
    return largest_[range.segment * Windows(call().count) + range.first / kWindow];
  }
  // Of a complete sum.
  uint32_t complete() const {
    return Reduces(call().collective) ? static_cast<uint32_t>(call().nranks) : 1;
  }

  std::shared_ptr<const Config> config_;
  Selection selection_;
  std::vector<uint32_t> largest_;  // bits of M, window by window, segment by segment
  std::vector<std::byte> scales_;  // agreed, superblock by superblock, segment by segment
  // Of the range at hand, by scale.
  double factor_[kMostScales] = {};  // codes per unit; 0: all codes are zero
  double unit_[kMostScales] = {};    // value of a code in the result
  uint32_t key_ = 0;                 // of the rounding
};

Status State::OnBegin() {
  const CallDesc& c = call();
  Status status = CheckCall(*config_, c.collective, c.type, c.op, c.nranks);
  if (!status.ok()) return status;
  selection_.Begin(c.seed, c.step, config_->selected);
  largest_.assign(segments() * Windows(c.count), 0);
  const uint64_t superblocks = (c.count + kSuperblock - 1) / kSuperblock;
  scales_.resize(segments() * superblocks * FieldBytes(selection_.size(), config_->index_bits()));
  return Status::Ok();
}

// body(part, bytes before it in units of bits per element) for every superblock.
template <typename Body>
Status State::ForEachPart(const Range& range, const Body& body) const {
  Part part;
  for (part.at = 0; part.at < range.count; part.at += kSuperblock) {
    part.superblock = (range.first + part.at) / kSuperblock;
    part.count = std::min(kSuperblock, range.count - part.at);
    part.picked = selection_.Pick(range.segment, part.superblock, part.count, part.places);
    if (Status status = body(part); !status.ok()) return status;
  }
  return Status::Ok();
}

uint64_t State::RangeBytes(const Range& range, uint32_t width) const {
  const uint32_t whole = range.count / kSuperblock, tail = range.count % kSuperblock;
  uint64_t bytes = uint64_t{whole} * FieldBytes(selection_.size(), width);
  if (tail != 0) {
    uint8_t places[kSuperblock];
    const uint64_t superblock = range.first / kSuperblock + whole;
    bytes += FieldBytes(selection_.Pick(range.segment, superblock, tail, places), width);
  }
  return bytes;
}

uint64_t State::PayloadBytes(const Range& range, const Format& format) const {
  const uint32_t h = format.form == Form::kSum ? format.contributions : complete();
  return RangeBytes(range, Width(h, config_->levels()));
}

Status State::Enter(const Range& range) {
  if (range.first / kWindow != (range.first + range.count - 1) / kWindow) {
    return Error(range, fmt::format("not inside a window of {}", kWindow));
  }
  const CallDesc& c = call();
  const uint32_t bits = LargestOfWindow(range);
  const double largest = static_cast<double>(std::bit_cast<float>(bits));
  for (size_t k = 0; k < config_->scales.size(); ++k) {
    const double levels = config_->scales[k];
    factor_[k] = bits == 0 || bits == kPoison ? 0 : levels / largest;
    unit_[k] = bits == kPoison ? std::numeric_limits<double>::quiet_NaN() : largest / levels;
    if (Reduces(c.collective) && c.op == ReduceOp::kAvg) unit_[k] /= c.nranks;
    if (config_->unbiased) unit_[k] *= double{kSuperblock} / selection_.size();
  }
  const uint64_t place = Mix64(range.first / kWindow ^ Mix64(range.segment));
  key_ = static_cast<uint32_t>(
      Mix64(c.seed ^ Mix64(c.step ^ Mix64(place ^ Mix64(static_cast<uint64_t>(c.rank))))));
  return Status::Ok();
}

void State::Load(const Part& part, const std::byte* elements, float* x) const {
  ToFloat(call().type, elements + part.at * SizeOf(call().type), x, part.count);
  if (selection_.all()) return;
  float picked[kSuperblock];
  for (uint32_t i = 0; i < part.picked; ++i) picked[i] = x[part.places[i]];
  std::copy_n(picked, part.picked, x);
}

uint32_t State::LargestOf(const Range& range, const std::byte* elements) const {
  int32_t largest = 0;
  // Never fails: the body does not.
  (void)ForEachPart(range, [&](const Part& part) {
    float x[kSuperblock];
    Load(part, elements, x);
    for (uint32_t i = 0; i < part.picked; ++i) {
      largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
    }
    return Status::Ok();
  });
  return std::min(kPoison, static_cast<uint32_t>(largest));
}

void State::Spread(const Range& range, const Part& part, const double* by_scale, double* values) {
  if (config_->index_bits() == 0) {
    std::fill_n(values, part.picked, by_scale[0]);
    return;
  }
  uint8_t scales[kSuperblock];
  UnpackFields(Scales(range, part), part.picked, config_->index_bits(), scales);
  for (uint32_t i = 0; i < part.picked; ++i) values[i] = by_scale[scales[i]];
}

// floor(x * s / M + r), r uniform in [0, 1): its mean is x * s / M, zero stays zero.
void State::AddElements(const Range& range, const Part& part, const std::byte* elements,
                        uint32_t* sums) {
  const double levels = config_->levels();
  if (factor_[0] == 0) {
    for (uint32_t i = 0; i < part.picked; ++i) sums[i] += config_->levels();
    return;
  }
  float x[kSuperblock];
  double factors[kSuperblock];
  Load(part, elements, x);
  Spread(range, part, factor_, factors);
  const uint32_t first =
      key_ + static_cast<uint32_t>(part.superblock % (kWindow / kSuperblock)) * kSuperblock;
  uint32_t random[kSuperblock];
  if (selection_.all()) {
    for (uint32_t i = 0; i < kSuperblock; ++i) random[i] = hbi::LowBias32(first + i);
  } else {
    for (uint32_t i = 0; i < part.picked; ++i) random[i] = hbi::LowBias32(first + part.places[i]);
  }
  for (uint32_t i = 0; i < part.picked; ++i) {
    const double scaled = static_cast<double>(x[i]) * factors[i];
    const double above = scaled > -levels ? scaled : -levels;  // -s for what is not a number
    const double code = above < levels ? above : levels;
    sums[i] += static_cast<uint32_t>(static_cast<int32_t>(code + levels + random[i] * 0x1p-32));
  }
}

Status State::AddPayload(const Range& range, const Part& part, const std::byte* payload,
                         uint32_t contributions, uint32_t* sums) const {
  uint32_t fields[kSuperblock];
  UnpackFields(payload, part.picked, Width(contributions, config_->levels()), fields);
  uint32_t largest = 0;
  for (uint32_t i = 0; i < part.picked; ++i) {
    largest = std::max(largest, fields[i]);
    sums[i] += fields[i];
  }
  if (largest <= 2 * contributions * config_->levels()) return Status::Ok();
  return Error(range, fmt::format("a sum of {} codes of {} levels is {}", contributions,
                                  config_->levels(), largest));
}

void State::Store(const Range& range, const Part& part, const uint32_t* sums, std::byte* elements) {
  float x[kSuperblock], all[kSuperblock];
  double units[kSuperblock];
  Spread(range, part, unit_, units);
  const auto zero = static_cast<int32_t>(complete() * config_->levels());
  for (uint32_t i = 0; i < part.picked; ++i) {
    x[i] = static_cast<float>(units[i] * (static_cast<int32_t>(sums[i]) - zero));
  }
  const float* from = x;
  if (!selection_.all()) {
    std::fill_n(all, part.count, 0.0f);
    for (uint32_t i = 0; i < part.picked; ++i) all[part.places[i]] = x[i];
    from = all;
  }
  FromFloat(call().type, from, elements + part.at * SizeOf(call().type), part.count);
}

Status State::Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
                   std::span<Term> outputs) {
  if (Status status = Enter(range); !status.ok()) return status;
  const uint32_t width = Width(contributions, config_->levels());
  Term* elements = FindOutput(Form::kOutput, outputs);
  Status status = ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock] = {};
    for (const Term& input : inputs) {
      if (input.format.form == Form::kInput) {
        AddElements(range, part, input.data, sums);
        continue;
      }
      const uint32_t h = input.format.contributions;
      Status added =
          AddPayload(range, part, input.data + Offset(part, Width(h, config_->levels())), h, sums);
      if (!added.ok()) return added;
    }
    for (const Term& output : outputs) {
      if (output.format.form == Form::kOutput) continue;
      PackFields(sums, part.picked, width, output.data + Offset(part, width));
    }
    if (elements != nullptr) Store(range, part, sums, elements->data);
    return Status::Ok();
  });
  if (status.ok() && elements != nullptr) CopyToOthers(Form::kOutput, outputs);
  return status;
}

Status State::DecodeResult(const Range& range, const Term& payload, std::byte* elements) {
  if (Status status = Enter(range); !status.ok()) return status;
  const uint32_t width = Width(complete(), config_->levels());
  return ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock] = {};
    Status status = AddPayload(range, part, payload.data + Offset(part, width), complete(), sums);
    if (status.ok()) Store(range, part, sums, elements);
    return status;
  });
}

Status State::Side(const Range& range, std::span<const Term> inputs, std::span<Term> outputs) {
  if (Status status = Enter(range); !status.ok()) return status;
  const Format side = outputs[0].format;
  if (side.contributions > (config_->index_bits() == 0 ? 0 : 1)) {
    return Error(range, fmt::format("there is no side phase {}", side.contributions));
  }
  const uint64_t bytes =
      side.contributions == 0 ? kLargestBytes : RangeBytes(range, config_->index_bits());
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(range, input); !status.ok()) return status;
    } else if (input.format != side) {
      return Error(range, fmt::format("{} cannot be an input here", Name(input.format.form)));
    } else if (input.bytes != bytes) {
      return WrongLength(range, input, bytes);
    }
  }
  for (Term& output : outputs) {
    if (output.format != side) {
      return Error(range, fmt::format("{} cannot be an output here", Name(output.format.form)));
    }
    if (output.data == nullptr) continue;
    if (Status status = CheckCapacity(range, output, bytes); !status.ok()) return status;
    output.bytes = static_cast<uint32_t>(bytes);
  }
  return side.contributions == 0 ? SideLargest(range, inputs, outputs)
                                 : SideScales(range, inputs, outputs);
}

Status State::SideLargest(const Range& range, std::span<const Term> inputs,
                          std::span<Term> outputs) {
  uint32_t largest = 0;
  for (const Term& input : inputs) {
    uint32_t bits = 0;
    if (input.format.form == Form::kInput) {
      bits = LargestOf(range, input.data);
    } else {
      std::memcpy(&bits, input.data, sizeof bits);
      if (bits > kPoison) return Error(range, fmt::format("{:#x} is no magnitude", bits));
    }
    largest = std::max(largest, bits);
  }
  for (const Term& output : outputs) {
    if (output.data == nullptr) {
      uint32_t& window = LargestOfWindow(range);
      window = std::max(window, largest);
    } else {
      std::memcpy(output.data, &largest, sizeof largest);
    }
  }
  return Status::Ok();
}

Status State::SideScales(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) {
  const uint32_t bits = config_->index_bits();
  return ForEachPart(range, [&](const Part& part) {
    uint8_t scales[kSuperblock];
    std::fill_n(scales, part.picked, static_cast<uint8_t>(config_->scales.size() - 1));
    for (const Term& input : inputs) {
      if (Status status = FoldScales(range, part, input, scales); !status.ok()) return status;
    }
    for (const Term& output : outputs) {
      std::byte* to =
          output.data == nullptr ? Scales(range, part) : output.data + Offset(part, bits);
      PackFields(scales, part.picked, bits, to);
    }
    return Status::Ok();
  });
}

// The finest scale whose codes hold the element: decided on its value, not on its rounded code,
// which would favour one side of the boundary.
Status State::FoldScales(const Range& range, const Part& part, const Term& input,
                         uint8_t* scales) const {
  if (input.format.form == Form::kInput) {
    float x[kSuperblock];
    Load(part, input.data, x);
    const double levels = config_->levels();
    for (uint32_t i = 0; i < part.picked; ++i) {
      uint8_t& scale = scales[i];
      while (scale > 0 && !(std::fabs(static_cast<double>(x[i])) * factor_[scale] <= levels)) {
        --scale;
      }
    }
    return Status::Ok();
  }
  const uint32_t bits = config_->index_bits();
  uint8_t theirs[kSuperblock];
  UnpackFields(input.data + Offset(part, bits), part.picked, bits, theirs);
  for (uint32_t i = 0; i < part.picked; ++i) {
    if (theirs[i] >= config_->scales.size()) {
      return Error(range, fmt::format("scale {} of {}", theirs[i], config_->scales.size()));
    }
    scales[i] = std::min(scales[i], theirs[i]);
  }
  return Status::Ok();
}

// Half a unit in the last place of a result of magnitude `top`.
double TypeError(DataType type, double top) {
  if (type == DataType::kFloat16) return top > 65504 ? top : top * 0x1p-11 + 0x1p-25;
  if (type == DataType::kBfloat16) return top * 0x1p-8 + 0x1p-134;
  return 0;
}

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
    if (largest_[w] == 0 && selection_.all()) stats->zero_blocks += blocks;
    if (largest_[w] == kPoison) {
      stats->poisoned_blocks += blocks;
      continue;
    }
    // A code errs by less than a unit, fp32 in converting and in the result.
    const double largest = static_cast<double>(std::bit_cast<float>(largest_[w]));
    const double error =
        n * (largest / config_->levels() + largest * 0x1p-22 + 0x1p-149) / divide +
        TypeError(call().type, n * largest * (1 + 1.0 / config_->levels()) / divide);
    stats->error_bound = std::max(stats->error_bound, error);
  }
  // What is left out may be of any size.
  if (!selection_.all()) stats->error_bound = std::numeric_limits<double>::infinity();
}

}  // namespace

std::unique_ptr<CodecState> NewState(std::shared_ptr<const Config> config) {
  return std::make_unique<State>(std::move(config));
}

}  // namespace inccl::qsgd
