// SPDX-License-Identifier: Apache-2.0
//
// Separates the elements of a superblock into exponents, and signs and mantissas, and joins them
// again, for one instruction set. Included once per target.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/codec.h"
#include "compress/kernels/hbi_pack-inl.h"
#include "compress/lossless/exponent_pack.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_INL_H_
#undef INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kBytes = HWY_LANES(uint8_t);  // bytes of a vector
inline constexpr size_t kCount = kSuperblock;

// The separated elements of a superblock: exponents, and the bits of signs and mantissas that do
// not fill whole bytes (fp16 only).
struct Exponents {
  alignas(64) uint8_t exponents[kCount];
  alignas(64) uint8_t rest[kCount];
};

HWY_INLINE V8 Byte(uint32_t value) { return hn::Set(D8(), static_cast<uint8_t>(value)); }
HWY_INLINE V8 LoadBytes(const void* from) {
  return hn::LoadU(D8(), static_cast<const uint8_t*>(from));
}
HWY_INLINE void StoreBytes(V8 v, void* to) { hn::StoreU(v, D8(), static_cast<uint8_t*>(to)); }
// Shifts bytes; `mask` removes the bits that come from a neighbour.
template <int kBits>
HWY_INLINE V8 Right(V8 v, uint32_t mask) {
  return hn::And(hn::BitCast(D8(), hn::ShiftRight<kBits>(hn::BitCast(D16(), v))), Byte(mask));
}
template <int kBits>
HWY_INLINE V8 Left(V8 v, uint32_t mask) {
  return hn::And(hn::BitCast(D8(), hn::ShiftLeft<kBits>(hn::BitCast(D16(), v))), Byte(mask));
}

// The largest byte of all.
template <class D>
HWY_INLINE uint32_t LargestByte(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 16) {
    const hn::Half<D> half;
    return LargestByte(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    // Some instruction sets have an instruction for the smallest 16-bit lane.
    const hn::Repartition<uint16_t, D> pairs;
    const auto inverted = hn::Not(v);
    const auto upper = hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(pairs, inverted)));
    const auto least = hn::BitCast(pairs, hn::Min(inverted, upper));
    return 255u - hn::GetLane(hn::MinOfLanes(pairs, least));
  }
}

// Separates vectors of 16-bit elements into their lower and upper bytes.
HWY_INLINE void Unzip(V8 first, V8 second, V8* lower, V8* upper) {
  *lower = hn::ConcatEven(D8(), second, first);
  *upper = hn::ConcatOdd(D8(), second, first);
}

struct Bf16Bytes {
  static constexpr uint32_t kExponents = 256;
  static constexpr uint32_t kBytePlanes = 1;
  static constexpr uint32_t kRest = 0;
  // Splits elements into exponents and planes.
  static HWY_INLINE void Split(const uint8_t* in, V8* exponents, V8* /*rest*/, V8* planes) {
    V8 lower, upper;
    Unzip(LoadBytes(in), LoadBytes(in + kBytes), &lower, &upper);
    SplitHalf(lower, upper, exponents, planes);
  }
  static HWY_INLINE void Join(V8 exponents, V8 /*rest*/, const V8* planes, uint8_t* out) {
    V8 lower, upper;
    JoinHalf(exponents, planes[0], &lower, &upper);
    hn::StoreInterleaved2(lower, upper, D8(), out);
  }

  static HWY_INLINE void SplitHalf(V8 lower, V8 upper, V8* exponents, V8* others) {
    *exponents = hn::Or(hn::Add(upper, upper), Right<7>(lower, 1));
    *others = hn::Or(hn::And(lower, Byte(0x7F)), hn::And(upper, Byte(0x80)));
  }
  static HWY_INLINE void JoinHalf(V8 exponents, V8 others, V8* lower, V8* upper) {
    *lower = hn::Or(hn::And(others, Byte(0x7F)), Left<7>(exponents, 0x80));
    *upper = hn::Or(hn::And(others, Byte(0x80)), Right<1>(exponents, 0x7F));
  }
};

