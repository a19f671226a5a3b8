// SPDX-License-Identifier: Apache-2.0
#include "compress/published/qsgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/codec.h"
#include "compress/codecs.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/published_kernels.h"

namespace inccl::qsgd {
namespace {

constexpr uint32_t kSlack = 64;
static_assert(kSlack >= hbi::kReadSlack && kSlack >= hbi::kWriteSlack);
// Kernels handle whole superblocks; up to kFew fields are faster one by one.
constexpr uint32_t kFew = 64, kWidest = 16;

// A superblock's fields with slack behind them.
struct Buffer {
  alignas(64) std::byte bytes[FieldBytes(kSuperblock, kWidest) + kSlack];

  // The fields at `in`, copied if fewer bytes follow than kernels read.
  const std::byte* From(const std::byte* in, uint64_t left, uint32_t count, uint32_t width) {
    if (left >= FieldBytes(kSuperblock, width) + kSlack) return in;
    const uint32_t length = FieldBytes(count, width);
    std::memcpy(bytes, in, length);
    std::memset(bytes + length, 0, FieldBytes(kSuperblock, width) + kSlack - length);
    return bytes;
  }
};

const uint8_t* Octets(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }
uint8_t* Octets(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

}  // namespace

uint32_t AddSums(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                 uint32_t* sums) {
  if (width > kWidest) {
    uint32_t fields[kSuperblock], largest = 0;
    UnpackFields(in, count, width, fields);
    for (uint32_t i = 0; i < count; ++i) {
      largest = std::max(largest, fields[i]);
      sums[i] += fields[i];
    }
    return largest;
  }
  alignas(64) uint16_t tile[kSuperblock];
  if (count < kFew) {
    UnpackFields(in, count, width, tile);
  } else {
    Buffer buffer;
    hbi::BestKernels().unpack(Octets(buffer.From(in, left, count, width)), 2 * width, tile, 1);
  }
  std::fill(tile + count, tile + (count + 31) / 32 * 32, uint16_t{0});
  return BestKernels().add_fields(tile, count, sums);
}

void PackSums(const uint32_t* sums, uint32_t count, uint32_t width, std::byte* out) {
  if (width > kWidest || count < kFew) return PackFields(sums, count, width, out);
  alignas(64) uint16_t tile[kSuperblock];
  BestKernels().narrow(sums, count, tile);
  std::fill(tile + count, tile + kSuperblock, uint16_t{0});
  Buffer buffer;
  hbi::BestKernels().pack(tile, 2 * width, Octets(buffer.bytes), 1);
  std::memcpy(out, buffer.bytes, FieldBytes(count, width));
}

void UnpackIndices(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                   uint8_t* indices) {
  if (count < kFew) return UnpackFields(in, count, width, indices);
  Buffer buffer;
  BestKernels().unpack_bytes(buffer.From(in, left, count, width), width, indices);
}

void PackIndices(const uint8_t* indices, uint32_t count, uint32_t width, std::byte* out) {
  if (count < kFew) return PackFields(indices, count, width, out);
  uint8_t fields[kSuperblock] = {};
  std::memcpy(fields, indices, count);
  Buffer buffer;
  BestKernels().pack_bytes(fields, width, buffer.bytes);
  std::memcpy(out, buffer.bytes, FieldBytes(count, width));
}

// The side phases, in which ranks agree on the largest magnitude and then on the elements' scales.

uint32_t State::LargestOf(const Range& range, const std::byte* elements) const {
  const Kernels& kernels = BestKernels();
  uint32_t largest = 0;
  // Cannot fail, because the body does not.
  (void)ForEachPart(range, [&](const Part& part) {
    float x[kSuperblock];
    largest = std::max(largest, kernels.largest(Load(part, elements, x), part.count));
    return Status::Ok();
  });
  return std::min(kPoison, largest);
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
    std::fill_n(scales, part.count, static_cast<uint8_t>(config_->scales.size() - 1));
    for (const Term& input : inputs) {
      if (Status status = FoldScales(range, part, input, scales); !status.ok()) return status;
    }
    for (const Term& output : outputs) {
      std::byte* to =
          output.data == nullptr ? Scales(range, part) : output.data + Offset(part, bits);
      PackIndices(scales, part.count, bits, to);
    }
    return Status::Ok();
  });
}

// Finds the finest scale whose codes hold the element. The element's value decides, not its rounded
// code, which would favour one side of the boundary.
Status State::FoldScales(const Range& range, const Part& part, const Term& input,
                         uint8_t* scales) const {
  if (input.format.form == Form::kInput) {
    float x[kSuperblock];
    BestKernels().finest(Load(part, input.data, x), {nullptr, config_->scales.size(), factor_},
                         config_->levels(), part.count, scales);
    return Status::Ok();
  }
  const uint32_t bits = config_->index_bits();
  uint8_t theirs[kSuperblock];
  const uint64_t at = Offset(part, bits);
  UnpackIndices(input.data + at, input.bytes - at, part.count, bits, theirs);
  for (uint32_t i = 0; i < part.count; ++i) {
    if (theirs[i] >= config_->scales.size()) {
      return Error(range, fmt::format("scale {} of {}", theirs[i], config_->scales.size()));
    }
    scales[i] = std::min(scales[i], theirs[i]);
  }
  return Status::Ok();
}

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

