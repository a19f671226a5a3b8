// SPDX-License-Identifier: Apache-2.0
//
// The codec for a wire format, and the formats: bf16, fp16, fp8 and mxfp8. It decodes, adds and
// encodes one tile at a time, so that the fp32 sum stays in the L1 cache.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compress/checked_state.h"
#include "compress/codec.h"
#include "compress/codecs.h"
#include "compress/cuda/kernel_args.h"
#include "compress/device_work.h"
#include "compress/float_types.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/fp8_kernels.h"
#include "compress/kernels/reduce.h"
#include "compress/wire/float_wire.h"

namespace inccl {
namespace {

constexpr uint32_t kWireTile = 4 * kSuperblock;

// On any path the wire format and fp32 each round an element at most n times.
double RelativeError(const FloatWire& wire, Collective collective, int nranks) {
  const double n = Reduces(collective) ? nranks : 1;
  return std::pow((1 + wire.unit()) * (1 + 0x1p-23), n) - 1;
}

class WireState final : public CheckedState {
 public:
  explicit WireState(std::shared_ptr<const FloatWire> wire)
      : CheckedState(wire->name()), wire_(std::move(wire)), sum_(kWireTile), next_(kWireTile) {}

  // Only plain casts have kernels, not sums and averages.
  Result<bool> Launch(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                      DeviceWork* work) override;
  Status Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                  DeviceWork* work) override;

  Result<bool> Own(const Range& range, const std::byte* x, float* y) override;
  // No rank sees all contributions, so no rank knows a bound.
  void Finish(CodecStats* stats) override {
    if (stats == nullptr) return;
    *stats = {};
    stats->error_bound = std::numeric_limits<double>::infinity();
  }

 protected:
  Status OnBegin() override {
    const CollectiveArgs& c = call();
    const bool averages = Reduces(c.collective) && c.op == ReduceOp::kAvg;
    scale_ = averages ? 1.0f / static_cast<float>(c.nranks) : 1.0f;
    add_ = FindReduce(DataType::kFloat32, averages ? ReduceOp::kAvg : ReduceOp::kSum);
    reach_ = 1 + RelativeError(*wire_, c.collective, c.nranks);
    return CheckFloatCall(wire_->name(), c.collective, c.type, c.op, c.nranks);
  }
  uint64_t PayloadBytes(const Range& range, const Format& /*format*/) const override {
    return wire_->Bytes(range.count);
  }
  Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
              std::span<Term> outputs) override;
  Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) override {
    ForEachTile(range, [&](uint32_t at, uint32_t count) {
      wire_->Decode(payload.data + wire_->Bytes(at), count, sum_.data());
      StoreElements(at, count, elements);
    });
    return Status::Ok();
  }

 private:
  template <typename Body>
  static void ForEachTile(const Range& range, const Body& body) {
    for (uint32_t at = 0; at < range.count; at += kWireTile)
      body(at, std::min(kWireTile, range.count - at));
  }
  // True if Launch has kernels for these operands.
  bool IsCast(std::span<const Term> inputs, std::span<const Term> outputs) const;
  Status LaunchEncode(const Range& range, const Term& input, std::span<Term> outputs,
                      DeviceWork* work);
  Status LaunchDecode(const Range& range, const Term& input, std::span<Term> outputs,
                      DeviceWork* work);
  size_t CodeAlignment() const { return wire_->bits() < 16 ? 1 : 2; }
  // `rounded`: rounds an own contribution as if it had arrived from a peer.
  void Load(const Term& input, uint32_t at, uint32_t count, bool rounded, float* out);
  void LoadOwn(const std::byte* elements, uint32_t count, bool rounded, float* out);
  void Add(uint32_t count);
  bool Encodes(std::span<const Term> outputs) const {
    return call().collective != Collective::kReduceScatter ||
           outputs[0].format.form != Form::kOutput;
  }
  void Store(uint32_t at, uint32_t count, std::span<Term> outputs);
  void StoreElements(uint32_t at, uint32_t count, std::byte* elements) {
    Saturate(LargestOf(call().type), count);
    FromFloat(call().type, sum_.data(), elements + at * SizeOf(call().type), count);
  }
  void Saturate(float largest, uint32_t count) {
    constexpr double kTop = std::numeric_limits<float>::max();
    const double reach = std::min(kTop, reach_ * static_cast<double>(largest));
    SaturateTo(largest, static_cast<float>(reach), sum_.data(), count);
  }

  std::shared_ptr<const FloatWire> wire_;
  ReduceFn add_ = nullptr;
  float scale_ = 1;
  double reach_ = 1;  // of results, relative to exact ones
  std::vector<float> sum_, next_;
};