struct Fp32Bytes {
  static constexpr uint32_t kExponents = 256;
  static constexpr uint32_t kBytePlanes = 3;
  static constexpr uint32_t kRest = 0;
  static HWY_INLINE void Split(const uint8_t* in, V8* exponents, V8* /*rest*/, V8* planes) {
    V16 low[2], high[2];
    for (size_t i = 0; i < 2; ++i) {
      const V16 first = hn::BitCast(D16(), LoadBytes(in + 2 * i * kBytes));
      const V16 second = hn::BitCast(D16(), LoadBytes(in + (2 * i + 1) * kBytes));
      low[i] = hn::ConcatEven(D16(), second, first);
      high[i] = hn::ConcatOdd(D16(), second, first);
    }
    V8 lower, upper;
    Unzip(hn::BitCast(D8(), low[0]), hn::BitCast(D8(), low[1]), &planes[0], &planes[1]);
    Unzip(hn::BitCast(D8(), high[0]), hn::BitCast(D8(), high[1]), &lower, &upper);
    Bf16Bytes::SplitHalf(lower, upper, exponents, &planes[2]);
  }
  static HWY_INLINE void Join(V8 exponents, V8 /*rest*/, const V8* planes, uint8_t* out) {
    V8 lower, upper;
    Bf16Bytes::JoinHalf(exponents, planes[2], &lower, &upper);
    hn::StoreInterleaved4(planes[0], planes[1], lower, upper, D8(), out);
  }
};

struct Fp16Bytes {
  static constexpr uint32_t kExponents = 32;
  static constexpr uint32_t kBytePlanes = 1;
  static constexpr uint32_t kRest = 3;
  static HWY_INLINE void Split(const uint8_t* in, V8* exponents, V8* rest, V8* planes) {
    V8 upper;
    Unzip(LoadBytes(in), LoadBytes(in + kBytes), &planes[0], &upper);
    *exponents = Right<2>(upper, 0x1F);
    *rest = hn::Or(hn::And(upper, Byte(3)), Right<5>(upper, 4));
  }
  static HWY_INLINE void Join(V8 exponents, V8 rest, const V8* planes, uint8_t* out) {
    const V8 mantissa_and_sign = hn::Or(hn::And(rest, Byte(3)), Left<5>(rest, 0x80));
    const V8 upper = hn::Or(mantissa_and_sign, Left<2>(exponents, 0x7C));
    hn::StoreInterleaved2(planes[0], upper, D8(), out);
  }
};

template <class Type>
HWY_INLINE void Split(const std::byte* elements, Exponents* out, std::byte* planes) {
  const auto* in = reinterpret_cast<const uint8_t*>(elements);
  constexpr size_t kSize = kBytes * (Type::kBytePlanes + 1);  // bytes of a vector's elements
  for (size_t i = 0; i < kCount; i += kBytes, in += kSize) {
    V8 exponents, rest, plane[3];
    Type::Split(in, &exponents, &rest, plane);
    StoreBytes(exponents, out->exponents + i);
    if constexpr (Type::kRest > 0) StoreBytes(rest, out->rest + i);
    for (size_t p = 0; p < Type::kBytePlanes; ++p) StoreBytes(plane[p], planes + p * kCount + i);
  }
}

template <class Type>
HWY_INLINE void Join(const Exponents& in, const std::byte* planes, std::byte* elements) {
  auto* out = reinterpret_cast<uint8_t*>(elements);
  constexpr size_t kSize = kBytes * (Type::kBytePlanes + 1);
  for (size_t i = 0; i < kCount; i += kBytes, out += kSize) {
    V8 plane[3], rest = hn::Zero(D8());
    for (size_t p = 0; p < Type::kBytePlanes; ++p) plane[p] = LoadBytes(planes + p * kCount + i);
    if constexpr (Type::kRest > 0) rest = LoadBytes(in.rest + i);
    Type::Join(LoadBytes(in.exponents + i), rest, plane, out);
  }
}

