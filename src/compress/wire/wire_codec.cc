// SPDX-License-Identifier: Apache-2.0
//
// The codec for a wire format. It decodes, adds and encodes one tile at a time, so that the fp32
// sum stays in the L1 cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "compress/checked_state.h"
#include "compress/device_buffers.h"
#include "compress/kernels/convert.h"
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

}  // namespace inccl
