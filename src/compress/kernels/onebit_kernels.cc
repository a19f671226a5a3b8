// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "compress/codec.h"
#include "compress/kernels/published_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/onebit_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_side_words-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using VF32 = hn::Vec<DF>;
constexpr size_t kSums = onebit::kPartials / kLanes32;  // vectors of partial sums

// The bits of the negative elements of kPartials elements.
HWY_INLINE void StoreSigns(const VF32* x, uint8_t* signs) {
  const auto negative = [](VF32 v)
                            HWY_ATTR { return hn::Lt(hn::BitCast(DI32(), v), hn::Zero(DI32())); };
#if HWY_MAX_BYTES >= 32
  for (size_t j = 0; j < kSums; ++j) {
    hn::StoreMaskBits(DI32(), negative(x[j]), signs + j * kLanes32 / 8);
  }
#else
  for (size_t j = 0; j < kSums; j += 2) {  // half a byte each
    uint8_t lower[8], upper[8];
    hn::StoreMaskBits(DI32(), negative(x[j]), lower);
    hn::StoreMaskBits(DI32(), negative(x[j + 1]), upper);
    signs[j / 2] = static_cast<uint8_t>(lower[0] | upper[0] << 4);
  }
#endif
}

HWY_INLINE float SumOf(VF32* sums) {
  for (size_t n = kSums / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] = hn::Add(sums[i], sums[i + n]);
  }
  HWY_ALIGN float lanes[kLanes32];
  hn::Store(sums[0], DF(), lanes);
  for (size_t n = kLanes32 / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  }
  return lanes[0];
}

// Loads kPartials elements, stores their signs, and leaves their magnitudes.
HWY_INLINE void LoadMagnitudes(const float* x, size_t i, uint8_t* signs, VF32* magnitudes) {
  for (size_t j = 0; j < kSums; ++j) magnitudes[j] = hn::LoadU(DF(), x + i + j * kLanes32);
  StoreSigns(magnitudes, signs + i / 8);
  for (size_t j = 0; j < kSums; ++j) magnitudes[j] = hn::Abs(magnitudes[j]);
}

void Encode(const float* x, size_t block, uint8_t* signs, float* sums) {
  for (size_t b = 0; b < kSuperblock; b += block) {
    VF32 partial[kSums], next[kSums];
    LoadMagnitudes(x, b, signs, partial);
    for (size_t i = b + onebit::kPartials; i < b + block; i += onebit::kPartials) {
      LoadMagnitudes(x, i, signs, next);
      for (size_t j = 0; j < kSums; ++j) partial[j] = hn::Add(partial[j], next[j]);
    }
    sums[b / block] = SumOf(partial);
  }
}

HWY_INLINE hn::Mask<DF> LoadSigns(const uint8_t* signs, size_t i) {
#if HWY_MAX_BYTES >= 32
  return hn::LoadMaskBits(DF(), signs + i / 8);
#else
  uint8_t bits[8] = {};
  bits[0] = static_cast<uint8_t>(signs[i / 8] >> (i & 4));
  return hn::LoadMaskBits(DF(), bits);
#endif
}

template <bool kFirst>
HWY_INLINE void AddSignedAs(const uint8_t* signs, const float* scales, size_t block, float* sum) {
  for (size_t b = 0; b < kSuperblock; b += block) {
    VF32 plus = hn::Set(DF(), scales[b / block]), minus = hn::Neg(plus);
    if constexpr (kFirst) {  // as the other: no negative zeros
      plus = hn::Add(hn::Zero(DF()), plus);
      minus = hn::Add(hn::Zero(DF()), minus);
    }
    for (size_t i = b; i < b + block; i += kLanes32) {
      const VF32 value = hn::IfThenElse(LoadSigns(signs, i), minus, plus);
      hn::StoreU(kFirst ? value : hn::Add(hn::LoadU(DF(), sum + i), value), DF(), sum + i);
    }
  }
}

void AddSigned(const uint8_t* signs, const float* scales, size_t block, bool first, float* sum) {
  first ? AddSignedAs<true>(signs, scales, block, sum)
        : AddSignedAs<false>(signs, scales, block, sum);
}

const onebit::Kernels& KernelsOfTarget() {
  static constexpr onebit::Kernels kKernels = {Encode, AddSigned};
  return kKernels;
}

#else

const onebit::Kernels& KernelsOfTarget() { return onebit::ScalarKernels(); }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::onebit {
namespace {

void EncodePlain(const float* x, size_t block, uint8_t* signs, float* sums) {
  std::memset(signs, 0, kSignBytes);
  for (size_t i = 0; i < kSuperblock; ++i) {
    if (std::signbit(x[i])) signs[i / 8] = static_cast<uint8_t>(signs[i / 8] | 1u << i % 8);
  }
  for (size_t b = 0; b < kSuperblock; b += block) {
    float partial[kPartials] = {};
    for (size_t i = 0; i < block; ++i) partial[i % kPartials] += std::fabs(x[b + i]);
    for (size_t n = kPartials / 2; n > 0; n /= 2) {
      for (size_t i = 0; i < n; ++i) partial[i] += partial[i + n];
    }
    sums[b / block] = partial[0];
  }
}

void AddPlain(const uint8_t* signs, const float* scales, size_t block, bool first, float* sum) {
  if (first) std::fill_n(sum, kSuperblock, 0.0f);
  for (size_t i = 0; i < kSuperblock; ++i) {
    const bool negative = (signs[i / 8] >> i % 8 & 1) != 0;
    const float scale = scales[i / block];
    sum[i] += negative ? -scale : scale;
  }
}

HWY_EXPORT(KernelsOfTarget);

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {EncodePlain, AddPlain};
  return kKernels;
}

const Kernels& BestKernels() { return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(); }

}  // namespace inccl::onebit
#endif  // HWY_ONCE
