// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include "compress/kernels/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/reduce_wide.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/reduce-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

// Products of integers, which vectors lack: plain loops over a tile, which the compiler vectorizes
// if it can. U is the unsigned type; Wide is a type that does not promote to int.
template <typename U>
void ProdLoop(const ReduceArgs& args) {
  using Wide = std::conditional_t<sizeof(U) < 4, uint32_t, U>;
  constexpr size_t kTile = 512;
  Wide products[kTile];
  for (size_t begin = 0; begin < args.count; begin += kTile) {
    const size_t n = HWY_MIN(kTile, args.count - begin);
    const U* first = static_cast<const U*>(args.in[0]) + begin;
    for (size_t i = 0; i < n; ++i) products[i] = first[i];
    for (int k = 1; k < args.inputs; ++k) {
      const U* in = static_cast<const U*>(args.in[k]) + begin;
      for (size_t i = 0; i < n; ++i) products[i] *= in[i];
    }
    for (int k = 0; k < args.outputs; ++k) {
      U* out = static_cast<U*>(args.out[k]) + begin;
      for (size_t i = 0; i < n; ++i) out[i] = static_cast<U>(products[i]);
    }
  }
}

// Sums with factors are rare and need products, which vectors lack: plain loops as well.
template <typename U>
void PreMulSumLoop(const ReduceArgs& args) {
  using Wide = std::conditional_t<sizeof(U) < 4, uint32_t, U>;
  constexpr size_t kTile = 2048 / sizeof(U);
  const auto factor = static_cast<U>(args.factor);
  U sums[kTile];
  for (size_t begin = 0; begin < args.count; begin += kTile) {
    const size_t n = HWY_MIN(kTile, args.count - begin);
    std::memset(sums, 0, n * sizeof(U));
    for (int k = 0; k < args.inputs; ++k) {
      const U* in = static_cast<const U*>(args.in[k]) + begin;
      if (((args.scaled >> k) & 1) != 0) {
        for (size_t i = 0; i < n; ++i) sums[i] = static_cast<U>(sums[i] + Wide{in[i]} * factor);
      } else {
        for (size_t i = 0; i < n; ++i) sums[i] = static_cast<U>(sums[i] + in[i]);
      }
    }
    for (int k = 0; k < args.outputs; ++k) {
      std::memcpy(static_cast<U*>(args.out[k]) + begin, sums, n * sizeof(U));
    }
  }
}

// Sums and products have the same bits for signed and unsigned types; unsigned overflow is defined.
template <typename T>
ReduceFn FindInteger(ReduceOp op) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return Reduce<WideElement<U>, SumOp, false>;
    case ReduceOp::kMax: return Reduce<WideElement<T>, MaxOp, false>;
    case ReduceOp::kMin: return Reduce<WideElement<T>, MinOp, false>;
    case ReduceOp::kPreMulSum: return PreMulSumLoop<U>;
    case ReduceOp::kProd: break;
  }
  if constexpr (sizeof(T) == 4) {
    return Reduce<WideElement<U>, ProdOp, false>;
  } else {
    return ProdLoop<U>;
  }
}

ReduceFn FindWide(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt8: return FindInteger<int8_t>(op);
    case DataType::kUint8: return FindInteger<uint8_t>(op);
    case DataType::kInt32: return FindInteger<int32_t>(op);
    case DataType::kUint32: return FindInteger<uint32_t>(op);
    case DataType::kInt64: return FindInteger<int64_t>(op);
    case DataType::kUint64: return FindInteger<uint64_t>(op);
    case DataType::kFloat64: return FindFloat<WideElement<double>>(op);
    default: return FindFloat<WideElement<float>>(op);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(FindWide);

ReduceFn FindWideReduce(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindWide)(type, op);
}

}  // namespace inccl
#endif  // HWY_ONCE
