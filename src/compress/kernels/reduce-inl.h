// SPDX-License-Identifier: Apache-2.0
//
// The fold of reduce.h for one element type, operation and instruction set. Included once per
// target by foreach_target.h.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "compress/kernels/convert-inl.h"
#include "compress/kernels/reduce.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_REDUCE_INL_H_
#undef INCCL_COMPRESS_KERNELS_REDUCE_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_REDUCE_INL_H_
#endif

// The element types and operations of folds (reduce-inl.h) for one instruction set. Included once
// per target by foreach_target.h.

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

// Loads and stores 2 * Lanes(d) consecutive elements in two vectors. A fold does not depend on the
// order of elements in lanes. OneNan has been applied to stored values.
template <class Element>
struct Pair {
  using Code = typename Element::Code;
  template <class D>
  static HWY_INLINE void Load(D d, const Code* in, hn::VFromD<D>* a, hn::VFromD<D>* b) {
    *a = Element::Load(d, in);
    *b = Element::Load(d, in + hn::Lanes(d));
  }
  template <class D>
  static HWY_INLINE void Store(hn::VFromD<D> a, hn::VFromD<D> b, D d, Code* out) {
    Element::Store(a, d, out);
    Element::Store(b, d, out + hn::Lanes(d));
  }
};

#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
// Puts even elements into one vector and odd ones into the other, so no data crosses lanes. (On a
// little-endian machine the even element is the lower half of 32 bits.)
template <>
struct Pair<NarrowElement<Bf16>> {
  template <class DF>
  static HWY_INLINE void Load(DF df, const uint16_t* in, hn::VFromD<DF>* a, hn::VFromD<DF>* b) {
    const hn::RebindToUnsigned<DF> du;
    const hn::Repartition<uint16_t, DF> d16;
    const auto both = hn::BitCast(du, hn::LoadU(d16, in));
    *a = hn::BitCast(df, hn::ShiftLeft<16>(both));
    *b = hn::BitCast(df, hn::And(both, hn::Set(du, 0xFFFF0000u)));
  }
  // The NaN of OneNan rounds to its upper half.
  template <class DF>
  static HWY_INLINE hn::VFromD<hn::RebindToUnsigned<DF>> Rounded(DF, hn::VFromD<DF> value) {
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
  }
  template <class DF>
  static HWY_INLINE void Store(hn::VFromD<DF> a, hn::VFromD<DF> b, DF df, uint16_t* out) {
    const hn::RebindToUnsigned<DF> du;
    const hn::Repartition<uint16_t, DF> d16;
    const auto even = hn::ShiftRight<16>(Rounded(df, a));
    const auto odd = hn::And(Rounded(df, b), hn::Set(du, 0xFFFF0000u));
    hn::StoreU(hn::BitCast(d16, hn::Or(even, odd)), d16, out);
  }
};
#endif  // HWY_TARGET

// One fold. It works in strips of four vectors that stay in registers. The slots of many inputs
// tend to lie a multiple of the page size apart, so their lines would compete for the same few sets
// of the L1 cache; therefore the fold adds kGroup inputs at a time over a tile.
template <class Element, class Op, bool kScaled>
class Fold {
 public:
  using Code = typename Element::Code;
  using Lane = typename Element::Lane;

  explicit Fold(const ReduceArgs& args)
      : args_(args), inputs_(args.inputs), outputs_(args.outputs), streamed_(Congruent(args)) {}

  HWY_INLINE void Run() const {
    hn::ScalableTag<Lane> d;  // not const: its type is deduced from values and pointers alike
    const hn::CappedTag<Lane, 4> few;
    const hn::CappedTag<Lane, 1> one;
    const size_t count = args_.count;
    size_t i = 0;
    if constexpr (kStrips) {
      for (const size_t end = BeforeAligned(d); i < end; ++i) OneVector(one, i);
      if (inputs_ > kGroup) {
        for (; count - i >= kTile; i += kTile) Tile(d, i);
      }
      for (; count - i >= Strip(d); i += Strip(d)) {
        Vectors<decltype(d)> v;
        LoadStrip(d, 0, i, &v);
        Add(d, 1, inputs_, i, &v);
        Finish(d, i, &v);
      }
    }
    for (; count - i >= hn::Lanes(d); i += hn::Lanes(d)) OneVector(d, i);
    for (; count - i >= hn::Lanes(few); i += hn::Lanes(few)) OneVector(few, i);
    for (; i < count; ++i) OneVector(one, i);
    if (streamed_ != 0) hwy::FlushStream();
  }

