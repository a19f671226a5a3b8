// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "compress/codec.h"
#include "compress/kernels/published_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/dither_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using dither::Levels;
using VF32 = hn::Vec<DF>;
using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
constexpr size_t kDoubles = kLanes32 / 2;
constexpr size_t kSums = dither::kPartials / kDoubles;  // vectors of partial sums

HWY_INLINE VF32 Float(float value) { return hn::Set(DF(), value); }
HWY_INLINE VF32 FromBits(uint32_t bits) { return hn::BitCast(DF(), hn::Set(D32(), bits)); }

HWY_INLINE double SumOf(VD* sums) {
  for (size_t n = kSums / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] = hn::Add(sums[i], sums[i + n]);
  }
  HWY_ALIGN double lanes[kDoubles];
  hn::Store(sums[0], DD(), lanes);
  for (size_t n = kDoubles / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  }
  return lanes[0];
}

void Squares(const float* x, size_t block, double* sums) {
  const auto square = [](const float* from) HWY_ATTR {
    const VD value = hn::PromoteTo(DD(), hn::LoadU(hn::Rebind<float, DD>(), from));
    return hn::Mul(value, value);
  };
  for (size_t b = 0; b < kSuperblock; b += block) {
    VD partial[kSums];
    for (size_t j = 0; j < kSums; ++j) partial[j] = square(x + b + j * kDoubles);
    for (size_t i = b + dither::kPartials; i < b + block; i += dither::kPartials) {
      for (size_t j = 0; j < kSums; ++j) {
        partial[j] = hn::Add(partial[j], square(x + i + j * kDoubles));
      }
    }
    sums[b / block] = SumOf(partial);
  }
}

// 24 bits of a hash as a fraction.
HWY_INLINE VF32 Fraction(V32 hash) {
  const auto upper = hn::BitCast(DI32(), hn::ShiftRight<8>(hash));
  return hn::Mul(hn::ConvertTo(DF(), upper), Float(0x1p-24f));
}

template <bool kPowers>
HWY_INLINE hn::Vec<DI32> LevelOf(VF32 scaled, uint32_t levels, V32 hash) {
  if constexpr (kPowers) {
    const VF32 value = hn::Min(scaled, Float(1));
    const VF32 chance = hn::Mul(value, FromBits((126 + levels) << 23));
    const V32 raised = hn::Add(hn::BitCast(D32(), value), hn::ShiftRight<9>(hash));
    const auto exponent = hn::BitCast(DI32(), hn::ShiftRight<23>(raised));
    const auto power = hn::Sub(exponent, hn::Set(DI32(), 127 - static_cast<int32_t>(levels)));
    const auto up = hn::RebindMask(DI32(), hn::Lt(Fraction(hash), chance));
    const auto first = hn::IfThenElseZero(up, hn::Set(DI32(), 1));
    const auto low = hn::RebindMask(DI32(), hn::Lt(value, FromBits((128 - levels) << 23)));
    return hn::IfThenElse(low, first, power);
  } else {
    const VF32 value = hn::Min(scaled, Float(static_cast<float>(levels)));
    const auto below = hn::ConvertTo(DI32(), value);
    const VF32 rest = hn::Sub(value, hn::ConvertTo(DF(), below));
    const auto up = hn::RebindMask(DI32(), hn::Lt(Fraction(hash), rest));
    return hn::Sub(below, hn::VecFromMask(DI32(), up));
  }
}

template <bool kPowers>
HWY_INLINE void EncodeAs(const float* x, uint32_t random, uint32_t levels, const float* factors,
                         size_t block, uint8_t* codes) {
  const hn::Rebind<uint8_t, D32> d8;
  const auto zero = hn::Set(DI32(), static_cast<int32_t>(levels));
  V32 counter = hn::Iota(D32(), random);
  for (size_t b = 0; b < kSuperblock; b += block) {
    const VF32 factor = Float(factors[b / block]);
    for (size_t i = b; i < b + block; i += kLanes32) {
      const VF32 value = hn::LoadU(DF(), x + i);
      const auto level =
          LevelOf<kPowers>(hn::Mul(hn::Abs(value), factor), levels, LowBias32Lanes(counter));
      counter = hn::Add(counter, hn::Set(D32(), static_cast<uint32_t>(kLanes32)));
      const auto negative = hn::Lt(hn::BitCast(DI32(), value), hn::Zero(DI32()));
      const auto code = hn::Add(zero, hn::IfThenElse(negative, hn::Neg(level), level));
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    }
  }
}

