// SPDX-License-Identifier: Apache-2.0
//
// The list of all methods.
#include "reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/published_kernels.h"
#include "reduce/methods.h"

namespace inccl {
namespace {

struct Entry {
  std::string_view name;
  MadeReducer (*make)(const CodecSpec& spec, RoundCodec codec);
};

constexpr Entry kMethods[] = {
    {"clt_k", MakeCltK},        {"count_sketch", MakeCountSketch},
    {"powersgd", MakePowerSgd}, {"random_k", MakeRandomK},
    {"topk", MakeTopk},
};

Result<RoundCodec> MakeRoundCodec(std::string_view spec) {
  Result<RoundCodec> codec = MakeCodec(spec);
  if (!codec.ok()) {
    return InvalidArgument(fmt::format("reducer spec: {}", codec.status().message()));
  }
  if ((*codec)->route().sums_hosts) {
    return InvalidArgument(fmt::format(
        "reducer spec: {}: the rounds of a reducer take no sums of hosts (local=fp32)", spec));
  }
  return codec;
}

}  // namespace

Result<bool> ParseResidual(const CodecSpec& spec, bool fallback) {
  Result<uint64_t> value = spec.Integer("residual", fallback ? 1 : 0, 0, 1);
  if (!value.ok()) return value.status();
  return *value == 1;
}

Result<uint64_t> ParseBlock(const CodecSpec& spec) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  return spec.Integer("block", 1, 1, kMost);
}

Result<std::shared_ptr<const Reducer>> MakeReducer(std::string_view spec) {
  const size_t bar = spec.find('|');
  Result<CodecSpec> method = CodecSpec::Parse(spec.substr(0, bar), "reducer");
  if (!method.ok()) return method.status();
  std::string names;
  for (const Entry& entry : kMethods) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
    if (entry.name != method->name()) continue;
    Result<RoundCodec> codec =
        MakeRoundCodec(bar == std::string_view::npos ? "none" : spec.substr(bar + 1));
    if (!codec.ok()) return codec.status();
    return entry.make(*method, *std::move(codec));
  }
  return InvalidArgument(
      fmt::format("reducer spec: unknown method {}; there are {}", method->name(), names));
}

namespace {

constexpr uint32_t kExportMagic = 0x72646375;  // "ucdr" as bytes
constexpr uint16_t kExportVersion = 1;

Status InUse() { return InvalidUsage("state: a call is using it"); }

// The value, or 0 if it is not finite; in integers, which the compiler vectorizes.
float OrZero(float value) {
  constexpr uint32_t kExponent = 0x7F800000;
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits & kExponent) == kExponent ? 0u : bits);
}

void WriteFloats(std::span<const float> values, ByteWriter* writer) {
  writer->U64(values.size());
  for (const float value : values) writer->U32(std::bit_cast<uint32_t>(OrZero(value)));
}