 private:
  // Emulated vectors are not held in registers.
  static constexpr bool kStrips = HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR;
  // Non-temporal stores only for elements that are stored without conversion.
  static constexpr bool kStreams = kStrips && !Element::kNarrow;
  static constexpr bool kAverages = std::is_same_v<Op, AvgOp>;
  static constexpr int kGroup = 8;
  static constexpr size_t kTile = 2048 / sizeof(Lane);  // a multiple of every Strip

  template <class D>
  struct Vectors {
    HWY_INLINE Vectors() {}  // gcc's implicit constructor would lack this instruction set
    hn::VFromD<D> a, b, c, e;
  };

  template <class D>
  static HWY_INLINE size_t Strip(D d) {
    return 4 * hn::Lanes(d);
  }

  const Code* In(int input, size_t i) const {
    return static_cast<const Code*>(args_.in[input]) + i;
  }
  // The outputs for non-temporal stores whose vectors are aligned whenever those of the first are.
  static uint64_t Congruent(const ReduceArgs& args) {
    if (!kStreams || args.streamed == 0) return 0;
    const auto beyond = [&](int k) { return reinterpret_cast<uintptr_t>(args.out[k]) % 64; };
    const int first = std::countr_zero(args.streamed);
    uint64_t congruent = 0;
    for (int k = first; k < args.outputs; ++k) {
      if ((args.streamed >> k & 1) != 0 && beyond(k) == beyond(first))
        congruent |= uint64_t{1} << k;
    }
    return congruent;
  }
  // Number of elements before the first strip, so that vectors of these outputs are aligned.
  template <class D>
  size_t BeforeAligned(D d) const {
    if (streamed_ == 0) return 0;
    const size_t vector = hn::Lanes(d) * sizeof(Code);
    const int first = std::countr_zero(streamed_);
    const size_t beyond = reinterpret_cast<uintptr_t>(args_.out[first]) % vector;
    return HWY_MIN(args_.count, beyond == 0 ? 0 : (vector - beyond) / sizeof(Code));
  }
  bool Scales(int input) const { return ((args_.scaled >> input) & 1) != 0; }

  template <class D>
  HWY_INLINE hn::VFromD<D> Scaled(D d, hn::VFromD<D> value) const {
    value = hn::Mul(value, hn::Set(d, static_cast<Lane>(args_.scale)));
    if constexpr (Element::kNarrow) value = Element::Round(d, value);
    return value;
  }

  template <class D>
  HWY_INLINE void LoadStrip(D d, int input, size_t i, Vectors<D>* v) const {
    const Code* in = In(input, i);
    Pair<Element>::Load(d, in, &v->a, &v->b);
    Pair<Element>::Load(d, in + 2 * hn::Lanes(d), &v->c, &v->e);
    if constexpr (kScaled) {
      if (Scales(input)) {
        v->a = Scaled(d, v->a);
        v->b = Scaled(d, v->b);
        v->c = Scaled(d, v->c);
        v->e = Scaled(d, v->e);
      }
    }
  }

  template <class D>
  HWY_INLINE void Add(D d, int first, int last, size_t i, Vectors<D>* v) const {
    for (int k = first; k < last; ++k) {
      Vectors<D> next;
      LoadStrip(d, k, i, &next);
      v->a = Op::Apply(d, v->a, next.a);
      v->b = Op::Apply(d, v->b, next.b);
      v->c = Op::Apply(d, v->c, next.c);
      v->e = Op::Apply(d, v->e, next.e);
    }
  }

  template <class D>
  HWY_INLINE void Finish(D d, size_t i, Vectors<D>* v) const {
    if constexpr (kAverages) {
      if (HWY_UNLIKELY(!InRange(d, *v))) {
        const size_t end = i + Strip(d);
        for (; i < end; i += hn::Lanes(d)) OneVector(d, i);
        return;
      }
    }
    v->a = OneNan(d, v->a);
    v->b = OneNan(d, v->b);
    v->c = OneNan(d, v->c);
    v->e = OneNan(d, v->e);
    for (int k = 0; k < outputs_; ++k) {
      Code* out = static_cast<Code*>(args_.out[k]) + i;
      if constexpr (kStreams) {
        if ((streamed_ >> k & 1) != 0) {
          const size_t n = hn::Lanes(d);
          Element::Stream(v->a, d, out);
          Element::Stream(v->b, d, out + n);
          Element::Stream(v->c, d, out + 2 * n);
          Element::Stream(v->e, d, out + 3 * n);
          continue;
        }
      }
      Pair<Element>::Store(v->a, v->b, d, out);
      Pair<Element>::Store(v->c, v->e, d, out + 2 * hn::Lanes(d));
    }
  }

