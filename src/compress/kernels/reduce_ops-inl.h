// SPDX-License-Identifier: Apache-2.0
//
// The element types and operations of folds (reduce-inl.h) for one instruction set. Included once
// per target by foreach_target.h.
#include <limits>

#include "compress/kernels/convert-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_REDUCE_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_REDUCE_OPS_INL_H_
#undef INCCL_COMPRESS_KERNELS_REDUCE_OPS_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_REDUCE_OPS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

// Element types that are folded without conversion; the counterpart of NarrowElement.
template <typename T>
struct WideElement {
  using Code = T;
  using Lane = T;
  static constexpr bool kNarrow = false;
  template <class D>
  static HWY_INLINE hn::VFromD<D> Load(D d, const T* in) {
    return hn::LoadU(d, in);
  }
  template <class D>
  static HWY_INLINE void Store(hn::VFromD<D> value, D d, T* out) {
    hn::StoreU(value, d, out);
  }
  // A non-temporal store to an aligned address.
  template <class D>
  static HWY_INLINE void Stream(hn::VFromD<D> value, D d, T* out) {
    hn::Stream(value, d, out);
  }
};

struct SumOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

// The sum of an average. Apply gives the same while the sum is a number that the element type has.
struct AvgOp : SumOp {
  // What rounding takes beyond the largest number is that number.
  template <class D, class V>
  static HWY_INLINE V Bounded(D d, V a, V b) {
    const V top = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::max()), sum = hn::Add(a, b);
    const auto numbers = hn::And(hn::Le(hn::Abs(a), top), hn::Le(hn::Abs(b), top));
    return hn::IfThenElse(hn::And(numbers, hn::Gt(hn::Abs(sum), top)), hn::CopySign(top, sum), sum);
  }
};

struct ProdOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Mul(a, b);
  }
};

// A NaN in `a` stays; one in `b` does not compare as smaller and is taken. Equal zeros differ only
// in the sign, and the AND of both is +0 unless both are -0.
struct MaxOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V larger = hn::IfThenElse(hn::Gt(a, b), a, b);
      const V number = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
      return hn::IfThenElse(hn::Eq(a, a), number, a);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct MinOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V smaller = hn::IfThenElse(hn::Lt(a, b), a, b);
      const V number = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), smaller);
      return hn::IfThenElse(hn::Eq(a, a), number, a);
    } else {
      return hn::Min(a, b);
    }
  }
};

// Replaces all NaNs by one: a NaN's payload depends on the order of an instruction's operands,
// which the compiler chooses.
template <class D>
HWY_INLINE hn::VFromD<D> OneNan(D d, hn::VFromD<D> value) {
  using T = hn::TFromD<D>;
  if constexpr (hwy::IsFloat<T>()) {
    const auto nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
    return hn::IfThenElse(hn::Eq(value, value), value, nan);
  } else {
    return value;
  }
}

// The largest number of an element type.
template <class Element>
struct Largest {
  static constexpr typename Element::Lane kValue =
      std::numeric_limits<typename Element::Lane>::max();
};
template <class Small>
struct Largest<NarrowElement<Small>> {
  static constexpr float kValue = Small::Largest();
};
template <>
struct Largest<NarrowElement<Bf16>> {
  static constexpr float kValue = Bf16::Decode(0x7F7F);
};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