void WireState::Load(const Term& input, uint32_t at, uint32_t count, bool rounded, float* out) {
  if (input.format.form == Form::kSum) {
    wire_->Decode(input.data + wire_->Bytes(at), count, out);
  } else {
    LoadOwn(input.data + at * SizeOf(call().type), count, rounded, out);
  }
}

void WireState::LoadOwn(const std::byte* elements, uint32_t count, bool rounded, float* out) {
  ToFloat(call().type, elements, out, count);
  if (scale_ != 1.0f) {
    for (uint32_t i = 0; i < count; ++i) out[i] *= scale_;
  }
  if (rounded) wire_->Round(out, count);
}

void WireState::Add(uint32_t count) {
  const void* in[2] = {sum_.data(), next_.data()};
  void* out[1] = {sum_.data()};
  add_({.in = in, .inputs = 2, .out = out, .outputs = 1, .count = count});
}

void WireState::Store(uint32_t at, uint32_t count, std::span<Term> outputs) {
  const Term* elements = FindOutput(Form::kOutput, outputs);
  const std::byte* code = nullptr;
  for (const Term& output : outputs) {
    if (output.format.form == Form::kOutput) continue;
    std::byte* to = output.data + wire_->Bytes(at);
    if (code == nullptr) {
      wire_->Encode(sum_.data(), count, to);
      code = to;
    } else if (code != to) {
      std::copy_n(code, wire_->Bytes(count), to);
    }
  }
  if (elements == nullptr) return;
  if (Encodes(outputs)) wire_->Round(sum_.data(), count);
  StoreElements(at, count, elements->data);
}

Status WireState::Fold(const Range& range, uint32_t /*contributions*/, std::span<const Term> inputs,
                       std::span<Term> outputs) {
  ForEachTile(range, [&](uint32_t at, uint32_t count) {
    Load(inputs[0], at, count, inputs.size() > 1, sum_.data());
    for (const Term& input : inputs.subspan(1)) {
      Load(input, at, count, true, next_.data());
      Add(count);
    }
    if (inputs.size() > 1 && Encodes(outputs)) Saturate(wire_->largest(), count);
    Store(at, count, outputs);
  });
  if (FindOutput(Form::kOutput, outputs) != nullptr) CopyToOthers(Form::kOutput, outputs);
  return Status::Ok();
}

// On its way a contribution is divided first and then rounded.
Result<bool> WireState::Own(const Range& range, const std::byte* x, float* y) {
  LoadOwn(x, range.count, true, y);
  for (uint32_t i = 0; i < range.count; ++i) y[i] /= scale_;
  return true;
}

bool WireState::IsCast(std::span<const Term> inputs, std::span<const Term> outputs) const {
  if (!wire_->kernels() || call().type != DataType::kFloat32 || inputs.size() != 1) return false;
  // A contribution of this rank, or a result; without a reduction they are the same.
  const Form form = inputs[0].format.form;
  if (form == Form::kInput ? scale_ != 1.0f : form != Form::kResult) return false;
  size_t wanted = 0;
  for (const Term& output : outputs) {
    if (output.format.form != Form::kOutput) continue;
    ++wanted;
    if (!IsAlignedTo(output.data, sizeof(float))) return false;
  }
  const bool payload = wanted < outputs.size();
  if (form == Form::kInput) return payload && wanted <= 1 && IsAlignedTo(inputs[0].data, 4);
  return wanted == 1;
}

