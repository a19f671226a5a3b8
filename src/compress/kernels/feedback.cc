// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/feedback.h"

#include <cstdint>
#include <limits>

#include "compress/kernels/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/feedback.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/convert-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

struct Floats {
  using Code = float;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const Code* in) {
    return hn::LoadU(df, in);
  }
  template <class DF>
  static HWY_INLINE void Store(hn::VFromD<DF> value, DF df, Code* out) {
    hn::StoreU(value, df, out);
  }
};

// Calls body(tag, i) for the vectors of n elements, the last ones element by element.
template <class Body>
HWY_INLINE void ForVectors(size_t n, const Body& body) {
  const hn::ScalableTag<float> df;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; n - i >= hn::Lanes(df); i += hn::Lanes(df)) body(df, i);
  for (; i < n; ++i) body(one, i);
}

// The elements and residuals of `sums`, as vectors.
template <class Element, class Stored>
class Reader {
 public:
  explicit Reader(const Corrected& sums)
      : x_(static_cast<const typename Element::Code*>(sums.x)),
        residual_(static_cast<const typename Stored::Code*>(sums.residual)),
        scale_(sums.scale) {}

  template <class DF>
  HWY_INLINE hn::VFromD<DF> Residual(DF df, size_t i) const {
    return Stored::Load(df, residual_ + i);
  }
  template <class DF>
  HWY_INLINE hn::VFromD<DF> Sum(DF df, size_t i) const {
    return hn::Add(Element::Load(df, x_ + i), hn::Mul(Residual(df, i), hn::Set(df, scale_)));
  }

 private:
  const typename Element::Code* const x_;
  const typename Stored::Code* const residual_;
  const float scale_;
};

template <class Element, class Stored>
struct Add {
  static void Run(const Corrected& sums, void* out, size_t n) {
    const Reader<Element, Stored> reader(sums);
    auto* const codes = static_cast<typename Element::Code*>(out);
    ForVectors(
        n, [&](auto df, size_t i) HWY_ATTR { Element::Store(reader.Sum(df, i), df, codes + i); });
  }
};

template <class Element, class Stored>
struct Errors {
  static void Run(const Corrected& sums, const float* sent, float kept, float added, float top,
                  void* next, size_t n) {
    const Reader<Element, Stored> reader(sums);
    auto* const codes = static_cast<typename Stored::Code*>(next);
    constexpr float kLargest = std::numeric_limits<float>::max();
    ForVectors(n, [&](auto df, size_t i) HWY_ATTR {
      auto error = reader.Sum(df, i);
      if (sent != nullptr) error = hn::Sub(error, hn::LoadU(df, sent + i));
      error = hn::IfThenElseZero(hn::Le(hn::Abs(error), hn::Set(df, kLargest)), error);
      if (added != 1) {
        error = hn::Add(hn::Mul(hn::Set(df, kept), reader.Residual(df, i)),
                        hn::Mul(hn::Set(df, added), error));
      }
      Stored::Store(hn::Min(hn::Max(error, hn::Set(df, -top)), hn::Set(df, top)), df, codes + i);
    });
  }
};

// Operation<Element, Stored>::Run for the types of `sums`.
template <template <class, class> class Operation, class... Args>
void Dispatch(const Corrected& sums, Args... args) {
  const auto of = [&]<class Element>(Element /*type*/) {
    sums.storage == DataType::kFloat32
        ? Operation<Element, Floats>::Run(sums, args...)
        : Operation<Element, NarrowElement<Bf16>>::Run(sums, args...);
  };
  switch (sums.type) {
    case DataType::kFloat16: return of(NarrowElement<Fp16>());
    case DataType::kBfloat16: return of(NarrowElement<Bf16>());
    default: return of(Floats());
  }
}

void AddResidualTarget(const Corrected& sums, void* out, size_t n) { Dispatch<Add>(sums, out, n); }

void StoreErrorsTarget(const Corrected& sums, const float* sent, float kept, float added, float top,
                       void* next, size_t n) {
  Dispatch<Errors>(sums, sent, kept, added, top, next, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(AddResidualTarget);
HWY_EXPORT(StoreErrorsTarget);

void AddResidual(const Corrected& sums, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(AddResidualTarget)(sums, out, n);
}

void StoreErrors(const Corrected& sums, const float* sent, float kept, float added, void* next,
                 size_t n) {
  HWY_DYNAMIC_DISPATCH(StoreErrorsTarget)
  (sums, sent, kept, added, LargestOf(sums.storage), next, n);
}

}  // namespace inccl
#endif  // HWY_ONCE
