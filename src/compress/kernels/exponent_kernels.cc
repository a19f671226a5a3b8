// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/exponent_kernels.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/exponent_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/byte_pack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using lossless::Exponents;
using lossless::Extent;
using lossless::FieldCoding;

constexpr size_t kCount = 256;

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

HWY_INLINE uint32_t LargestByte(V8 v) {
  const V16 pairs = hn::BitCast(D16(), v);
  const V16 both =
      hn::Max(hn::And(pairs, hn::Set(D16(), uint16_t{0xFF})), hn::ShiftRight<8>(pairs));
  return hn::GetLane(hn::MaxOfLanes(D16(), both));
}

// Separates vectors of 16-bit elements into their lower and upper bytes.
HWY_INLINE void Unzip(V8 first, V8 second, V8* lower, V8* upper) {
  *lower = hn::ConcatEven(D8(), second, first);
  *upper = hn::ConcatOdd(D8(), second, first);
}

// ---------------------------------------------------------------- element types

struct Bf16Bytes {
  static constexpr size_t kPlanes = 1;
  static constexpr bool kHasRest = false;
  // Splits elements into exponents and planes; returns the OR of all their bits.
  static HWY_INLINE V8 Split(const uint8_t* in, V8* exponents, V8* /*rest*/, V8* planes) {
    V8 lower, upper;
    Unzip(LoadBytes(in), LoadBytes(in + kBytes), &lower, &upper);
    SplitHalf(lower, upper, exponents, planes);
    return hn::Or(lower, upper);
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
  static constexpr size_t kPlanes = 3;
  static constexpr bool kHasRest = false;
  static HWY_INLINE V8 Split(const uint8_t* in, V8* exponents, V8* /*rest*/, V8* planes) {
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
    return hn::Or(hn::Or(planes[0], planes[1]), hn::Or(lower, upper));
  }
  static HWY_INLINE void Join(V8 exponents, V8 /*rest*/, const V8* planes, uint8_t* out) {
    V8 lower, upper;
    Bf16Bytes::JoinHalf(exponents, planes[2], &lower, &upper);
    hn::StoreInterleaved4(planes[0], planes[1], lower, upper, D8(), out);
  }
};

struct Fp16Bytes {
  static constexpr size_t kPlanes = 1;
  static constexpr bool kHasRest = true;
  static HWY_INLINE V8 Split(const uint8_t* in, V8* exponents, V8* rest, V8* planes) {
    V8 upper;
    Unzip(LoadBytes(in), LoadBytes(in + kBytes), &planes[0], &upper);
    *exponents = Right<2>(upper, 0x1F);
    *rest = hn::Or(hn::And(upper, Byte(3)), Right<5>(upper, 4));
    return hn::Or(planes[0], upper);
  }
  static HWY_INLINE void Join(V8 exponents, V8 rest, const V8* planes, uint8_t* out) {
    const V8 mantissa_and_sign = hn::Or(hn::And(rest, Byte(3)), Left<5>(rest, 0x80));
    const V8 upper = hn::Or(mantissa_and_sign, Left<2>(exponents, 0x7C));
    hn::StoreInterleaved2(planes[0], upper, D8(), out);
  }
};

template <class Type>
Extent Split(const std::byte* elements, Exponents* out, std::byte* planes) {
  const auto* in = reinterpret_cast<const uint8_t*>(elements);
  constexpr size_t kSize = kBytes * (Type::kPlanes + 1);  // bytes of a vector's elements
  V8 most = hn::Zero(D8()), least = Byte(0xFF), any = hn::Zero(D8());
  for (size_t i = 0; i < kCount; i += kBytes, in += kSize) {
    V8 exponents, rest, plane[3];
    any = hn::Or(any, Type::Split(in, &exponents, &rest, plane));
    most = hn::Max(most, exponents);
    least = hn::Min(least, hn::Sub(exponents, Byte(1)));  // 0 wraps to the largest
    StoreBytes(exponents, out->exponents + i);
    if constexpr (Type::kHasRest) StoreBytes(rest, out->rest + i);
    for (size_t p = 0; p < Type::kPlanes; ++p) StoreBytes(plane[p], planes + p * kCount + i);
  }
  return {.least = 256 - LargestByte(hn::Not(least)),
          .most = LargestByte(most),
          .any = !hn::AllTrue(D8(), hn::Eq(any, hn::Zero(D8())))};
}

template <class Type>
void Join(const Exponents& in, const std::byte* planes, std::byte* elements) {
  auto* out = reinterpret_cast<uint8_t*>(elements);
  constexpr size_t kSize = kBytes * (Type::kPlanes + 1);
  for (size_t i = 0; i < kCount; i += kBytes, out += kSize) {
    V8 plane[3], rest = hn::Zero(D8());
    for (size_t p = 0; p < Type::kPlanes; ++p) plane[p] = LoadBytes(planes + p * kCount + i);
    if constexpr (Type::kHasRest) rest = LoadBytes(in.rest + i);
    Type::Join(LoadBytes(in.exponents + i), rest, plane, out);
  }
}

// ---------------------------------------------------------------- fields

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

void CountExponents(const Exponents& in, uint32_t lo, uint32_t hi, uint16_t* counts) {
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

// The positions at which a vector has a value, as bits.
HWY_INLINE uint64_t Places(V8 v, V8 value) {
  uint8_t bits[8] = {};
  hn::StoreMaskBits(D8(), hn::Eq(v, value), bits);
  uint64_t places;
  std::memcpy(&places, bits, sizeof places);
  return places;
}

uint32_t Encode(const Exponents& in, const FieldCoding& coding, std::byte* fields) {
  const uint32_t width = coding.width + coding.rest;
  auto* out = reinterpret_cast<uint8_t*>(fields);
  uint8_t* escapes = out + kCount / 8 * width;
  if (width == 0) return 0;
  const BytePacker packer(width);
  const V8 base = Byte(coding.base), zero = Byte(coding.zero), escape = Byte(coding.escape());
  const V8 direct = hn::Sub(escape, zero);
  uint64_t places[kCount / kBytes];
  for (size_t i = 0; i < kCount; i += kBytes) {
    const V8 exponents = LoadBytes(in.exponents + i);
    const auto above = hn::Eq(hn::Max(exponents, base), exponents);
    V8 code = hn::IfThenElse(above, hn::Min(hn::Sub(exponents, base), direct), direct);
    code = hn::Add(code, zero);
    if (coding.zero != 0) code = hn::IfThenZeroElse(hn::Eq(exponents, hn::Zero(D8())), code);
    places[i / kBytes] = coding.width == 0 ? 0 : Places(code, escape);
    if (coding.rest != 0) {
      const V16 rest = hn::BitCast(D16(), LoadBytes(in.rest + i));
      const V16 raised = hn::ShiftLeftSame(rest, static_cast<int>(coding.width));
      code = hn::Or(code, hn::BitCast(D8(), raised));
    }
    packer(code, out);
    out += packer.stride();
  }
  uint32_t used = 0;
  for (size_t v = 0; v < kCount / kBytes; ++v) {
    for (uint64_t left = places[v]; left != 0; left &= left - 1) {
      escapes[used++] = in.exponents[v * kBytes + static_cast<size_t>(std::countr_zero(left))];
    }
  }
  return used;
}

uint32_t Decode(const std::byte* fields, const FieldCoding& coding, Exponents* out,
                uint64_t escapes[4]) {
  const uint32_t width = coding.width + coding.rest;
  const V8 escape = Byte(coding.escape()), first = Byte(coding.base - coding.zero);
  for (size_t i = 0; i < 4; ++i) escapes[i] = 0;
  if (width == 0) {
    for (size_t i = 0; i < kCount; i += kBytes) StoreBytes(first, out->exponents + i);
    return coding.base;
  }
  const ByteUnpacker unpacker(width);
  const auto* in = reinterpret_cast<const uint8_t*>(fields);
  V8 most = hn::Zero(D8());
  for (size_t i = 0; i < kCount; i += kBytes, in += unpacker.stride()) {
    const V8 field = unpacker(in);
    const V8 code = hn::And(field, escape);
    V8 exponents = hn::Add(code, first);
    if (coding.zero != 0) exponents = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(D8())), exponents);
    if (coding.width != 0) {
      escapes[i / 64] |= Places(code, escape) << i % 64;
      most = hn::Max(most, hn::IfThenZeroElse(hn::Eq(code, escape), exponents));
    } else {
      most = exponents;
    }
    StoreBytes(exponents, out->exponents + i);
    if (coding.rest != 0) {
      const V16 lowered =
          hn::ShiftRightSame(hn::BitCast(D16(), field), static_cast<int>(coding.width));
      StoreBytes(hn::And(hn::BitCast(D8(), lowered), Byte((1u << coding.rest) - 1)), out->rest + i);
    }
  }
  return LargestByte(most);
}

template <class Type>
const lossless::ExponentKernels* KernelsOfType() {
  static constexpr lossless::ExponentKernels kKernels = {Split<Type>, Join<Type>, CountExponents,
                                                         Encode, Decode};
  return &kKernels;
}

const lossless::ExponentKernels* KernelsOfTarget(DataType type) {
  switch (type) {
    case DataType::kFloat32: return KernelsOfType<Fp32Bytes>();
    case DataType::kBfloat16: return KernelsOfType<Bf16Bytes>();
    case DataType::kFloat16: return KernelsOfType<Fp16Bytes>();
    default: return nullptr;
  }
}

#else

const lossless::ExponentKernels* KernelsOfTarget(DataType /*type*/) { return nullptr; }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::lossless {
namespace {
HWY_EXPORT(KernelsOfTarget);
}  // namespace
const ExponentKernels* BestExponentKernels(DataType type) {
  return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(type);
}
}  // namespace inccl::lossless
#endif  // HWY_ONCE