  // Whether all are numbers that the element type has.
  template <class D>
  static HWY_INLINE bool InRange(D d, const Vectors<D>& v) {
    const auto top = hn::Set(d, Largest<Element>::kValue);
    const auto a = hn::Le(hn::Abs(v.a), top), b = hn::Le(hn::Abs(v.b), top);
    const auto c = hn::Le(hn::Abs(v.c), top), e = hn::Le(hn::Abs(v.e), top);
    return hn::AllTrue(d, hn::And(hn::And(a, b), hn::And(c, e)));
  }

  template <class D>
  HWY_INLINE void Tile(D d, size_t begin) const {
    HWY_ALIGN Lane sums[kTile];
    const size_t n = hn::Lanes(d);
    for (int first = 0; first < inputs_; first += kGroup) {
      const int last = HWY_MIN(first + kGroup, inputs_);
      for (size_t i = 0; i < kTile; i += Strip(d)) {
        Lane* sum = sums + i;
        Vectors<D> v;
        if (first == 0) {
          LoadStrip(d, 0, begin + i, &v);
        } else {
          v.a = hn::Load(d, sum);
          v.b = hn::Load(d, sum + n);
          v.c = hn::Load(d, sum + 2 * n);
          v.e = hn::Load(d, sum + 3 * n);
        }
        Add(d, HWY_MAX(first, 1), last, begin + i, &v);
        if (last == inputs_) {
          Finish(d, begin + i, &v);
        } else {
          hn::Store(v.a, d, sum);
          hn::Store(v.b, d, sum + n);
          hn::Store(v.c, d, sum + 2 * n);
          hn::Store(v.e, d, sum + 3 * n);
        }
      }
    }
  }

  template <class D>
  HWY_INLINE hn::VFromD<D> LoadOne(D d, int input, size_t i) const {
    const auto value = Element::Load(d, In(input, i));
    if constexpr (kScaled) {
      if (Scales(input)) return Scaled(d, value);
    }
    return value;
  }

  template <class D>
  HWY_INLINE void OneVector(D d, size_t i) const {
    auto value = LoadOne(d, 0, i);
    for (int k = 1; k < inputs_; ++k) {
      if constexpr (kAverages) {
        value = Op::Bounded(d, value, LoadOne(d, k, i));
      } else {
        value = Op::Apply(d, value, LoadOne(d, k, i));
      }
    }
    if constexpr (kAverages && Element::kNarrow) {
      const auto top = hn::Set(d, Largest<Element>::kValue), size = hn::Abs(value);
      const auto number = hn::Le(size, hn::Set(d, std::numeric_limits<float>::max()));
      const auto beyond = hn::And(hn::Gt(size, top), number);
      value = hn::IfThenElse(beyond, hn::CopySign(top, value), value);
    }
    value = OneNan(d, value);
    for (int k = 0; k < outputs_; ++k) {
      Element::Store(value, d, static_cast<Code*>(args_.out[k]) + i);
    }
  }

  const ReduceArgs& args_;
  const int inputs_, outputs_;
  const uint64_t streamed_;
};

template <class Element, class Op, bool kScaled>
void Reduce(const ReduceArgs& args) {
  Fold<Element, Op, kScaled>(args).Run();
}

template <class Element>
ReduceFn FindFloat(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return Reduce<Element, SumOp, false>;
    case ReduceOp::kAvg: return Reduce<Element, AvgOp, true>;
    case ReduceOp::kPreMulSum: return Reduce<Element, SumOp, true>;
    case ReduceOp::kMax: return Reduce<Element, MaxOp, false>;
    case ReduceOp::kMin: return Reduce<Element, MinOp, false>;
    case ReduceOp::kProd: break;
  }
  return Reduce<Element, ProdOp, false>;
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