// If elements are wanted as well, they are the decoded payload.
Status WireState::LaunchEncode(const Range& range, const Term& input, std::span<Term> outputs,
                               DeviceWork* work) {
  const auto payload = std::find_if(outputs.begin(), outputs.end(), [](const Term& output) {
    return output.format.form != Form::kOutput;
  });
  const Term* const wanted = FindOutput(Form::kOutput, outputs);
  DeviceBuffers buffers(work);
  work->kept[0] = payload->data;
  auto* const code = reinterpret_cast<uint8_t*>(
      buffers.Out(work->kept.data(), payload->bytes, CodeAlignment(), 0));
  return buffers.Run([&](const cuda::Launchers& kernels, void* stream) {
    const int error = kernels.cast_encode(
        *wire_->kernels(), reinterpret_cast<const float*>(input.data), range.count, code, stream);
    if (error != 0 || wanted == nullptr) return error;
    return kernels.cast_decode(*wire_->kernels(), code, range.count,
                               reinterpret_cast<float*>(wanted->data), stream);
  });
}

Status WireState::LaunchDecode(const Range& range, const Term& input, std::span<Term> outputs,
                               DeviceWork* work) {
  DeviceBuffers buffers(work);
  const auto* const code =
      reinterpret_cast<const uint8_t*>(buffers.In(input.data, input.bytes, CodeAlignment()));
  auto* const elements = reinterpret_cast<float*>(FindOutput(Form::kOutput, outputs)->data);
  Status status = buffers.Run([&](const cuda::Launchers& kernels, void* stream) {
    return kernels.cast_decode(*wire_->kernels(), code, range.count, elements, stream);
  });
  if (status.ok()) CopyPayload(input.data, outputs);
  return status;
}

Result<bool> WireState::Launch(const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs, DeviceWork* work) {
  Status status = CheckOperation(range, inputs, outputs);
  if (!status.ok()) return status;
  if (!IsCast(inputs, outputs)) return false;
  if (IsForward(inputs)) {
    status = CheckForward(range, inputs[0], outputs);
    if (status.ok()) status = LaunchDecode(range, inputs[0], outputs, work);
  } else {
    uint32_t contributions = 0;
    status = CheckFold(range, inputs, outputs, &contributions);
    if (status.ok()) status = LaunchEncode(range, inputs[0], outputs, work);
  }
  if (!status.ok()) return status;
  return true;
}

Status WireState::Complete(const Range& /*range*/, std::span<const Term> inputs,
                           std::span<Term> outputs, DeviceWork* work) {
  if (!IsForward(inputs)) CopyPayload(work->kept[0], outputs);
  return Status::Ok();
}

class WireCodec final : public Codec {
 public:
  explicit WireCodec(std::shared_ptr<const FloatWire> wire)
      : wire_(std::move(wire)), spec_(wire_->spec()) {}

  const std::string& spec() const override { return spec_; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return CheckFloatCall(wire_->name(), collective, type, op, nranks);
  }
  uint64_t window_elements() const override { return 0; }
  uint32_t MaxBytes(DataType /*type*/, int /*nranks*/, uint32_t count) const override {
    return static_cast<uint32_t>(
        std::min<uint64_t>(wire_->Bytes(count), std::numeric_limits<uint32_t>::max()));
  }
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    *bits = wire_->bits();
    *relative_error = RelativeError(*wire_, collective, nranks);
  }
  std::unique_ptr<CodecState> NewState() const override {
    return std::make_unique<WireState>(wire_);
  }

 private:
  std::shared_ptr<const FloatWire> wire_;
  std::string spec_;
};

}  // namespace

std::shared_ptr<const Codec> MakeWireCodec(std::shared_ptr<const FloatWire> wire) {
  return std::make_shared<const WireCodec>(std::move(wire));
}

// The cast codecs: each element travels in a narrower type, rounded to nearest, ties to even. NaN
// stays NaN, and infinity stays infinity (NaN in e4m3, which has none). Values beyond the largest
// one become infinite in bf16 and fp16 and saturate in the 8-bit types.

namespace {

struct CastType {
  const char* name;
  std::string spec;
  DataType type;
  double unit;
  float saturates;  // the largest value; 0: does not saturate
  cuda::CastFormat kernels;
};

class CastWire final : public FloatWire {
 public:
  explicit CastWire(CastType type) : type_(std::move(type)), size_(SizeOf(type_.type)) {}

