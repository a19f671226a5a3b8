// SPDX-License-Identifier: Apache-2.0
//
// MXFP8 of the OCP Microscaling Formats Specification v1.0: 32 elements of 8 bits share a scale of
// type E8M0, a power of two. The scale is the largest power of two not above the block's largest
// magnitude, divided by the largest power of two of the element type; elements saturate. A block
// with a NaN or an infinity has the scale NaN (0xFF), which makes all its elements NaN.
//
// The payload of a superblock is its scales, then its elements.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compress/codecs.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/fp8_kernels.h"
#include "compress/wire/float_wire.h"
#include "compress/wire/mx_block.h"

namespace inccl {
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
