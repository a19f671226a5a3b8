// SPDX-License-Identifier: Apache-2.0
//
// Conversions between the narrow floating-point types and fp32, one element at a time: the
// reference that the vector conversions of kernels/convert.h match bit for bit.
//
//   fp16   IEEE 754 binary16: 5 exponent bits, 10 mantissa bits
//   bf16   the upper half of fp32: 8, 7
//   e5m2   OCP 8-bit floating point (OFP8, revision 1.0): 5, 2; infinities as in IEEE 754
//   e4m3   OFP8: 4, 3; no infinity, NaN is 0x7F and 0xFF, the largest value 448
//
// Conversion to fp32 is exact. Conversion from fp32 rounds to nearest, ties to even, and always
// keeps the sign. Values that round beyond the largest one become infinity, in e4m3 NaN (its next
// value would be 480, whose code is NaN). NaN stays NaN: fp16 and bf16 keep the leading payload
// bits and set the quiet bit, like the conversion instructions of CPUs; e5m2 and e4m3 write 0x7F.
// The floating-point environment must be in round-to-nearest mode.
#ifndef INCCL_COMPRESS_FLOAT_TYPES_H_
#define INCCL_COMPRESS_FLOAT_TYPES_H_

#include <bit>
#include <cstdint>

namespace inccl {

// A type with a sign, kExponentBits < 8 and kMantissaBits < 23. With kInfinity the all-ones
// exponent holds infinity and NaN; without it only the all-ones code is NaN. kPayload: NaN keeps
// its payload.
template <typename Bits, int kExponentBits, int kMantissaBits, bool kInfinity, bool kPayload>
struct SmallFloat {
  using Code = Bits;
  static constexpr bool kHasInfinity = kInfinity;
  static constexpr bool kKeepsPayload = kPayload;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kSignShift = 31 - (kExponentBits + kMantissaBits);  // to fp32's sign
  static constexpr int kShift = 23 - kMantissaBits;                        // to fp32's mantissa
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kMagnitude = (1u << (kExponentBits + kMantissaBits)) - 1;
  // Infinity's code, or NaN's where there is no infinity.
  static constexpr uint32_t kTop =
      kInfinity ? kMagnitude & ~((1u << kMantissaBits) - 1) : kMagnitude;
  // The largest number.
  static constexpr float Largest() { return Decode(static_cast<Bits>(kTop - 1)); }
  static constexpr uint32_t kNan = kPayload ? kTop | (1u << (kMantissaBits - 1)) : kMagnitude;
  // The following are bits of fp32: this type's bias as an exponent of fp32, the smallest normal
  // value, the value of kTop if it were a number, and the number whose last bit is the smallest
  // denormal.
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  static constexpr uint32_t kOverflow = kRebias + (kTop << kShift);
  static constexpr uint32_t kDenormal = kRebias + (static_cast<uint32_t>(kShift + 1) << 23);

  static constexpr float Decode(Bits code) {
    const uint32_t sign = static_cast<uint32_t>(code & ~kMagnitude) << kSignShift;
    const uint32_t magnitude = code & kMagnitude;
    uint32_t bits = magnitude << kShift;
    if (kInfinity ? magnitude > kTop : magnitude == kTop) {
      bits |= 0x7FC00000u;
    } else if (kInfinity && magnitude == kTop) {
      bits = 0x7F800000u;
    } else if (bits < (1u << 23)) {  // (1 + m) 2^e - 2^e
      bits = std::bit_cast<uint32_t>(std::bit_cast<float>(bits + kMinNormal) -
                                     std::bit_cast<float>(kMinNormal));
    } else {
      bits += kRebias;
    }
    return std::bit_cast<float>(bits | sign);
  }

  static constexpr Bits Encode(float value) {
    const uint32_t sign = std::bit_cast<uint32_t>(value) & 0x80000000u;
    const uint32_t bits = std::bit_cast<uint32_t>(value) ^ sign;
    uint32_t code;
    if (bits > 0x7F800000u) {
      code = kPayload ? kNan | ((bits & 0x7FFFFFu) >> kShift) : kNan;
    } else if (bits >= kOverflow) {
      code = kTop;
    } else if (bits < kMinNormal) {  // the addition rounds
      code = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kDenormal)) -
             kDenormal;
    } else {
      const uint32_t odd = (bits >> kShift) & 1;
      code = (bits - kRebias + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    }
    return static_cast<Bits>(code | (sign >> kSignShift));
  }
};

using Fp16 = SmallFloat<uint16_t, 5, 10, true, true>;
using Fp8E4m3 = SmallFloat<uint8_t, 4, 3, false, false>;
using Fp8E5m2 = SmallFloat<uint8_t, 5, 2, true, false>;

// Clamps finite values to the largest one of a type; infinity and NaN stay.
constexpr float SaturatedTo(float x, float largest) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) ^ sign;
  if (magnitude >= 0x7F800000u || magnitude <= std::bit_cast<uint32_t>(largest)) return x;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(largest) | sign);
}

struct Bf16 {
  using Code = uint16_t;
  static constexpr float Decode(uint16_t code) {
    return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
  }
  static constexpr uint16_t Encode(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_FLOAT_TYPES_H_
