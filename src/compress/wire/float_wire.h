// SPDX-License-Identifier: Apache-2.0
//
// Codecs that decode, add and encode at each hop. Such a codec only needs a wire format for floats
// (FloatWire); MakeWireCodec makes the codec.
//
// A rank encodes its contribution once, even where it adds the contribution itself, so that all
// ranks count it the same. Sums are fp32, in the order of the inputs; a rank encodes them when it
// sends them. In an all-reduce and an all-gather every rank, including the owner, returns the
// decoded result, so all ranks return the same bytes. These depend on the order of the additions,
// hence on the algorithm. The result of a reduce-scatter exists once and is not encoded. An average
// multiplies contributions by 1/n (fp32) before it encodes them. A sum beyond the largest number of
// the format, or a result beyond that of the call's type, becomes that number where the bound of
// the call explains it, and infinite otherwise.
#ifndef INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_
#define INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "compress/codec.h"
#include "compress/cuda/kernel_args.h"

namespace inccl {

// A wire format; thread-safe. Encode(Decode(Encode(x))) = Encode(x) for all x. A range's payload
// consists of its superblocks' payloads in order; Encode and Decode get whole superblocks except
// for the last one.
class FloatWire {
 public:
  virtual ~FloatWire() = default;
  virtual const char* name() const = 0;
  virtual std::string spec() const = 0;  // canonical
  virtual double bits() const = 0;       // per element
  // Largest rounding error of an element, relative to the largest one of its block, in the range
  // where the format has full precision.
  virtual double unit() const = 0;
  // Encode makes an infinity of larger numbers.
  virtual float largest() const { return std::numeric_limits<float>::max(); }
  virtual uint64_t Bytes(uint32_t count) const = 0;
  virtual void Encode(const float* in, uint32_t count, std::byte* out) const = 0;
  // Decode(Encode(x)) in place.
  virtual void Round(float* x, uint32_t count) const = 0;
  // Accepts any bytes.
  virtual void Decode(const std::byte* in, uint32_t count, float* out) const = 0;
  // The CUDA kernels that give the same bytes as Encode and Decode, if there are any.
  virtual std::optional<cuda::CastFormat> kernels() const { return std::nullopt; }
};

std::shared_ptr<const Codec> MakeWireCodec(std::shared_ptr<const FloatWire> wire);

// The scale of an MXFP8 block and its application to an element, shared by the codec
// (wire_codec.cc) and the CUDA kernels.

inline constexpr uint32_t kMxNanScale = 0xFF;

// 2^exponent for -127 to 127; 2^-127 is denormal.
constexpr float MxPowerOfTwo(int exponent) {
  return std::bit_cast<float>(exponent == -127 ? 1u << 22
                                               : static_cast<uint32_t>(exponent + 127) << 23);
}

// The biased exponent of the scale of a block whose largest magnitude has these bits (fp32, sign
// cleared). top_exponent is the exponent of the element type's largest power of two. Denormal
// floats are below every scale of e4m3 and e5m2, so they get the lowest scale.
constexpr uint32_t MxScale(uint32_t magnitude, int top_exponent) {
  if (magnitude >= 0x7F800000u) return kMxNanScale;
  const int scale = static_cast<int>(magnitude >> 23) - top_exponent;
  return scale > 0 ? static_cast<uint32_t>(scale) : 0;
}

// The scaled and clamped element, before it is rounded to the element type.
constexpr float MxScaled(float x, uint32_t scale, float largest) {
  if (scale == kMxNanScale) return 0.0f;
  const float scaled = x * MxPowerOfTwo(127 - static_cast<int>(scale));
  if (scaled < -largest) return -largest;
  return scaled > largest ? largest : scaled;
}

// A decoded element. NaN keeps its bits, which a product on a GPU would change.
constexpr float MxUnscaled(float x, uint32_t scale) {
  if (scale == kMxNanScale) return std::bit_cast<float>(0x7FC00000u);
  return x != x ? x : x * MxPowerOfTwo(static_cast<int>(scale) - 127);
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_
