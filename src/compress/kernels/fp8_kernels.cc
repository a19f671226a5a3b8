// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/fp8_kernels.h"

#include <cstring>

#include "compress/float_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/fp8_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_side_words-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using VI = hn::Vec<DI32>;
using VF32 = hn::Vec<DF>;

constexpr uint32_t kNanScale = 0xFF;
constexpr size_t kAtOnce = 4 * kLanes32;  // the codes of these elements fill a vector
static_assert(kAtOnce <= 2 * kBlock);

HWY_INLINE VI Ints(uint32_t value) { return hn::Set(DI32(), static_cast<int32_t>(value)); }

// An element split into its sign bit and its magnitude, a multiple of the type's spacing there. The
// number that is added to round it has 1 as the unit of the last kept bit.
template <class Small>
struct Rounded {
  // The largest number: below infinity, or below NaN if the type has no infinity.
  static constexpr uint32_t kLargest = Small::kOverflow - (1u << Small::kShift);

  VI sign, magnitude;  // as fp32
  VI exponent;         // exponent of the magnitude as fp32, at least the smallest normal one
  VI grid;             // the number that was added

  explicit HWY_INLINE Rounded(VF32 value) {
    const VI bits = hn::BitCast(DI32(), value);
    sign = hn::And(bits, Ints(0x80000000u));
    magnitude = hn::Xor(bits, sign);
    const VI limited = hn::Min(magnitude, Ints(kLargest));
    exponent = hn::Max(hn::And(limited, Ints(0x7F800000u)), Ints(Small::kMinNormal));
    grid = hn::Add(exponent, Ints(static_cast<uint32_t>(Small::kShift) << 23));
    sum = hn::Add(hn::BitCast(DF(), limited), hn::BitCast(DF(), grid));
  }
  HWY_INLINE VI Code() const {
    const VI multiple = hn::Sub(hn::BitCast(DI32(), sum), grid);
    const VI below = hn::ShiftRight<Small::kShift>(hn::Sub(exponent, Ints(Small::kMinNormal)));
    VI code = hn::Add(multiple, below);
    code = hn::IfThenElse(NotFinite(), Ints(Small::kTop), code);
    if constexpr (Small::kHasInfinity) code = hn::IfThenElse(IsNan(), Ints(Small::kNan), code);
    const auto sign_bit = hn::ShiftRight<Small::kSignShift>(hn::BitCast(D32(), sign));
    return hn::Or(code, hn::BitCast(DI32(), sign_bit));
  }
  HWY_INLINE VF32 Value() const {
    VI value = hn::BitCast(DI32(), hn::Sub(sum, hn::BitCast(DF(), grid)));
    value = hn::IfThenElse(NotFinite(), Special(Small::kTop), value);
    if constexpr (Small::kHasInfinity) value = hn::IfThenElse(IsNan(), Special(Small::kNan), value);
    return hn::BitCast(DF(), hn::Or(value, sign));
  }

 private:
  VF32 sum;

  HWY_INLINE hn::Mask<DI32> NotFinite() const { return hn::Gt(magnitude, Ints(0x7F7FFFFFu)); }
  HWY_INLINE hn::Mask<DI32> IsNan() const { return hn::Gt(magnitude, Ints(0x7F800000u)); }
  static HWY_INLINE VI Special(uint32_t code) {
    const float value = Small::Decode(static_cast<typename Small::Code>(code));
    return hn::BitCast(DI32(), hn::Set(DF(), value));
  }
};

template <class Small>
HWY_INLINE V16 Codes(const float* in) {
  return hn::BitCast(D16(), Rounded<Small>(hn::LoadU(DF(), in)).Code());
}

template <class Small>
void Encode(const float* in, size_t count, std::byte* out) {
  size_t i = 0;
  for (; count - i >= kAtOnce; i += kAtOnce) {
    const float* x = in + i;
    const V16 lower = hn::ConcatEven(D16(), Codes<Small>(x + kLanes32), Codes<Small>(x));
    x += 2 * kLanes32;
    const V16 upper = hn::ConcatEven(D16(), Codes<Small>(x + kLanes32), Codes<Small>(x));
    const V8 all = hn::ConcatEven(D8(), hn::BitCast(D8(), upper), hn::BitCast(D8(), lower));
    hn::StoreU(all, D8(), reinterpret_cast<uint8_t*>(out + i));
  }
  if (i == count) return;
  float rest[kAtOnce] = {};
  std::byte codes[kAtOnce];
  std::memcpy(rest, in + i, (count - i) * sizeof *in);
  Encode<Small>(rest, kAtOnce, codes);
  std::memcpy(out + i, codes, count - i);
}

template <class Small>
void Round(float* x, size_t count) {
  size_t i = 0;
  for (; count - i >= kLanes32; i += kLanes32) {
    hn::StoreU(Rounded<Small>(hn::LoadU(DF(), x + i)).Value(), DF(), x + i);
  }
  if (i == count) return;
  float rest[kLanes32] = {};
  std::memcpy(rest, x + i, (count - i) * sizeof *x);
  Round<Small>(rest, kLanes32);
  std::memcpy(x + i, rest, (count - i) * sizeof *x);
}