  const char* name() const override { return type_.name; }
  std::string spec() const override { return type_.spec; }
  double bits() const override { return 8.0 * static_cast<double>(size_); }
  double unit() const override { return type_.unit; }
  float largest() const override {
    return type_.saturates == 0 ? LargestOf(type_.type) : FloatWire::largest();
  }
  uint64_t Bytes(uint32_t count) const override { return uint64_t{count} * size_; }
  void Encode(const float* in, uint32_t count, std::byte* out) const override {
    if (type_.saturates == 0) {
      FromFloat(type_.type, in, out, count);
      return;
    }
    if (const Fp8Kernels* kernels = BestFp8Kernels(type_.type); kernels != nullptr) {
      kernels->encode(in, count, out);
      return;
    }
    float limited[kSuperblock];
    for (uint32_t at = 0; at < count; at += kSuperblock) {
      const uint32_t now = std::min(kSuperblock, count - at);
      for (uint32_t i = 0; i < now; ++i) limited[i] = SaturatedTo(in[at + i], type_.saturates);
      FromFloat(type_.type, limited, out + at * size_, now);
    }
  }
  void Round(float* x, uint32_t count) const override {
    if (type_.saturates == 0) {
      RoundTo(type_.type, x, count);
      return;
    }
    if (const Fp8Kernels* kernels = BestFp8Kernels(type_.type); kernels != nullptr) {
      kernels->round(x, count);
      return;
    }
    std::byte code[kSuperblock];
    for (uint32_t at = 0; at < count; at += kSuperblock) {
      const uint32_t now = std::min(kSuperblock, count - at);
      Encode(x + at, now, code);
      Decode(code, now, x + at);
    }
  }
  void Decode(const std::byte* in, uint32_t count, float* out) const override {
    ToFloat(type_.type, in, out, count);
  }
  std::optional<cuda::CastFormat> kernels() const override { return type_.kernels; }

 private:
  const CastType type_;
  const size_t size_;
};

MadeCodec MakeCast(CastType type) {
  return MakeWireCodec(std::make_shared<const CastWire>(std::move(type)));
}

}  // namespace

MadeCodec MakeBf16Codec(const CodecSpec& spec) {
  if (Status status = spec.AllowOnly({}); !status.ok()) return status;
  return MakeCast({"bf16", "bf16", DataType::kBfloat16, 0x1p-8, 0, cuda::CastFormat::kBf16});
}

MadeCodec MakeFp16Codec(const CodecSpec& spec) {
  if (Status status = spec.AllowOnly({}); !status.ok()) return status;
  return MakeCast({"fp16", "fp16", DataType::kFloat16, 0x1p-11, 0, cuda::CastFormat::kFp16});
}

MadeCodec MakeFp8Codec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"format"}, kFormats[] = {"e4m3", "e5m2"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<size_t> format = spec.Choice("format", 0, kFormats);
  if (!format.ok()) return format.status();
  if (*format == 0)
    return MakeCast(
        {"fp8", "fp8:format=e4m3", DataType::kFloat8E4M3, 0x1p-4, 448, cuda::CastFormat::kE4m3});
  return MakeCast(
      {"fp8", "fp8:format=e5m2", DataType::kFloat8E5M2, 0x1p-3, 57344, cuda::CastFormat::kE5m2});
}

// MXFP8 of the OCP Microscaling Formats Specification v1.0: 32 elements of 8 bits share a scale of
// type E8M0, a power of two. The scale is the largest power of two not above the block's largest
// magnitude, divided by the largest power of two of the element type; elements saturate. A block
// with a NaN or an infinity has the scale NaN (0xFF), which makes all its elements NaN.
//
// The payload of a superblock is its scales, then its elements.

namespace {

struct Element {
  const char* spec;
  DataType type;
  int top_exponent;  // exponent of the largest power of two
  float largest;
  cuda::CastFormat kernels;
};
constexpr Element kE4m3 = {"mxfp8:format=e4m3", DataType::kFloat8E4M3, 8, 448,
                           cuda::CastFormat::kMxE4m3};
constexpr Element kE5m2 = {"mxfp8:format=e5m2", DataType::kFloat8E5M2, 15, 57344,
                           cuda::CastFormat::kMxE5m2};

class Mxfp8Wire final : public FloatWire {
 public:
  explicit Mxfp8Wire(const Element& element) : element_(element) {}

