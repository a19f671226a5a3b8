// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/select_kernels.h"

#include <bit>
#include <cmath>

#include "compress/kernels/pack_tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/select_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_pack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

using select::Collected;
using select::Moments;
constexpr size_t kLanes = HWY_LANES(float);

// Moves the elements in the mask of two vectors to the front and stores them; returns their number.
HWY_INLINE size_t StoreTaken(hn::Vec<DI32> index, hn::Vec<DI32> bits, hn::Mask<DI32> taken,
                             uint32_t* indices, float* values) {
  const DI32 d;
#if HWY_MAX_BYTES >= 64
  index = hn::Compress(index, taken);
  bits = hn::Compress(bits, taken);
  const size_t n = hn::CountTrue(d, taken);
#else
  // GCC copies the tables of Highway's Compress to the stack whenever it looks something up.
  uint8_t mask[8];
  hn::StoreMaskBits(d, taken, mask);
  const select::TakenLanes& lanes = select::kTakenLanes[mask[0]];
  const auto places =
      hn::IndicesFromVec(d, hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, DI32>(), lanes.places)));
  index = hn::TableLookupLanes(index, places);
  bits = hn::TableLookupLanes(bits, places);
  const size_t n = lanes.count;
#endif
  hn::StoreU(hn::BitCast(D32(), index), D32(), indices);
  hn::StoreU(hn::BitCast(DF(), bits), DF(), values);
  return n;
}

size_t Collect(const float* x, size_t count, int32_t above, uint32_t first, const Collected& to) {
  const DI32 d;
  const hn::Vec<DI32> magnitude = hn::Set(d, 0x7FFFFFFF), limit = hn::Set(d, above);
  const hn::Vec<DI32> step = hn::Set(d, static_cast<int32_t>(kLanes));
  hn::Vec<DI32> index = hn::Iota(d, static_cast<int32_t>(first));
  uint32_t* const indices = to.indices;
  float* const values = to.values;
  size_t n = 0, i = 0;
  for (; count - i >= kLanes; i += kLanes) {
    const hn::Vec<DI32> bits = hn::BitCast(d, hn::LoadU(DF(), x + i));
    const auto taken = hn::Gt(hn::And(bits, magnitude), limit);
    n += StoreTaken(index, bits, taken, indices + n, values + n);
    index = hn::Add(index, step);
  }
  return n + select::ScalarKernels().collect(x + i, count - i, above,
                                             first + static_cast<uint32_t>(i),
                                             {indices + n, values + n});
}

using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
constexpr size_t kDoubles = kLanes / 2;
constexpr size_t kSums = select::kPartials / kDoubles;  // vectors of partial sums

double SumOf(double* sums) {
  for (size_t n = select::kPartials / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

Moments MomentsAbove(const float* x, size_t count, double from) {
  const DD d;
  const VD least = hn::Set(d, from);
  VD sum[kSums], square[kSums];
  for (size_t j = 0; j < kSums; ++j) sum[j] = square[j] = hn::Zero(d);
  size_t i = 0;
  for (; count - i >= select::kPartials; i += select::kPartials) {
    for (size_t j = 0; j < kSums; ++j) {
      const auto value = hn::LoadU(hn::Rebind<float, DD>(), x + i + j * kDoubles);
      const VD excess = hn::Sub(hn::PromoteTo(d, hn::Abs(value)), least);
      sum[j] = hn::Add(sum[j], excess);
      square[j] = hn::Add(square[j], hn::Mul(excess, excess));
    }
  }
  HWY_ALIGN double sums[select::kPartials], squares[select::kPartials];
  for (size_t j = 0; j < kSums; ++j) {
    hn::Store(sum[j], d, sums + j * kDoubles);
    hn::Store(square[j], d, squares + j * kDoubles);
  }
  for (size_t j = 0; i < count; ++i, ++j) {
    const double excess = std::fabs(static_cast<double>(x[i])) - from;
    sums[j] += excess;
    squares[j] += excess * excess;
  }
  return {SumOf(sums), SumOf(squares)};
}

const select::Kernels& KernelsOfTarget() {
  static constexpr select::Kernels kKernels = {Collect, MomentsAbove};
  return kKernels;
}

#else

const select::Kernels& KernelsOfTarget() { return select::ScalarKernels(); }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::select {
namespace {

size_t CollectPlain(const float* x, size_t count, int32_t above, uint32_t first,
                    const Collected& to) {
  size_t n = 0;
  for (size_t i = 0; i < count; ++i) {
    if ((std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF) <= above) continue;
    to.indices[n] = first + static_cast<uint32_t>(i);
    to.values[n] = x[i];
    ++n;
  }
  return n;
}

double SumOf(double* sums) {
  for (size_t n = kPartials / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

Moments MomentsPlain(const float* x, size_t count, double from) {
  double sums[kPartials] = {}, squares[kPartials] = {};
  for (size_t i = 0; i < count; ++i) {
    const double excess = std::fabs(static_cast<double>(x[i])) - from;
    sums[i % kPartials] += excess;
    squares[i % kPartials] += excess * excess;
  }
  return {SumOf(sums), SumOf(squares)};
}

HWY_EXPORT(KernelsOfTarget);

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {CollectPlain, MomentsPlain};
  return kKernels;
}

const Kernels& BestKernels() { return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(); }

}  // namespace inccl::select
#endif  // HWY_ONCE
