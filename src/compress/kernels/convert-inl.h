// SPDX-License-Identifier: Apache-2.0
//
// Converts vectors of narrow floats to and from vectors of fp32, for the kernels of one instruction
// set. Included once per target by foreach_target.h.
#include <cstddef>
#include <cstdint>

#include "compress/float_types.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_CONVERT_INL_H_
#undef INCCL_COMPRESS_KERNELS_CONVERT_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_CONVERT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Element types in memory (Code) and in registers (Lane). Round gives the value after a store and a
// load.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

// Emulated vectors use the scalar conversions lane by lane. Bit manipulation of emulated vectors is
// slower, and its inlined code takes minutes to compile with sanitizers.
template <class Small>
struct NarrowElement {
  using Code = typename Small::Code;
  using Lane = float;
  static constexpr bool kNarrow = true;
  template <class DF>
  static HWY_NOINLINE hn::VFromD<DF> Load(DF df, const Code* in) {
    float lanes[hn::MaxLanes(DF())];
    for (size_t i = 0; i < hn::Lanes(df); ++i) lanes[i] = Small::Decode(in[i]);
    return hn::LoadU(df, lanes);
  }
  template <class DF>
  static HWY_NOINLINE void Store(hn::VFromD<DF> value, DF df, Code* out) {
    float lanes[hn::MaxLanes(DF())];
    hn::StoreU(value, df, lanes);
    for (size_t i = 0; i < hn::Lanes(df); ++i) out[i] = Small::Encode(lanes[i]);
  }
  template <class DF>
  static HWY_NOINLINE hn::VFromD<DF> Round(DF df, hn::VFromD<DF> value) {
    Code codes[hn::MaxLanes(DF())];
    Store(value, df, codes);
    return Load(df, codes);
  }
};

#else

// Convert codes of Small in 32-bit lanes to fp32 lanes, and back. The arithmetic is that of
// float_types.h with selections instead of branches.
template <class Small, class DF>
HWY_INLINE hn::VFromD<DF> DecodeLanes(DF df, hn::VFromD<hn::RebindToUnsigned<DF> > codes) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto magnitude = hn::And(codes, hn::Set(du, Small::kMagnitude));
  const auto sign = hn::ShiftLeft<Small::kSignShift>(hn::Xor(codes, magnitude));
  const auto bits = hn::ShiftLeft<Small::kShift>(magnitude);
  const auto normal = hn::Add(bits, hn::Set(du, Small::kRebias));
  const auto denormal = hn::Sub(hn::BitCast(df, hn::Add(bits, hn::Set(du, Small::kMinNormal))),
                                hn::BitCast(df, hn::Set(du, Small::kMinNormal)));
  const auto is_denormal = hn::Lt(hn::BitCast(di, bits), hn::Set(di, 1 << 23));
  auto value = hn::IfThenElse(hn::RebindMask(du, is_denormal), hn::BitCast(du, denormal), normal);
  const auto top = hn::Set(di, static_cast<int32_t>(Small::kTop));
  const auto is_top = hn::RebindMask(du, hn::Eq(hn::BitCast(di, magnitude), top));
  if constexpr (Small::kHasInfinity) {
    const auto is_nan = hn::RebindMask(du, hn::Gt(hn::BitCast(di, magnitude), top));
    value = hn::IfThenElse(is_top, hn::Set(du, 0x7F800000u), value);
    value = hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(du, 0x7FC00000u)), value);
  } else {
    value = hn::IfThenElse(is_top, hn::Or(bits, hn::Set(du, 0x7FC00000u)), value);
  }
  return hn::BitCast(df, hn::Or(value, sign));
}