  const char* name() const override { return "mxfp8"; }
  std::string spec() const override { return element_.spec; }
  double bits() const override { return 8.25; }
  // Saturation loses at most an eighth: elements are below 2^(top + 1), an eighth above the largest
  // value. Rounding loses half of that in e4m3 and the same in e5m2.
  double unit() const override { return 0x1p-3; }
  uint64_t Bytes(uint32_t count) const override {
    return uint64_t{count} + count / kBlock + (count % kBlock != 0 ? 1 : 0);
  }
  void Encode(const float* in, uint32_t count, std::byte* out) const override {
    const Fp8Kernels* kernels = BestFp8Kernels(element_.type);
    for (uint32_t at = 0; at < count; at += kSuperblock) {
      if (kernels != nullptr && count - at >= kSuperblock) {
        kernels->encode_blocks(in + at, out + Bytes(at));
      } else {
        EncodeSuperblock(in + at, std::min(kSuperblock, count - at), out + Bytes(at));
      }
    }
  }
  void Round(float* x, uint32_t count) const override {
    const Fp8Kernels* kernels = BestFp8Kernels(element_.type);
    for (uint32_t at = 0; at < count; at += kSuperblock) {
      const uint32_t now = std::min(kSuperblock, count - at);
      if (kernels != nullptr && now == kSuperblock) {
        kernels->round_blocks(x + at);
        continue;
      }
      std::byte code[kSuperblock + kSuperblock / kBlock];
      EncodeSuperblock(x + at, now, code);
      DecodeSuperblock(code, now, x + at);
    }
  }
  void Decode(const std::byte* in, uint32_t count, float* out) const override {
    const Fp8Kernels* kernels = BestFp8Kernels(element_.type);
    for (uint32_t at = 0; at < count; at += kSuperblock) {
      if (kernels != nullptr && count - at >= kSuperblock) {
        const std::byte* code = in + Bytes(at);
        ToFloat(element_.type, code + kSuperblock / kBlock, out + at, kSuperblock);
        kernels->unscale_blocks(reinterpret_cast<const uint8_t*>(code), out + at);
      } else {
        DecodeSuperblock(in + Bytes(at), std::min(kSuperblock, count - at), out + at);
      }
    }
  }
  std::optional<cuda::CastFormat> kernels() const override { return element_.kernels; }

 private:
  void EncodeSuperblock(const float* in, uint32_t count, std::byte* out) const;
  void DecodeSuperblock(const std::byte* in, uint32_t count, float* out) const;
  // The biased exponent of the block's scale.
  uint32_t ScaleOf(const float* in, uint32_t count) const;

  const Element element_;
};

uint32_t Mxfp8Wire::ScaleOf(const float* in, uint32_t count) const {
  uint32_t top = 0;
  for (uint32_t i = 0; i < count; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(in[i]) & 0x7FFFFFFFu);
  }
  return MxScale(top, element_.top_exponent);
}

void Mxfp8Wire::EncodeSuperblock(const float* in, uint32_t count, std::byte* out) const {
  float scaled[kSuperblock];
  std::byte* elements = out + (count + kBlock - 1) / kBlock;
  for (uint32_t at = 0, block = 0; at < count; at += kBlock, ++block) {
    const uint32_t now = std::min(kBlock, count - at);
    const uint32_t scale = ScaleOf(in + at, now);
    out[block] = static_cast<std::byte>(scale);
    for (uint32_t i = at; i < at + now; ++i) {
      scaled[i] = MxScaled(in[i], scale, element_.largest);
    }
  }
  FromFloat(element_.type, scaled, elements, count);
}

void Mxfp8Wire::DecodeSuperblock(const std::byte* in, uint32_t count, float* out) const {
  ToFloat(element_.type, in + (count + kBlock - 1) / kBlock, out, count);
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = MxUnscaled(out[i], std::to_integer<uint32_t>(in[i / kBlock]));
  }
}

}  // namespace

MadeCodec MakeMxfp8Codec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"format"}, kFormats[] = {"e4m3", "e5m2"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<size_t> format = spec.Choice("format", 0, kFormats);
  if (!format.ok()) return format.status();
  return MakeWireCodec(std::make_shared<const Mxfp8Wire>(*format == 0 ? kE4m3 : kE5m2));
}

}  // namespace inccl
