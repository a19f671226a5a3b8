// SPDX-License-Identifier: Apache-2.0
//
// Separates the elements of a superblock into exponents, and signs and mantissas, and joins them
// again, for one instruction set. Included once per target.
#include <cstddef>
#include <cstdint>

#include "compress/codec.h"
#include "compress/kernels/hbi_pack-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_EXPONENT_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_EXPONENT_SPLIT_INL_H_
#undef INCCL_COMPRESS_KERNELS_EXPONENT_SPLIT_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_EXPONENT_SPLIT_INL_H_
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

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_SPLIT_INL_H_
