// SPDX-License-Identifier: Apache-2.0
//
// One call of QSGDMaxNorm on one rank. The side phase agrees on the largest magnitude M of a window
// (in an all-gather it is the sender's); codes are integers in units of M / s, their sums are exact
// and travel in fields that n ranks cannot overflow. With several scales a second side phase agrees
// on the finest one that fits an element on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/qsgd_kernels.h"
#include "compress/qsgd/fields.h"
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
  const uint8_t* places;
  uint32_t picked;
  uint8_t own_places[kSuperblock];
};

// What kernels touch of arrays of this many elements.
uint32_t Padded(uint32_t count) { return (count + 31) / 32 * 32; }

constexpr std::array<uint8_t, kSuperblock> AllPlaces() {
  std::array<uint8_t, kSuperblock> places{};
  for (uint32_t i = 0; i < kSuperblock; ++i) places[i] = static_cast<uint8_t>(i);
  return places;
}
constexpr std::array<uint8_t, kSuperblock> kAllPlaces = AllPlaces();

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
  // Of the elements of a part, whose scales it puts into `scales`, one of these values each.
  ScaleChoice ByScale(const Range& range, const Part& part, const double* by_scale,
                      uint8_t* scales);
  // The elements of a part in fp32: where they are, or in x.
  const float* Load(const Part& part, const std::byte* elements, float* x) const;
  void AddElements(const Range& range, const Part& part, const std::byte* elements, uint32_t* sums);
  Status AddPayload(const Range& range, const Part& part, const std::byte* payload, uint64_t left,
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
    if (selection_.all()) {
      part.places = kAllPlaces.data();
      part.picked = part.count;
    } else {
      part.places = part.own_places;
      part.picked = selection_.Pick(range.segment, part.superblock, part.count, part.own_places);
    }
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

const float* State::Load(const Part& part, const std::byte* elements, float* x) const {
  const DataType type = call().type;
  const std::byte* from = elements + part.at * SizeOf(type);
  const bool as_they_are = type == DataType::kFloat32;
  const auto* own = reinterpret_cast<const float*>(from);
  if (as_they_are && selection_.all() && part.count == kSuperblock) return own;
  float converted[kSuperblock];
  if (!as_they_are) {
    ToFloat(type, from, converted, part.count);
    own = converted;
  }
  for (uint32_t i = 0; i < part.picked; ++i) x[i] = own[part.places[i]];
  std::fill(x + part.picked, x + Padded(part.picked), 0.0f);
  return x;
}

uint32_t State::LargestOf(const Range& range, const std::byte* elements) const {
  const Kernels& kernels = BestKernels();
  uint32_t largest = 0;
  // Never fails: the body does not.
  (void)ForEachPart(range, [&](const Part& part) {
    float x[kSuperblock];
    largest = std::max(largest, kernels.largest(Load(part, elements, x), part.picked));
    return Status::Ok();
  });
  return std::min(kPoison, largest);
}

ScaleChoice State::ByScale(const Range& range, const Part& part, const double* by_scale,
                           uint8_t* scales) {
  if (config_->index_bits() == 0) return {nullptr, 1, by_scale};
  const std::byte* from = Scales(range, part);
  UnpackIndices(from, static_cast<uint64_t>(scales_.data() + scales_.size() - from), part.picked,
                config_->index_bits(), scales);
  return {scales, config_->scales.size(), by_scale};
}

// floor(x * s / M + r), r uniform in [0, 1): its mean is x * s / M, zero stays zero.
void State::AddElements(const Range& range, const Part& part, const std::byte* elements,
                        uint32_t* sums) {
  if (factor_[0] == 0) {
    for (uint32_t i = 0; i < part.picked; ++i) sums[i] += config_->levels();
    return;
  }
  float x[kSuperblock];
  uint8_t scales[kSuperblock];
  const uint32_t first =
      key_ + static_cast<uint32_t>(part.superblock % (kWindow / kSuperblock)) * kSuperblock;
  BestKernels().add_codes({.x = Load(part, elements, x),
                           .places = part.places,
                           .first = first,
                           .levels = config_->levels(),
                           .factor = ByScale(range, part, factor_, scales)},
                          part.picked, sums);
}

Status State::AddPayload(const Range& range, const Part& part, const std::byte* payload,
                         uint64_t left, uint32_t contributions, uint32_t* sums) const {
  const uint32_t width = Width(contributions, config_->levels());
  const uint64_t at = Offset(part, width);
  const uint32_t largest = AddSums(payload + at, left - at, part.picked, width, sums);
  if (largest <= 2 * contributions * config_->levels()) return Status::Ok();
  return Error(range, fmt::format("a sum of {} codes of {} levels is {}", contributions,
                                  config_->levels(), largest));
}

void State::Store(const Range& range, const Part& part, const uint32_t* sums, std::byte* elements) {
  const DataType type = call().type;
  std::byte* to = elements + part.at * SizeOf(type);
  float x[kSuperblock], all[kSuperblock];
  uint8_t scales[kSuperblock];
  const bool straight = type == DataType::kFloat32 && selection_.all() && part.count == kSuperblock;
  float* values = straight ? reinterpret_cast<float*>(to) : x;
  BestKernels().decode(sums, complete() * config_->levels(), ByScale(range, part, unit_, scales),
                       part.picked, values);
  if (straight) return;
  if (!selection_.all()) {
    std::fill_n(all, part.count, 0.0f);
    for (uint32_t i = 0; i < part.picked; ++i) all[part.places[i]] = x[i];
    values = all;
  }
  FromFloat(type, values, to, part.count);
}

Status State::Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
                   std::span<Term> outputs) {
  if (Status status = Enter(range); !status.ok()) return status;
  const uint32_t width = Width(contributions, config_->levels());
  Term* elements = FindOutput(Form::kOutput, outputs);
  Status status = ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock];
    std::fill_n(sums, Padded(part.picked), 0u);
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
      PackSums(sums, part.picked, width, output.data + Offset(part, width));
    }
    if (elements != nullptr) Store(range, part, sums, elements->data);
    return Status::Ok();
  });
  if (status.ok() && elements != nullptr) CopyToOthers(Form::kOutput, outputs);
  return status;
}

Status State::DecodeResult(const Range& range, const Term& payload, std::byte* elements) {
  if (Status status = Enter(range); !status.ok()) return status;
  return ForEachPart(range, [&](const Part& part) {
    uint32_t sums[kSuperblock];
    std::fill_n(sums, Padded(part.picked), 0u);
    Status status = AddPayload(range, part, payload.data, payload.bytes, complete(), sums);
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
      PackIndices(scales, part.picked, bits, to);
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
    BestKernels().finest(Load(part, input.data, x), {nullptr, config_->scales.size(), factor_},
                         config_->levels(), part.picked, scales);
    return Status::Ok();
  }
  const uint32_t bits = config_->index_bits();
  uint8_t theirs[kSuperblock];
  const uint64_t at = Offset(part, bits);
  UnpackIndices(input.data + at, input.bytes - at, part.picked, bits, theirs);
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
