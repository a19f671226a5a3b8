// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/published_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/qsgd_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/byte_pack-inl.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using qsgd::CodeArgs;
using qsgd::ScaleChoice;

// Arithmetic in fp64, like the reference: a vector of 32-bit lanes becomes two vectors.
using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
using DHalfF = hn::Rebind<float, DD>;
using DHalfI = hn::Rebind<int32_t, DD>;
using DHalfU = hn::Rebind<uint32_t, DD>;
constexpr size_t kDoubles = kLanes32 / 2;

HWY_INLINE VD Double(double value) { return hn::Set(DD(), value); }
HWY_INLINE hn::Vec<DI32> TwoHalves(hn::Vec<DHalfI> upper, hn::Vec<DHalfI> lower) {
  return hn::Combine(DI32(), upper, lower);
}

// Truncates toward zero; magnitudes stay far below 2^31.
HWY_INLINE hn::Vec<DHalfI> Truncated(VD v) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
  return hn::Vec<DHalfI>{_mm512_cvttpd_epi32(v.raw)};
#elif HWY_ARCH_X86 && HWY_MAX_BYTES == 32
  return hn::Vec<DHalfI>{_mm256_cvttpd_epi32(v.raw)};
#elif HWY_ARCH_X86
  return hn::Vec<DHalfI>{_mm_cvttpd_epi32(v.raw)};
#else
  return hn::DemoteTo(DHalfI(), v);
#endif
}

// v > least ? v : least, so `least` if v is NaN.
HWY_INLINE VD AtLeast(VD v, VD least) {
#if HWY_ARCH_X86
  return hn::Max(v, least);  // with NaN the instruction returns its second operand
#else
  return hn::IfThenElse(hn::Gt(v, least), v, least);
#endif
}

// kSeveral: selects by the element's index; else all elements have the first value.
template <bool kSeveral>
class Chosen {
 public:
  explicit HWY_INLINE Chosen(const ScaleChoice& choice)
      : index_(choice.index), scales_(choice.scales) {
    for (size_t k = 0; k < scales_; ++k) values_[k] = choice.by_scale[k];
  }
  // The values of kDoubles elements from i on.
  HWY_INLINE VD operator()(size_t i) const {
    VD value = Double(values_[0]);
    if constexpr (kSeveral) {
      const hn::Rebind<uint8_t, D32> d8;
      const hn::Half<D32> half;
      const V32 wide = hn::PromoteTo(D32(), hn::LoadU(d8, index_ + i / kLanes32 * kLanes32));
      const auto part = i % kLanes32 == 0 ? hn::LowerHalf(half, wide) : hn::UpperHalf(half, wide);
      const V64 index = hn::PromoteTo(D64(), part);
      for (size_t k = 1; k < scales_; ++k) {
        const auto is_k = hn::RebindMask(DD(), hn::Eq(index, hn::Set(D64(), k)));
        value = hn::IfThenElse(is_k, Double(values_[k]), value);
      }
    }
    return value;
  }

 private:
  const uint8_t* index_;
  size_t scales_;
  double values_[qsgd::kMostScales];
};

template <bool kSeveral>
HWY_INLINE void AddCodesAs(const CodeArgs& args, uint32_t count, uint32_t* sums) {
  const Chosen<kSeveral> factor(args.factor);
  const VD levels = Double(args.levels), lowest = Double(-static_cast<double>(args.levels));
  // r in [0, 2^32) as the lower mantissa bits of 2^20 gives 2^20 + r / 2^32.
  const VD offset = Double(0x1p20);
  const V64 above_random = hn::BitCast(D64(), offset);
  const hn::Half<D32> half;
  const auto codes = [&](size_t i, hn::Vec<DHalfU> random) HWY_ATTR {
    const VD x = hn::PromoteTo(DD(), hn::LoadU(DHalfF(), args.x + i));
    const VD scaled = hn::Mul(x, factor(i));
    const VD raised = hn::Add(hn::Min(AtLeast(scaled, lowest), levels), levels);
    const V64 bits = hn::Or(hn::PromoteTo(D64(), random), above_random);
    const VD fraction = hn::Sub(hn::BitCast(DD(), bits), offset);
    return Truncated(hn::Add(raised, fraction));
  };
  for (size_t i = 0; i < count; i += kLanes32) {
    const V32 random = LowBias32Lanes(hn::Iota(D32(), args.first + static_cast<uint32_t>(i)));
    const auto lower = codes(i, hn::LowerHalf(half, random));
    const auto upper = codes(i + kDoubles, hn::UpperHalf(half, random));
    const V32 both = hn::BitCast(D32(), TwoHalves(upper, lower));
    hn::StoreU(hn::Add(hn::LoadU(D32(), sums + i), both), D32(), sums + i);
  }
}

void AddCodes(const CodeArgs& args, uint32_t count, uint32_t* sums) {
  args.factor.index == nullptr ? AddCodesAs<false>(args, count, sums)
                               : AddCodesAs<true>(args, count, sums);
}

