// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/reduce.h"

#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/reduce.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/convert-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

// Elements whose lanes are themselves; the counterpart of NarrowElement.
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
};

struct SumOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct ProdOp {
  template <class D, class V>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Mul(a, b);
  }
};

// A NaN in `a` stays, one in `b` is not below `a`'s number and is taken. Equal zeros differ at most
// in the sign, and `and` of both is +0 unless both are -0.
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

// The payload of a NaN depends on the order of an instruction's operands, which the compiler
// chooses; one NaN for all.
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

// One fold; kInputs and kOutputs are their numbers where known at compile time, else 0.
template <class Element, class Op, bool kScaled, int kInputs, int kOutputs>
class Fold {
 public:
  using Code = typename Element::Code;
  using Lane = typename Element::Lane;

  explicit Fold(const ReduceArgs& args)
      : args_(args),
        inputs_(kInputs != 0 ? kInputs : args.inputs),
        outputs_(kOutputs != 0 ? kOutputs : args.outputs) {}

  HWY_INLINE void Run() const {
    const hn::ScalableTag<Lane> d;
    const hn::CappedTag<Lane, 4> few;
    const hn::CappedTag<Lane, 1> one;
    const size_t count = args_.count;
    size_t i = 0;
    for (; count - i >= 4 * hn::Lanes(d); i += 4 * hn::Lanes(d)) FourVectors(d, i);
    for (; count - i >= hn::Lanes(d); i += hn::Lanes(d)) OneVector(d, i);
    for (; count - i >= hn::Lanes(few); i += hn::Lanes(few)) OneVector(few, i);
    for (; i < count; ++i) OneVector(one, i);
  }

 private:
  template <class D>
  HWY_INLINE hn::VFromD<D> Load(D d, int input, size_t i) const {
    auto value = Element::Load(d, static_cast<const Code*>(args_.in[input]) + i);
    if constexpr (kScaled) {
      if (((args_.scaled >> input) & 1) != 0) {
        value = hn::Mul(value, hn::Set(d, static_cast<Lane>(args_.scale)));
        if constexpr (Element::kNarrow) value = Element::Round(d, value);
      }
    }
    return value;
  }

  template <class D>
  HWY_INLINE void FourVectors(D d, size_t i) const {
    const size_t n = hn::Lanes(d);
    auto a = Load(d, 0, i);
    auto b = Load(d, 0, i + n);
    auto c = Load(d, 0, i + 2 * n);
    auto e = Load(d, 0, i + 3 * n);
    for (int k = 1; k < inputs_; ++k) {
      a = Op::Apply(d, a, Load(d, k, i));
      b = Op::Apply(d, b, Load(d, k, i + n));
      c = Op::Apply(d, c, Load(d, k, i + 2 * n));
      e = Op::Apply(d, e, Load(d, k, i + 3 * n));
    }
    a = OneNan(d, a);
    b = OneNan(d, b);
    c = OneNan(d, c);
    e = OneNan(d, e);
    for (int k = 0; k < outputs_; ++k) {
      Code* out = static_cast<Code*>(args_.out[k]) + i;
      Element::Store(a, d, out);
      Element::Store(b, d, out + n);
      Element::Store(c, d, out + 2 * n);
      Element::Store(e, d, out + 3 * n);
    }
  }

  template <class D>
  HWY_INLINE void OneVector(D d, size_t i) const {
    auto value = Load(d, 0, i);
    for (int k = 1; k < inputs_; ++k) value = Op::Apply(d, value, Load(d, k, i));
    value = OneNan(d, value);
    for (int k = 0; k < outputs_; ++k) {
      Element::Store(value, d, static_cast<Code*>(args_.out[k]) + i);
    }
  }

  const ReduceArgs& args_;
  const int inputs_, outputs_;
};

template <class Element, class Op, bool kScaled>
void Reduce(const ReduceArgs& args) {
  if (args.inputs == 2 && args.outputs == 1) return Fold<Element, Op, kScaled, 2, 1>(args).Run();
  if (args.inputs == 2 && args.outputs == 2) return Fold<Element, Op, kScaled, 2, 2>(args).Run();
  Fold<Element, Op, kScaled, 0, 0>(args).Run();
}

// Products of integers that vectors lack: a plain loop. U is the unsigned type; the arithmetic is
// in one that does not promote to int.
template <typename U>
void ProdLoop(const ReduceArgs& args) {
  using Wide = std::conditional_t<sizeof(U) < 4, uint32_t, U>;
  for (size_t i = 0; i < args.count; ++i) {
    Wide value = static_cast<const U*>(args.in[0])[i];
    for (int k = 1; k < args.inputs; ++k) value *= static_cast<const U*>(args.in[k])[i];
    for (int k = 0; k < args.outputs; ++k) static_cast<U*>(args.out[k])[i] = static_cast<U>(value);
  }
}

// Sums and products do not care for the sign: unsigned, whose overflow is defined.
template <typename T>
ReduceFn FindInteger(ReduceOp op) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return Reduce<WideElement<U>, SumOp, false>;
    case ReduceOp::kMax: return Reduce<WideElement<T>, MaxOp, false>;
    case ReduceOp::kMin: return Reduce<WideElement<T>, MinOp, false>;
    case ReduceOp::kProd: break;
  }
  if constexpr (sizeof(T) == 4) {
    return Reduce<WideElement<U>, ProdOp, false>;
  } else {
    return ProdLoop<U>;
  }
}

template <class Element>
ReduceFn FindFloat(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return Reduce<Element, SumOp, false>;
    case ReduceOp::kAvg: return Reduce<Element, SumOp, true>;
    case ReduceOp::kMax: return Reduce<Element, MaxOp, false>;
    case ReduceOp::kMin: return Reduce<Element, MinOp, false>;
    case ReduceOp::kProd: break;
  }
  return Reduce<Element, ProdOp, false>;
}

ReduceFn FindTarget(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt8: return FindInteger<int8_t>(op);
    case DataType::kUint8: return FindInteger<uint8_t>(op);
    case DataType::kInt32: return FindInteger<int32_t>(op);
    case DataType::kUint32: return FindInteger<uint32_t>(op);
    case DataType::kInt64: return FindInteger<int64_t>(op);
    case DataType::kUint64: return FindInteger<uint64_t>(op);
    case DataType::kFloat16: return FindFloat<NarrowElement<Fp16>>(op);
    case DataType::kFloat64: return FindFloat<WideElement<double>>(op);
    case DataType::kBfloat16: return FindFloat<NarrowElement<Bf16>>(op);
    case DataType::kFloat8E4M3: return FindFloat<NarrowElement<Fp8E4m3>>(op);
    case DataType::kFloat8E5M2: return FindFloat<NarrowElement<Fp8E5m2>>(op);
    case DataType::kFloat32: break;
  }
  return FindFloat<WideElement<float>>(op);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(FindTarget);

ReduceFn FindReduce(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindTarget)(type, op);
}

}  // namespace inccl
#endif  // HWY_ONCE