// Codes of exponents as bit planes (bit_fields.h), for one instruction set. Included once per
// target.

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

// Counts exponents of a superblock, all or those of a sample, for one instruction set. Included
// once per target.

inline constexpr size_t kSampleWords = lossless::kSampled / 64;

// The exponents of the sample from number `first` on that fill a vector.
template <class D>
HWY_INLINE hn::Vec<D> Sampled(D d, const Exponents& in, size_t first) {
  if constexpr (hn::MaxLanes(D()) <= lossless::kRun) {
    return hn::LoadU(d, in.exponents + lossless::SampledElement(static_cast<uint32_t>(first)));
  } else {
    const hn::Half<D> half;
    constexpr size_t kHalf = hn::MaxLanes(D()) / 2;
    return hn::Combine(d, Sampled(half, in, first + kHalf), Sampled(half, in, first));
  }
}

// Of the sample's distances, at most 15, whose bits 0 to 3 are p[0] to p[3], 64 distances each: the
// numbers of those beyond lossless::kDistances, a byte each.
HWY_INLINE void CountBeyond(const uint64_t p[4][kSampleWords], uint64_t counts[2]) {
  uint32_t beyond[16] = {};
  for (size_t i = 0; i < kSampleWords; ++i) {
    const uint64_t any01 = p[0][i] | p[1][i], all01 = p[0][i] & p[1][i];
    const uint64_t far = p[3][i], mid = p[2][i], above3 = far | mid;
    const uint64_t sets[lossless::kDistanceCount] = {
        above3 | any01,      above3 | p[1][i],      above3 | all01,      above3,
        far | (mid & any01), far | (mid & p[1][i]), far | (mid & all01), far,
        far & (mid | any01), far & (mid | p[1][i]), far & mid & p[1][i]};
    for (size_t k = 0; k < lossless::kDistanceCount; ++k) {
      beyond[k] += static_cast<uint32_t>(std::popcount(sets[k]));
    }
  }
  counts[0] = counts[1] = 0;
  for (size_t k = 0; k < lossless::kDistanceCount; ++k) {
    counts[k / 8] |= uint64_t{beyond[k]} << (8 * (k % 8));
  }
}

