// SPDX-License-Identifier: Apache-2.0
//
// Codes of exponents as bit planes (bit_fields.h), for one instruction set. Included once per
// target.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/kernels/exponent_split-inl.h"
#include "compress/lossless/exponent_coding.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_EXPONENT_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_EXPONENT_PLANES_INL_H_
#undef INCCL_COMPRESS_KERNELS_EXPONENT_PLANES_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_EXPONENT_PLANES_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

inline constexpr size_t kPlane = kCount / 8;  // bytes of a bit plane

// bits[k] = bit k of each byte, which has no others; kPlanes < 8.
template <uint32_t kPlanes>
HWY_INLINE void PlanesOf(V8 v, uint64_t* bits) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
  // An instruction collects the top bits.
  v = hn::BitCast(D8(), hn::ShiftLeft<8 - kPlanes>(hn::BitCast(D16(), v)));
  for (uint32_t plane = kPlanes; plane-- > 0; v = hn::Add(v, v)) {
#if HWY_TARGET == HWY_AVX2
    bits[plane] = static_cast<uint32_t>(_mm256_movemask_epi8(v.raw));
#else
    bits[plane] = static_cast<uint16_t>(_mm_movemask_epi8(v.raw));
#endif
  }
#else
  for (uint32_t plane = 0; plane < kPlanes; ++plane) {
    alignas(8) uint8_t bytes[8] = {};
    hn::StoreMaskBits(D8(), hn::TestBit(v, Byte(1u << plane)), bytes);
    std::memcpy(&bits[plane], bytes, sizeof bytes);
  }
#endif
}

// Stores the planes of a vector, a superblock's plane behind each other. Returns the AND of all.
template <uint32_t kPlanes>
HWY_INLINE uint64_t StorePlanes(V8 v, uint8_t* to) {
  uint64_t bits[kPlanes], all = ~uint64_t{0};
  PlanesOf<kPlanes>(v, bits);
  for (uint32_t plane = 0; plane < kPlanes; ++plane) {
    std::memcpy(to + plane * kPlane, &bits[plane], kBytes / 8);
    all &= bits[plane];
  }
  return all;
}

// What StorePlanes has stored, with the sign changed.
template <uint32_t kPlanes>
HWY_INLINE V8 LoadPlanesNegative(const uint8_t* from) {
  V8 v = hn::Zero(D8());
  for (uint32_t plane = kPlanes; plane-- > 0;) {
    const V8 minus = hn::VecFromMask(D8(), hn::LoadMaskBits(D8(), from + plane * kPlane));
    v = plane + 1 == kPlanes ? minus : hn::Add(hn::Add(v, v), minus);
  }
  return v;
}

// Writes the codes. `places` gets a bit for each element without a code; returns their number.
template <uint32_t kWidth, bool kZero>
uint32_t EncodeCodes(const uint8_t* in, uint32_t base, uint8_t* to, uint64_t places[4]) {
  const V8 first = Byte(base), direct = Byte((1u << kWidth) - 1 - (kZero ? 1 : 0));
  uint32_t escapes = 0;
  for (size_t part = 0; part < 4; ++part) {
    uint64_t ones = 0;
    for (size_t v = 0; v < 64 / kBytes; ++v) {
      const size_t i = 64 * part + v * kBytes;
      const V8 exponents = LoadBytes(in + i);
      // Exponents below the base wrap to large differences.
      V8 code = hn::Min(hn::Sub(exponents, first), direct);
      if constexpr (kZero) {
        code = hn::IfThenZeroElse(hn::Eq(exponents, hn::Zero(D8())), hn::Add(code, Byte(1)));
      }
      ones |= StorePlanes<kWidth>(code, to + i / 8) << (v * kBytes);
    }
    places[part] = ones;
    escapes += static_cast<uint32_t>(std::popcount(ones));
  }
  return escapes;
}

// Reads the codes. `places` gets a bit for each element without a code, whose exponent means
// nothing; returns their number.
template <uint32_t kWidth, bool kZero>
uint32_t DecodeCodes(const uint8_t* from, uint32_t base, uint8_t* exponents, uint64_t places[4]) {
  const V8 first = Byte(base - (kZero ? 1 : 0));
  for (size_t i = 0; i < kCount; i += kBytes) {
    const V8 minus = LoadPlanesNegative<kWidth>(from + i / 8);
    V8 exponent = hn::Sub(first, minus);
    if constexpr (kZero) exponent = hn::IfThenZeroElse(hn::Eq(minus, hn::Zero(D8())), exponent);
    StoreBytes(exponent, exponents + i);
  }
  uint32_t escapes = 0;
  for (size_t part = 0; part < 4; ++part) {
    uint64_t ones = ~uint64_t{0};
    for (uint32_t plane = 0; plane < kWidth; ++plane) {
      uint64_t bits;
      std::memcpy(&bits, from + plane * kPlane + 8 * part, sizeof bits);
      ones &= bits;
    }
    places[part] = ones;
    escapes += static_cast<uint32_t>(std::popcount(ones));
  }
  return escapes;
}

using EncodeFunction = uint32_t (*)(const uint8_t*, uint32_t, uint8_t*, uint64_t*);
using DecodeFunction = uint32_t (*)(const uint8_t*, uint32_t, uint8_t*, uint64_t*);
inline constexpr EncodeFunction kEncode[lossless::kWidest][2] = {
    {EncodeCodes<1, false>, nullptr},
    {EncodeCodes<2, false>, EncodeCodes<2, true>},
    {EncodeCodes<3, false>, EncodeCodes<3, true>},
    {EncodeCodes<4, false>, EncodeCodes<4, true>},
    {EncodeCodes<5, false>, EncodeCodes<5, true>},
    {EncodeCodes<6, false>, EncodeCodes<6, true>}};
inline constexpr DecodeFunction kDecode[lossless::kWidest][2] = {
    {DecodeCodes<1, false>, nullptr},
    {DecodeCodes<2, false>, DecodeCodes<2, true>},
    {DecodeCodes<3, false>, DecodeCodes<3, true>},
    {DecodeCodes<4, false>, DecodeCodes<4, true>},
    {DecodeCodes<5, false>, DecodeCodes<5, true>},
    {DecodeCodes<6, false>, DecodeCodes<6, true>}};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_PLANES_INL_H_