void Encode(const float* x, uint32_t random, const Levels& levels, const float* factors,
            size_t block, uint8_t* codes) {
  levels.powers ? EncodeAs<true>(x, random, levels.count, factors, block, codes)
                : EncodeAs<false>(x, random, levels.count, factors, block, codes);
}

template <bool kPowers, bool kFirst>
HWY_INLINE uint32_t AddAs(const uint8_t* codes, uint32_t levels, const float* units, size_t block,
                          float* sum) {
  const hn::Rebind<uint8_t, D32> d8;
  const auto zero = hn::Set(DI32(), static_cast<int32_t>(levels));
  V32 largest = hn::Zero(D32());
  for (size_t b = 0; b < kSuperblock; b += block) {
    const VF32 unit = Float(units[b / block]);
    for (size_t i = b; i < b + block; i += kLanes32) {
      const V32 code = hn::PromoteTo(D32(), hn::LoadU(d8, codes + i));
      largest = hn::Max(largest, code);
      const auto level = hn::Sub(hn::BitCast(DI32(), code), zero);
      VF32 value = hn::ConvertTo(DF(), level);
      if constexpr (kPowers) {
        const auto exponent = hn::Add(hn::Abs(level), hn::Sub(hn::Set(DI32(), 127), zero));
        const VF32 power = hn::BitCast(DF(), hn::ShiftLeft<23>(exponent));
        const auto none = hn::RebindMask(DF(), hn::Eq(level, hn::Zero(DI32())));
        value = hn::IfThenZeroElse(none, hn::CopySign(power, value));
      }
      const VF32 before = kFirst ? hn::Zero(DF()) : hn::LoadU(DF(), sum + i);
      hn::StoreU(hn::Add(before, hn::Mul(value, unit)), DF(), sum + i);
    }
  }
  return hn::GetLane(hn::MaxOfLanes(D32(), largest));
}

template <bool kFirst>
HWY_INLINE uint32_t AddAny(const uint8_t* codes, const Levels& levels, const float* units,
                           size_t block, float* sum) {
  return levels.powers ? AddAs<true, kFirst>(codes, levels.count, units, block, sum)
                       : AddAs<false, kFirst>(codes, levels.count, units, block, sum);
}

uint32_t AddLevels(const uint8_t* codes, const Levels& levels, const float* units, size_t block,
                   bool first, float* sum) {
  return first ? AddAny<true>(codes, levels, units, block, sum)
               : AddAny<false>(codes, levels, units, block, sum);
}

void NonZero(const uint8_t* codes, uint32_t zero, uint64_t bits[4]) {
  const auto zeros = hn::Set(D8(), static_cast<uint8_t>(zero));
  uint8_t bytes[kSuperblock / 8 + 8];
  for (size_t i = 0; i < kSuperblock; i += HWY_MAX_BYTES) {
    const auto differs = hn::Not(hn::Eq(hn::LoadU(D8(), codes + i), zeros));
    hn::StoreMaskBits(D8(), differs, bytes + i / 8);
  }
  std::memcpy(bits, bytes, kSuperblock / 8);
}

const dither::Kernels& KernelsOfTarget() {
  static constexpr dither::Kernels kKernels = {Squares, Encode, AddLevels, NonZero};
  return kKernels;
}

#else

const dither::Kernels& KernelsOfTarget() { return dither::ScalarKernels(); }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::dither {
namespace {
HWY_EXPORT(KernelsOfTarget);
}  // namespace
const Kernels& BestKernels() { return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(); }
}  // namespace inccl::dither
#endif  // HWY_ONCE
