// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/exponent_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compress/lossless/exponent_pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/exponent_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/exponent_kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using lossless::Coding;
using lossless::kHeader;

#if !(HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)
// Calls function(index) for each element of `places`, in order.
template <typename Function>
HWY_INLINE void ForEach(const uint64_t places[4], const Function& function) {
  for (uint32_t part = 0; part < 4; ++part) {
    for (uint64_t left = places[part]; left != 0; left &= left - 1) {
      function(64 * part + static_cast<uint32_t>(std::countr_zero(left)));
    }
  }
}
#endif

// Writes the exponents at `places`.
HWY_INLINE void PutEscapes(const Exponents& in, const uint64_t places[4], std::byte* to) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  for (uint32_t part = 0; part < 4; ++part) {
    const __m512i all = _mm512_load_si512(in.exponents + 64 * part);
    const auto count = static_cast<uint32_t>(std::popcount(places[part]));
    const __mmask64 written = _bzhi_u64(~uint64_t{0}, count);
    _mm512_mask_storeu_epi8(to, written, _mm512_maskz_compress_epi8(places[part], all));
    to += count;
  }
#else
  ForEach(places, [&](uint32_t i) { *to++ = static_cast<std::byte>(in.exponents[i]); });
#endif
}

// Reads the exponents at `places`. Returns an upper bound of them all.
HWY_INLINE uint32_t TakeEscapes(const std::byte* from, const uint64_t places[4], Exponents* out) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  V8 all = hn::Zero(D8());
  for (uint32_t part = 0; part < 4; ++part) {
    const auto count = static_cast<uint32_t>(std::popcount(places[part]));
    const __mmask64 read = _bzhi_u64(~uint64_t{0}, count);
    const __m512i next = _mm512_maskz_loadu_epi8(read, from);
    uint8_t* const to = out->exponents + 64 * part;
    _mm512_store_si512(to, _mm512_mask_expand_epi8(_mm512_load_si512(to), places[part], next));
    all = hn::Or(all, V8{next});
    from += count;
  }
  return LargestByte(D8(), all);
#else
  uint32_t all = 0;  // the OR
  ForEach(places, [&](uint32_t i) {
    out->exponents[i] = std::to_integer<uint8_t>(*from++);
    all |= out->exponents[i];
  });
  return all;
#endif
}

// Writes the bit planes of the codes; EncodeCodes says the rest.
HWY_INLINE uint32_t Encode(const Exponents& in, const Coding& coding, uint8_t* to,
                           uint64_t places[4]) {
  if (coding.width > 0) {
    return kEncode[coding.width - 1][coding.zero](in.exponents, coding.base, to, places);
  }
  std::fill_n(places, 4, uint64_t{0});
  return 0;
}

// Reads the bit planes of the codes; DecodeCodes says the rest.
HWY_INLINE uint32_t Decode(const uint8_t* from, const Coding& coding, Exponents* out,
                           uint64_t places[4]) {
  if (coding.width > 0) {
    return kDecode[coding.width - 1][coding.zero](from, coding.base, out->exponents, places);
  }
  std::memset(out->exponents, static_cast<int>(coding.base), kCount);
  std::fill_n(places, 4, uint64_t{0});
  return 0;
}

template <class Type>
Coding ChooseExactly(const Exponents& parts) {
  const Extent extent = ExtentOf(parts);
  const uint32_t hi = extent.most, lo = std::min(extent.least, hi);
  uint16_t counts[256];
  CountExponents(parts, lo, hi, counts);
  return lossless::Choose(counts, lo, hi, kCount, 8, Type::kExponents);
}

template <class Type>
uint32_t Pack(const std::byte* elements, std::byte* out) {
  constexpr uint32_t kRaw = kCount * (Type::kBytePlanes + 1);
  Exponents parts;
  Split<Type>(elements, &parts, out + kHeader);
  std::byte* const bits = out + kHeader + Type::kBytePlanes * kCount;
  auto* to = reinterpret_cast<uint8_t*>(bits);
  uint64_t places[4];
  Coding coding;
  uint32_t escapes = kCount;
  if (lossless::ChooseFrom(SampleExponents(parts), &coding)) {
    escapes = Encode(parts, coding, to, places);
  }
  if (lossless::SampleMisled(coding, escapes)) {
    if (lossless::IsZero(elements, kRaw)) return lossless::PackZeros(out);
    coding = ChooseExactly<Type>(parts);
    escapes = Encode(parts, coding, to, places);
  }
  std::byte* const end = bits + (coding.width + Type::kRest) * kPlane;
  const auto length = static_cast<uint32_t>(end - out) + escapes;
  if (length >= 1 + kRaw) return lossless::PackRaw(elements, kRaw, out);
  WriteHeader(coding, out);
  if constexpr (Type::kRest > 0) {
    for (size_t i = 0; i < kCount; i += kBytes) {
      StorePlanes<Type::kRest>(LoadBytes(parts.rest + i), to + coding.width * kPlane + i / 8);
    }
  }
  if (escapes != 0) PutEscapes(parts, places, end);
  return length;
}

template <class Type>
uint32_t Unpack(const std::byte* in, uint64_t bytes, std::byte* elements) {
  constexpr uint32_t kAt = kHeader + Type::kBytePlanes * kCount;
  Coding coding;
  if (bytes < kAt || !ReadHeader(in, Type::kExponents, &coding)) return 0;
  const auto fixed = static_cast<uint32_t>(kAt + (coding.width + Type::kRest) * kPlane);
  if (bytes < fixed) return 0;
  const auto* from = reinterpret_cast<const uint8_t*>(in) + kAt;
  uint64_t places[4];
  Exponents parts;
  const uint32_t escapes = Decode(from, coding, &parts, places);
  if (bytes - fixed < escapes) return 0;
  if constexpr (Type::kRest > 0) {
    for (size_t i = 0; i < kCount; i += kBytes) {
      const V8 minus = LoadPlanesNegative<Type::kRest>(from + coding.width * kPlane + i / 8);
      StoreBytes(hn::Sub(hn::Zero(D8()), minus), parts.rest + i);
    }
  }
  if (escapes != 0 && TakeEscapes(in + fixed, places, &parts) >= Type::kExponents) return 0;
  Join<Type>(parts, in + kHeader, elements);
  return fixed + escapes;
}

template <class Type>
const lossless::ExponentKernels* KernelsOfType() {
  static constexpr lossless::ExponentKernels kKernels = {Pack<Type>, Unpack<Type>};
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