uint32_t AddFields(const uint16_t* fields, uint32_t count, uint32_t* sums) {
  const hn::Rebind<uint16_t, D32> d16;
  V32 largest = hn::Zero(D32());
  for (size_t i = 0; i < count; i += kLanes32) {
    const V32 field = hn::PromoteTo(D32(), hn::LoadU(d16, fields + i));
    largest = hn::Max(largest, field);
    hn::StoreU(hn::Add(hn::LoadU(D32(), sums + i), field), D32(), sums + i);
  }
  return hn::GetLane(hn::MaxOfLanes(D32(), largest));
}

void Narrow(const uint32_t* sums, uint32_t count, uint16_t* fields) {
  for (size_t i = 0; i < count; i += kFields) {
    const V16 lower = hn::BitCast(D16(), hn::LoadU(D32(), sums + i));
    const V16 upper = hn::BitCast(D16(), hn::LoadU(D32(), sums + i + kLanes32));
    hn::StoreU(hn::ConcatEven(D16(), upper, lower), D16(), fields + i);
  }
}

template <bool kSeveral>
HWY_INLINE void DecodeAs(const uint32_t* sums, uint32_t zero, const ScaleChoice& choice,
                         uint32_t count, float* y) {
  const Chosen<kSeveral> unit(choice);
  const auto zeros = hn::Set(DHalfU(), zero);
  const auto value = [&](size_t i) HWY_ATTR {
    const auto sum = hn::Sub(hn::LoadU(DHalfU(), sums + i), zeros);
    const VD exact = hn::PromoteTo(DD(), hn::BitCast(DHalfI(), sum));
    return hn::DemoteTo(DHalfF(), hn::Mul(unit(i), exact));
  };
  for (size_t i = 0; i < count; i += kLanes32) {
    hn::StoreU(hn::Combine(DF(), value(i + kDoubles), value(i)), DF(), y + i);
  }
}

void Decode(const uint32_t* sums, uint32_t zero, const ScaleChoice& unit, uint32_t count,
            float* y) {
  unit.index == nullptr ? DecodeAs<false>(sums, zero, unit, count, y)
                        : DecodeAs<true>(sums, zero, unit, count, y);
}

uint32_t Largest(const float* x, size_t count) {
  const V32 magnitude = hn::Set(D32(), 0x7FFFFFFFu);
  const auto bits = [&](size_t i) HWY_ATTR {
    return hn::And(hn::BitCast(D32(), hn::LoadU(DF(), x + i)), magnitude);
  };
  V32 a = hn::Zero(D32()), b = a, c = a, d = a;
  size_t i = 0;
  for (; count - i >= 4 * kLanes32; i += 4 * kLanes32) {
    a = hn::Max(a, bits(i));
    b = hn::Max(b, bits(i + kLanes32));
    c = hn::Max(c, bits(i + 2 * kLanes32));
    d = hn::Max(d, bits(i + 3 * kLanes32));
  }
  const V32 all = hn::Max(hn::Max(a, b), hn::Max(c, d));
  const uint32_t largest = hn::GetLane(hn::MaxOfLanes(D32(), all));
  const uint32_t rest = qsgd::ScalarKernels().largest(x + i, count - i);
  return largest < rest ? rest : largest;
}

void Finest(const float* x, const ScaleChoice& factor, uint32_t levels, uint32_t count,
            uint8_t* scales) {
  const hn::Rebind<uint8_t, D32> d8;
  const VD most = Double(levels), one = Double(1);
  const auto finest = [&](size_t i) HWY_ATTR {
    const VD magnitude = hn::Abs(hn::PromoteTo(DD(), hn::LoadU(DHalfF(), x + i)));
    VD scale = hn::Zero(DD());  // scales that fit come first
    for (size_t k = 1; k < factor.scales; ++k) {
      const auto fits = hn::Le(hn::Mul(magnitude, Double(factor.by_scale[k])), most);
      scale = hn::Add(scale, hn::IfThenElseZero(fits, one));
    }
    return Truncated(scale);
  };
  for (size_t i = 0; i < count; i += kLanes32) {
    const auto found = hn::DemoteTo(d8, TwoHalves(finest(i + kDoubles), finest(i)));
    hn::StoreU(hn::Min(hn::LoadU(d8, scales + i), found), d8, scales + i);
  }
}

void PackBytes(const uint8_t* fields, uint32_t width, std::byte* bytes) {
  const BytePacker packer(width);
  auto* out = reinterpret_cast<uint8_t*>(bytes);
  for (size_t i = 0; i < kSuperblock; i += kBytes, out += packer.stride()) {
    packer(hn::LoadU(D8(), fields + i), out);
  }
}

void UnpackBytes(const std::byte* bytes, uint32_t width, uint8_t* fields) {
  const ByteUnpacker unpacker(width);
  const auto* in = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < kSuperblock; i += kBytes, in += unpacker.stride()) {
    hn::StoreU(unpacker(in), D8(), fields + i);
  }
}

const qsgd::Kernels& KernelsOfTarget() {
  static constexpr qsgd::Kernels kKernels = {AddCodes, AddFields, Narrow,    Decode,
                                             Largest,  Finest,    PackBytes, UnpackBytes};
  return kKernels;
}

#else

const qsgd::Kernels& KernelsOfTarget() { return qsgd::ScalarKernels(); }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::qsgd {
namespace {
HWY_EXPORT(KernelsOfTarget);
}  // namespace
const Kernels& BestKernels() { return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(); }
}  // namespace inccl::qsgd
#endif  // HWY_ONCE
