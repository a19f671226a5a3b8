// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/convert.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/convert-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

template <class Element>
void DecodeArray(const void* in, float* out, size_t n) {
  const auto* codes = static_cast<const typename Element::Code*>(in);
  const hn::ScalableTag<float> df;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; n - i >= hn::Lanes(df); i += hn::Lanes(df)) {
    hn::StoreU(Element::Load(df, codes + i), df, out + i);
  }
  for (; i < n; ++i) hn::StoreU(Element::Load(one, codes + i), one, out + i);
}

template <class Element>
void EncodeArray(const float* in, void* out, size_t n) {
  auto* codes = static_cast<typename Element::Code*>(out);
  const hn::ScalableTag<float> df;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; n - i >= hn::Lanes(df); i += hn::Lanes(df)) {
    Element::Store(hn::LoadU(df, in + i), df, codes + i);
  }
  for (; i < n; ++i) Element::Store(hn::LoadU(one, in + i), one, codes + i);
}

template <class Element>
void RoundArray(float* x, size_t n) {
  const hn::ScalableTag<float> df;
  size_t i = 0;
  for (; n - i >= hn::Lanes(df); i += hn::Lanes(df)) {
    hn::StoreU(Element::Round(df, hn::LoadU(df, x + i)), df, x + i);
  }
  if (i == n) return;
  float rest[HWY_LANES(float)] = {};
  std::memcpy(rest, x + i, (n - i) * sizeof *x);
  RoundArray<Element>(rest, hn::Lanes(df));
  std::memcpy(x + i, rest, (n - i) * sizeof *x);
}

// Plain loops, which the compiler vectorizes: the language's conversion has the required rounding.
void DoubleToFloat(const void* in, float* out, size_t n) {
  const auto* doubles = static_cast<const double*>(in);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(doubles[i]);
}

void FloatToDouble(const float* in, void* out, size_t n) {
  auto* doubles = static_cast<double*>(out);
  for (size_t i = 0; i < n; ++i) doubles[i] = static_cast<double>(in[i]);
}

void ToFloatTarget(DataType type, const void* in, float* out, size_t n) {
  switch (type) {
    case DataType::kFloat16: return DecodeArray<NarrowElement<Fp16>>(in, out, n);
    case DataType::kBfloat16: return DecodeArray<NarrowElement<Bf16>>(in, out, n);
    case DataType::kFloat8E4M3: return DecodeArray<NarrowElement<Fp8E4m3>>(in, out, n);
    case DataType::kFloat8E5M2: return DecodeArray<NarrowElement<Fp8E5m2>>(in, out, n);
    case DataType::kFloat64: return DoubleToFloat(in, out, n);
    default: return;
  }
}

void FromFloatTarget(DataType type, const float* in, void* out, size_t n) {
  switch (type) {
    case DataType::kFloat16: return EncodeArray<NarrowElement<Fp16>>(in, out, n);
    case DataType::kBfloat16: return EncodeArray<NarrowElement<Bf16>>(in, out, n);
    case DataType::kFloat8E4M3: return EncodeArray<NarrowElement<Fp8E4m3>>(in, out, n);
    case DataType::kFloat8E5M2: return EncodeArray<NarrowElement<Fp8E5m2>>(in, out, n);
    case DataType::kFloat64: return FloatToDouble(in, out, n);
    default: return;
  }
}

// A plain loop, which the compiler vectorizes: in integers, whose order is that of magnitudes.
void SaturateTarget(float largest, float reach, float* x, size_t n) {
  const auto top = std::bit_cast<int32_t>(largest), end = std::bit_cast<int32_t>(reach);
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<int32_t>(x[i]);
    const int32_t magnitude = bits & 0x7FFFFFFF, saturated = top | (bits & ~0x7FFFFFFF);
    x[i] = std::bit_cast<float>(magnitude > top && magnitude <= end ? saturated : bits);
  }
}

void RoundToTarget(DataType type, float* x, size_t n) {
  type == DataType::kFloat16 ? RoundArray<NarrowElement<Fp16>>(x, n)
                             : RoundArray<NarrowElement<Bf16>>(x, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(ToFloatTarget);
HWY_EXPORT(FromFloatTarget);
HWY_EXPORT(RoundToTarget);
HWY_EXPORT(SaturateTarget);

void ToFloat(DataType type, const void* in, float* out, size_t n) {
  if (n == 0) return;
  if (type != DataType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(ToFloatTarget)(type, in, out, n);
  } else if (in != out) {
    std::memcpy(out, in, n * sizeof(float));
  }
}

void FromFloat(DataType type, const float* in, void* out, size_t n) {
  if (n == 0) return;
  if (type != DataType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(FromFloatTarget)(type, in, out, n);
  } else if (in != out) {
    std::memcpy(out, in, n * sizeof(float));
  }
}

void RoundTo(DataType type, float* x, size_t n) { HWY_DYNAMIC_DISPATCH(RoundToTarget)(type, x, n); }

float LargestOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return Fp16::Largest();
    case DataType::kBfloat16: return Bf16::Decode(0x7F7F);
    case DataType::kFloat8E4M3: return Fp8E4m3::Largest();
    case DataType::kFloat8E5M2: return Fp8E5m2::Largest();
    default: return std::numeric_limits<float>::max();
  }
}

void SaturateTo(float largest, float reach, float* x, size_t n) {
  if (reach > largest) HWY_DYNAMIC_DISPATCH(SaturateTarget)(largest, reach, x, n);
}

}  // namespace inccl
#endif  // HWY_ONCE