HWY_INLINE lossless::Sample SampleExponents(const Exponents& in) {
  using lossless::kSampled;
  constexpr size_t kVectors = kSampled / kBytes;
  V8 v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    v[i] = Sampled(D8(), in, i * kBytes);
  }
  V8 most = v[0];
  for (size_t i = 1; i < kVectors; ++i) most = hn::Max(most, v[i]);
  lossless::Sample sample{};
  sample.most = LargestByte(D8(), most);
  const V8 largest = Byte(sample.most);
  uint64_t distances[4][kSampleWords] = {}, zero[kSampleWords] = {};
  for (size_t i = 0; i < kVectors; ++i) {
    const size_t word = i * kBytes / 64, shift = i * kBytes % 64;
    uint64_t bits[4];
    PlanesOf<4>(hn::Min(hn::Sub(largest, v[i]), Byte(15)), bits);
    for (size_t plane = 0; plane < 4; ++plane) distances[plane][word] |= bits[plane] << shift;
    PlanesOf<1>(hn::And(hn::VecFromMask(D8(), hn::Eq(v[i], hn::Zero(D8()))), Byte(1)), bits);
    zero[word] |= bits[0] << shift;
  }
  for (const uint64_t bits : zero) sample.zeros += static_cast<uint32_t>(std::popcount(bits));
  alignas(16) uint64_t counts[2];
  CountBeyond(distances, counts);

  const hn::FixedTag<uint8_t, 16> d;
  const hn::FixedTag<uint16_t, 8> d16;
  const auto& table = lossless::kCandidateTables[sample.zeros != 0 ? 1 : 0];
  const auto zeros = hn::Set(d, static_cast<uint8_t>(sample.zeros));
  const auto others = hn::Set(d, static_cast<uint8_t>(kSampled - sample.zeros));
  // Exponents 0 are beyond all distances but those that reach 0, where nothing is.
  const auto beyond =
      hn::SaturatedSub(hn::BitCast(d, hn::Load(hn::FixedTag<uint64_t, 2>(), counts)), zeros);
  sample.beyond = hn::GetLane(beyond);
  const auto last = hn::TableLookupBytesOr0(beyond, hn::Load(d, table.last));
  const auto before = hn::TableLookupBytesOr0(beyond, hn::Load(d, table.before));
  const auto above = hn::Sub(hn::And(others, hn::Load(d, table.inner)), before);
  const auto cost = hn::Add(hn::Add(hn::Load(d, table.fixed), last), above);
  // Costs in the upper byte, the candidate in the lower byte.
  const auto candidate = hn::Iota(d, 0);
  const auto low = hn::BitCast(d16, hn::InterleaveLower(d, candidate, cost));
  const auto high = hn::BitCast(d16, hn::InterleaveUpper(d, candidate, cost));
  const uint32_t best = hn::GetLane(hn::MinOfLanes(d16, hn::Min(low, high)));
  sample.best = best & 0xFF;
  sample.cost = best >> 8;
  return sample;
}

// The smallest exponent other than 0 (256: there is none) and the largest exponent.
struct Extent {
  uint32_t least, most;
};

HWY_INLINE Extent ExtentOf(const Exponents& in) {
  V8 most = hn::Zero(D8()), least = Byte(0xFF);
  for (size_t i = 0; i < kCount; i += kBytes) {
    const V8 exponents = LoadBytes(in.exponents + i);
    most = hn::Max(most, exponents);
    least = hn::Min(least, hn::Sub(exponents, Byte(1)));  // 0 wraps to the largest
  }
  return {.least = 256 - LargestByte(D8(), hn::Not(least)), .most = LargestByte(D8(), most)};
}

HWY_INLINE uint16_t CountOf(const uint8_t* exponents, uint32_t value) {
  const V8 wanted = Byte(value);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86  // comparisons give bit masks
  size_t count = 0;
  for (size_t i = 0; i < kCount; i += kBytes) {
    count += hn::CountTrue(D8(), hn::Eq(LoadBytes(exponents + i), wanted));
  }
  return static_cast<uint16_t>(count);
#else
  V8 minus = hn::Zero(D8());
  for (size_t i = 0; i < kCount; i += kBytes) {
    minus = hn::Add(minus, hn::VecFromMask(D8(), hn::Eq(LoadBytes(exponents + i), wanted)));
  }
  const V64 sums = hn::SumsOf8(hn::Sub(hn::Zero(D8()), minus));
  return static_cast<uint16_t>(hn::GetLane(hn::SumOfLanes(D64(), sums)));
#endif
}

// Counts the exponents from lo to hi and 0; leaves other counts unchanged.
HWY_INLINE void CountExponents(const Exponents& in, uint32_t lo, uint32_t hi, uint16_t* counts) {
  // For few exponents, one comparison per exponent is cheaper than counting element by element.
  constexpr uint32_t kFew = static_cast<uint32_t>(kBytes) * 3 / 4;
  if (hi - lo < kFew) {
    if (lo > 0) counts[0] = CountOf(in.exponents, 0);
    for (uint32_t e = lo; e <= hi; ++e) counts[e] = CountOf(in.exponents, e);
    return;
  }
  counts[0] = 0;
  std::memset(counts + lo, 0, (hi - lo + 1) * sizeof *counts);
  for (const uint8_t exponent : in.exponents) ++counts[exponent];
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