// ---------------------------------------------------------------- blocks of 32 with a scale

// 2^(exponent - 127) for 0 to 254; 2^-127 is denormal.
HWY_INLINE float PowerOfTwo(uint32_t exponent) {
  const uint32_t bits = exponent == 0 ? 1u << 22 : exponent << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The scales of a superblock's blocks: exponents, and the factors for elements.
struct Scales {
  uint8_t exponent[hbi::kBlocks];
  float factor[hbi::kBlocks];
  bool numbers = true;  // no block has the scale NaN

  HWY_INLINE Scales(const float* x, uint32_t top_exponent) {
    HWY_ALIGN uint32_t maxima[hbi::kBlocks < kLanes32 ? kLanes32 : hbi::kBlocks];
    const auto of_block = [&](size_t b) HWY_ATTR { return LargestOfBlock(x + b * kBlock); };
    for (size_t b = 0; b < hbi::kBlocks; b += kLanes32) {
      V32 groups[kLanes32 / 4];  // longer vectors take the superblock twice
      for (size_t j = 0; j < kLanes32 / 4; ++j) {
        groups[j] = MaximaOfFourBlocks(of_block, (b + 4 * j) % hbi::kBlocks);
      }
      hn::Store(MaxOfParts(groups), D32(), maxima + b);
    }
    for (size_t b = 0; b < hbi::kBlocks; ++b) {
      const uint32_t top = maxima[b] >> 23;
      const bool number = top != kNanScale;
      const uint32_t scale = !number ? kNanScale : top < top_exponent ? 0 : top - top_exponent;
      exponent[b] = static_cast<uint8_t>(scale);
      factor[b] = number ? PowerOfTwo(2 * 127 - scale) : 0.0f;
      numbers = numbers && number;
    }
  }
};

template <class Small>
constexpr uint32_t kTopExponent = (Rounded<Small>::kLargest >> 23) - 127;

// `out` may be `x`.
HWY_INLINE void ScaleBlock(const float* x, float factor, float* out) {
  const VF32 times = hn::Set(DF(), factor);
  for (size_t i = 0; i < kBlock; i += kLanes32) {
    hn::StoreU(hn::Mul(hn::LoadU(DF(), x + i), times), DF(), out + i);
  }
}

// Multiplies the blocks of a superblock by their scales, in place.
HWY_NOINLINE void UnscaleBlocks(const uint8_t* exponents, float* x) {
  const VF32 nan = hn::BitCast(DF(), Ints(0x7FC00000u));
  for (size_t b = 0; b < hbi::kBlocks; ++b, x += kBlock) {
    ScaleBlock(x, PowerOfTwo(exponents[b] % kNanScale), x);
    for (size_t i = 0; i < kBlock && exponents[b] == kNanScale; i += kLanes32) {
      hn::StoreU(nan, DF(), x + i);
    }
  }
}

template <class Small>
void EncodeBlocks(const float* in, std::byte* out) {
  const Scales scales(in, kTopExponent<Small>);
  HWY_ALIGN float scaled[kSuperblock];
  for (size_t b = 0; b < hbi::kBlocks; ++b) {
    out[b] = static_cast<std::byte>(scales.exponent[b]);
    ScaleBlock(in + b * kBlock, scales.factor[b], scaled + b * kBlock);
  }
  std::byte* elements = out + hbi::kBlocks;
  Encode<Small>(scaled, kSuperblock, elements);
  for (size_t b = 0; b < hbi::kBlocks && !scales.numbers; ++b) {
    if (scales.exponent[b] == kNanScale) std::memset(elements + b * kBlock, 0, kBlock);
  }
}

template <class Small>
void RoundBlocks(float* x) {
  const Scales scales(x, kTopExponent<Small>);
  for (size_t b = 0; b < hbi::kBlocks; ++b) {
    ScaleBlock(x + b * kBlock, scales.factor[b], x + b * kBlock);
  }
  Round<Small>(x, kSuperblock);
  UnscaleBlocks(scales.exponent, x);
}

template <class Small>
const Fp8Kernels* KernelsOfType() {
  static constexpr Fp8Kernels kKernels = {Encode<Small>, Round<Small>, EncodeBlocks<Small>,
                                          UnscaleBlocks, RoundBlocks<Small>};
  return &kKernels;
}

const Fp8Kernels* KernelsOfTarget(DataType type) {
  return type == DataType::kFloat8E4M3 ? KernelsOfType<Fp8E4m3>() : KernelsOfType<Fp8E5m2>();
}

#else

const Fp8Kernels* KernelsOfTarget(DataType /*type*/) { return nullptr; }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {
namespace {
HWY_EXPORT(KernelsOfTarget);
}  // namespace
const Fp8Kernels* BestFp8Kernels(DataType type) {
  return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(type);
}
}  // namespace inccl
#endif  // HWY_ONCE