template <class Small, class DF>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF> > EncodeLanes(DF df, hn::VFromD<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto sign = hn::And(hn::BitCast(du, value), hn::Set(du, 0x80000000u));
  const auto bits = hn::Xor(hn::BitCast(du, value), sign);
  const auto compared = hn::BitCast(di, bits);
  const auto odd = hn::And(hn::ShiftRight<Small::kShift>(bits), hn::Set(du, 1u));
  const auto half = hn::Set(du, (1u << (Small::kShift - 1)) - 1 - Small::kRebias);
  const auto normal = hn::ShiftRight<Small::kShift>(hn::Add(hn::Add(bits, half), odd));
  const auto magic = hn::Set(du, Small::kDenormal);
  const auto denormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, bits), hn::BitCast(df, magic))), magic);
  const auto is_denormal = hn::Lt(compared, hn::Set(di, static_cast<int32_t>(Small::kMinNormal)));
  const auto overflows = hn::Gt(compared, hn::Set(di, static_cast<int32_t>(Small::kOverflow) - 1));
  const auto is_nan = hn::Gt(compared, hn::Set(di, 0x7F800000));
  auto nan = hn::Set(du, Small::kNan);
  if constexpr (Small::kKeepsPayload) {
    nan = hn::Or(nan, hn::ShiftRight<Small::kShift>(hn::And(bits, hn::Set(du, 0x7FFFFFu))));
  }
  auto code = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
  code = hn::IfThenElse(hn::RebindMask(du, overflows), hn::Set(du, Small::kTop), code);
  code = hn::IfThenElse(hn::RebindMask(du, is_nan), nan, code);
  return hn::Or(code, hn::ShiftRight<Small::kSignShift>(sign));
}

// Load and store the codes of a narrow type.
template <class Code, class DF>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF> > LoadCodes(DF, const Code* in) {
  const hn::Rebind<Code, DF> dc;
  return hn::PromoteTo(hn::RebindToUnsigned<DF>(), hn::LoadU(dc, in));
}
template <class Code, class DF>
HWY_INLINE void StoreCodes(hn::VFromD<hn::RebindToUnsigned<DF> > codes, DF, Code* out) {
  const hn::Rebind<Code, DF> dc;
  hn::StoreU(hn::DemoteTo(dc, hn::BitCast(hn::RebindToSigned<DF>(), codes)), dc, out);
}

template <class Small>
struct NarrowElement {
  using Code = typename Small::Code;
  using Lane = float;
  static constexpr bool kNarrow = true;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const Code* in) {
    return DecodeLanes<Small>(df, LoadCodes(df, in));
  }
  template <class DF>
  static HWY_INLINE void Store(hn::VFromD<DF> value, DF df, Code* out) {
    StoreCodes(EncodeLanes<Small>(df, value), df, out);
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Round(DF df, hn::VFromD<DF> value) {
    return DecodeLanes<Small>(df, EncodeLanes<Small>(df, value));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
// VCVTPH2PS and VCVTPS2PH do what Fp16 does.
template <>
struct NarrowElement<Fp16> {
  using Code = uint16_t;
  using Lane = float;
  static constexpr bool kNarrow = true;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const Code* in) {
    const hn::Rebind<uint16_t, DF> dc;
    return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), hn::LoadU(dc, in)));
  }
  template <class DF>
  static HWY_INLINE void Store(hn::VFromD<DF> value, DF, Code* out) {
    const hn::Rebind<uint16_t, DF> dc;
    const hn::Rebind<hwy::float16_t, DF> dh;
    hn::StoreU(hn::BitCast(dc, hn::DemoteTo(dh, value)), dc, out);
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Round(DF df, hn::VFromD<DF> value) {
    return hn::PromoteTo(df, hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), value));
  }
};
#endif

template <>
struct NarrowElement<Bf16> {
  using Code = uint16_t;
  using Lane = float;
  static constexpr bool kNarrow = true;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const Code* in) {
    return hn::BitCast(df, hn::ShiftLeft<16>(LoadCodes(df, in)));
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF> > Encode(DF, hn::VFromD<DF> value) {
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const auto bits = hn::BitCast(du, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFFu)));
    const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7F800000)));
    return hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(du, 0x40u)), rounded);
  }
  template <class DF>
  static HWY_INLINE void Store(hn::VFromD<DF> value, DF df, Code* out) {
    StoreCodes(Encode(df, value), df, out);
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Round(DF df, hn::VFromD<DF> value) {
    return hn::BitCast(df, hn::ShiftLeft<16>(Encode(df, value)));
  }
};

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
