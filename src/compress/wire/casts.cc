// SPDX-License-Identifier: Apache-2.0
//
// The cast codecs: each element travels in a narrower type, rounded to nearest, ties to even. NaN
// stays NaN, and infinity stays infinity (NaN in e4m3, which has none). Values beyond the largest
// one become infinite in bf16 and fp16 and saturate in the 8-bit types.
#include <algorithm>

#include "compress/codecs.h"
#include "compress/float_types.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/fp8_kernels.h"
#include "compress/wire/float_wire.h"

namespace inccl {
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

}  // namespace inccl