namespace inccl {

// The codecs qsgd and qsgd_ms.

namespace {

constexpr uint64_t kMaxQ = 16;

class QsgdCodec final : public Codec {
 public:
  explicit QsgdCodec(qsgd::Config config)
      : config_(std::make_shared<const qsgd::Config>(std::move(config))) {}

  const std::string& spec() const override { return config_->spec; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return qsgd::CheckCall(*config_, collective, type, op, nranks);
  }
  std::span<const SidePhase> side_phases() const override {
    return std::span(side_phases_).first(config_->index_bits() > 0 ? 2 : 1);
  }
  uint64_t window_elements() const override { return kWindow; }
  uint32_t MaxBytes(DataType /*type*/, int nranks, uint32_t count) const override {
    const uint64_t superblocks = count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0);
    const uint32_t width = qsgd::Width(static_cast<uint32_t>(nranks), config_->levels());
    return static_cast<uint32_t>(
        std::min<uint64_t>(superblocks * FieldBytes(std::min(kSuperblock, count), width),
                           std::numeric_limits<uint32_t>::max()));
  }
  // Relative to the largest magnitude of the window.
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    const auto n = static_cast<uint32_t>(nranks);
    const double sum = qsgd::Width(1, config_->levels()),
                 result = qsgd::Width(n, config_->levels());
    *bits = sum;
    if (collective == Collective::kAllReduce) *bits = (sum + result) / 2;
    // An agreement sends the indices twice.
    *bits += (collective == Collective::kReduceScatter ? 2 : 1) * config_->index_bits();
    *relative_error = 1.0 / config_->levels() + 0x1p-21;
  }
  std::unique_ptr<CodecState> NewState() const override { return qsgd::NewState(config_); }

 private:
  std::shared_ptr<const qsgd::Config> config_;
  // The largest magnitude of a window, and the indices of scales.
  const SidePhase side_phases_[2] = {
      {.bytes = qsgd::kLargestBytes},
      {.superblock_bytes = FieldBytes(kSuperblock, config_->index_bits())}};
};

// Parses "8" or, with several scales, "4+8": ascending numbers.
Result<std::vector<uint32_t>> ParseScales(const CodecSpec& spec, bool several) {
  const std::string* given = spec.Find("q");
  const std::string text = given != nullptr ? *given : several ? "4+8" : "8";
  std::vector<uint32_t> scales;
  uint32_t last = 0;
  for (const char* at = text.data(); at != nullptr;) {
    const char* end = text.data() + text.size();
    uint32_t q = 0;
    const auto parsed = std::from_chars(at, end, q);
    const bool ends = parsed.ptr == end;
    if (parsed.ec != std::errc() || q <= last || q > kMaxQ || (!ends && *parsed.ptr != '+')) break;
    scales.push_back((1u << q) - 1);
    last = q;
    at = ends ? nullptr : parsed.ptr + 1;
    if (!ends) continue;
    if (several ? scales.size() >= 2 && scales.size() <= qsgd::kMostScales : scales.size() == 1) {
      return scales;
    }
  }
  return InvalidArgument(fmt::format(
      "codec {}: q={} is not {}", spec.name(), text,
      several ? "two to four ascending numbers from 1 to 16, as 4+8" : "an integer in [1, 16]"));
}

std::string TextOf(const std::vector<uint32_t>& scales) {
  std::string text;
  for (const uint32_t s : scales) {
    text += fmt::format("{}{}", text.empty() ? "" : "+", std::bit_width(s));
  }
  return text;
}

}  // namespace

Status qsgd::CheckCall(const qsgd::Config& config, Collective collective, DataType type,
                       ReduceOp op, int nranks) {
  Status status = CheckFloatCall(config.name, collective, type, op, nranks);
  if (!status.ok()) return status;
  if (uint64_t{2} * static_cast<uint64_t>(nranks) * config.levels() < kFieldLimit) {
    return Status::Ok();
  }
  return InvalidArgument(fmt::format("codec {}: sums of {} ranks with {} levels need 32 bits",
                                     config.name, nranks, config.levels()));
}

namespace {

MadeCodec MakeQuantizer(const CodecSpec& spec, const char* name, bool several) {
  static constexpr std::string_view kKeys[] = {"q"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  Result<std::vector<uint32_t>> scales = ParseScales(spec, several);
  if (!scales.ok()) return scales.status();
  qsgd::Config config;
  config.name = name;
  config.spec = fmt::format("{}:q={}", name, TextOf(*scales));
  config.scales = *std::move(scales);
  return std::shared_ptr<const Codec>(std::make_shared<const QsgdCodec>(std::move(config)));
}

}  // namespace

MadeCodec MakeQsgdCodec(const CodecSpec& spec) { return MakeQuantizer(spec, "qsgd", false); }
MadeCodec MakeQsgdMsCodec(const CodecSpec& spec) { return MakeQuantizer(spec, "qsgd_ms", true); }

}  // namespace inccl
