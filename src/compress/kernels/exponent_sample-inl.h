// SPDX-License-Identifier: Apache-2.0
//
// Counts exponents of a superblock, all or those of a sample, for one instruction set. Included
// once per target.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/kernels/exponent_planes-inl.h"
#include "compress/kernels/exponent_split-inl.h"
#include "compress/lossless/exponent_coding.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_EXPONENT_SAMPLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_EXPONENT_SAMPLE_INL_H_
#undef INCCL_COMPRESS_KERNELS_EXPONENT_SAMPLE_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_EXPONENT_SAMPLE_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

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

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_SAMPLE_INL_H_