// Reads as many values as `values` has; false if there are others. States are always finite.
bool ReadFloats(ByteReader* reader, std::span<float> values) {
  uint64_t count = 0;
  if (!reader->U64(&count) || count != values.size()) return false;
  for (float& value : values) {
    uint32_t bits = 0;
    if (!reader->U32(&bits)) return false;
    std::memcpy(&value, &bits, sizeof bits);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

Status CheckTensor(const TensorDesc& tensor) {
  if (tensor.type != DataType::kFloat32 && tensor.type != DataType::kFloat16 &&
      tensor.type != DataType::kBfloat16) {
    return InvalidArgument(
        fmt::format("type: {} is none of float32, float16, bfloat16", Name(tensor.type)));
  }
  // Indices have 32 bits, and the largest one pads.
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  if (tensor.cols != 0 && tensor.rows > kMost / tensor.cols) {
    return InvalidArgument(fmt::format("rows and cols: {} x {} elements, at most {}", tensor.rows,
                                       tensor.cols, kMost));
  }
  return Status::Ok();
}

ReducerState::ReducerState(Options options)
    : options_(std::move(options)),
      identity_(fmt::format("{} of {}x{}", options_.identity, options_.tensor.rows,
                            options_.tensor.cols)) {
  kept_.warm = FirstWarm();
  if (options_.residual) kept_.residual.assign(options_.tensor.count(), 0.0f);
  former_ = kept_;
}

std::vector<float> ReducerState::FirstWarm() const {
  return options_.momentum != 0 ? std::vector<float>(options_.tensor.count()) : options_.warm;
}

Status ReducerState::Take(const Lineage& lineage) {
  if (taken_.exchange(true, std::memory_order_acquire)) return InUse();
  TakeBackUncounted(lineage);
  return Status::Ok();
}

void ReducerState::TakeBackUncounted(const Lineage& lineage) {
  if (lineage.Counts(last_)) return;
  std::swap(kept_, former_);
  last_ = {};
}

void ReducerState::Begin(const CollectiveArgs& call, const std::byte* input, std::byte* output) {
  constexpr uint64_t kPiece = 4096;  // so that an element goes to memory once
  const uint64_t count = options_.tensor.count();
  args_ = call;
  output_ = output;
  result_ = {};
  open_.resize(count);
  if (options_.tensor.type != DataType::kFloat32) converted_.resize(count);
  largest_ = 0;
  if (options_.momentum != 0) {
    pending_.warm.resize(count);
  } else {
    pending_.warm = kept_.warm;
  }
  for (uint64_t first = 0; first < count; first += kPiece) {
    const uint64_t end = std::min(count, first + kPiece);
    ToFloat(options_.tensor.type, input + first * SizeOf(options_.tensor.type),
            open_.data() + first, end - first);
    float* const open = open_.data();
    if (options_.momentum != 0) {
      const float* const former = kept_.warm.data();
      float* const velocity = pending_.warm.data();
      for (uint64_t i = first; i < end; ++i) {
        open[i] += options_.momentum * OrZero(former[i]);
        velocity[i] = open[i];
      }
    }
    if (options_.residual) {
      const float* const residual = kept_.residual.data();
      for (uint64_t i = first; i < end; ++i) open[i] += OrZero(residual[i]);
    }
    largest_ = std::max(largest_, qsgd::BestKernels().largest(open + first, end - first));
  }
  OnBegin();
}

float ReducerState::share() const {
  return args_.op == ReduceOp::kAvg ? 1.0f / static_cast<float>(args_.nranks) : 1.0f;
}

std::span<float> ReducerState::result() {
  if (!result_.empty() || open_.empty()) return result_;
  if (options_.tensor.type == DataType::kFloat32) {
    result_ = {reinterpret_cast<float*>(output_), open_.size()};
  } else {
    result_ = converted_;
  }
  std::fill(result_.begin(), result_.end(), 0.0f);
  return result_;
}

void ReducerState::WriteResult() {
  // Only rounding, the codec's or the type's, can bring an average of finite elements there.
  if (args_.op == ReduceOp::kAvg && !options_.amplifies) {
    SaturateTo(LargestOf(options_.tensor.type), std::numeric_limits<float>::max(), result().data(),
               open_.size());
  }
  FromFloat(options_.tensor.type, result().data(), output_, open_.size());
}

void ReducerState::CloseResidual() {
  const float fresh = options_.low_pass, old = 1.0f - fresh;
  if (fresh == 1.0f) return;
  float* const open = open_.data();
  const float* const residual = kept_.residual.data();
  for (size_t i = 0; i < open_.size(); ++i) {
    open[i] = old * OrZero(residual[i]) + fresh * OrZero(open[i]);
  }
}

void ReducerState::End(const std::optional<CallName>& committed) {
  if (committed) {
    if (options_.residual) {
      CloseResidual();
      former_.residual.swap(open_);
      former_.residual.swap(kept_.residual);
    }
    former_.warm.swap(kept_.warm);
    kept_.warm.swap(pending_.warm);
    former_.calls = kept_.calls++;
    last_ = *committed;
  }
  taken_.store(false, std::memory_order_release);
}

template <typename Body>
Status ReducerState::WhileUnused(const Body& body) {
  if (taken_.exchange(true, std::memory_order_acquire)) return InUse();
  Status status = CatchOutOfMemory(body);
  taken_.store(false, std::memory_order_release);
  return status;
}

Result<std::vector<std::byte>> ReducerState::Export() {
  ByteWriter writer;
  Status status = WhileUnused([&] {
    writer.U32(kExportMagic);
    writer.U16(kExportVersion);
    writer.String(identity_);
    writer.U64(kept_.calls);
    WriteFloats(kept_.residual, &writer);
    WriteFloats(kept_.warm, &writer);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  return writer.bytes();
}

Status ReducerState::Import(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  uint32_t magic = 0;
  uint16_t version = 0;
  std::string identity;
  if (!reader.U32(&magic) || magic != kExportMagic || !reader.U16(&version) ||
      !reader.String(&identity)) {
    return InvalidArgument("data: not an exported state of a reducer");
  }
  if (version != kExportVersion) {
    return InvalidArgument(
        fmt::format("data: exported as version {}, expected {}", version, kExportVersion));
  }
  if (identity != identity_) {
    return InvalidArgument(fmt::format("data: exported from {}, this state is {}",
                                       identity.substr(0, 512), identity_));
  }
  return WhileUnused([&]() -> Status {
    Kept kept = {std::vector<float>(kept_.residual.size()), std::vector<float>(kept_.warm.size())};
    if (!reader.U64(&kept.calls) || !ReadFloats(&reader, kept.residual) ||
        !ReadFloats(&reader, kept.warm) || reader.remaining() != 0) {
      return InvalidArgument("data: an exported state of a reducer that is cut or damaged");
    }
    kept_ = std::move(kept);
    last_ = {};
    return Status::Ok();
  });
}

Status ReducerState::Reset() {
  return WhileUnused([&] {
    std::fill(kept_.residual.begin(), kept_.residual.end(), 0.0f);
    kept_.warm = FirstWarm();
    kept_.calls = 0;
    last_ = {};
    return Status::Ok();
  });
}

Status ReducerState::Settle(const Lineage& lineage) {
  return WhileUnused([&] {
    TakeBackUncounted(lineage);
    return Status::Ok();
  });
}

}  // namespace inccl
