// SPDX-License-Identifier: Apache-2.0
//
// Rotates a superblock in vectors, for one instruction set: random signs and the Walsh-Hadamard
// transform. Each element results from the same additions in the same order as in the reference.
// Included once per target, after hbi_quantize-inl.h.
#include <cstddef>
#include <cstdint>

#include "compress/kernels/hbi_quantize-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_ROTATE_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_ROTATE_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_ROTATE_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using VF = hn::Vec<DF>;

// Exchanges lanes i and i ^ kStride.
template <size_t kStride>
HWY_INLINE VF Exchanged(VF v) {
  if constexpr (kStride == 1) {
    return hn::Reverse2(DF(), v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (2 * kStride == kLanes32) {
    return hn::ConcatLowerUpper(DF(), v, v);
  } else {
    return hn::SwapAdjacentBlocks(v);
  }
}

// Sums and differences within vectors, for strides from kStride on. a - b is computed as a + -b,
// which gives the same bits.
template <size_t kStride>
HWY_INLINE VF WithinVector(VF v) {
  if constexpr (kStride >= kLanes32) {
    return v;
  } else {
    const V32 stride = hn::Set(D32(), uint32_t{kStride});
    const V32 upper = hn::And(hn::Iota(D32(), 0), stride);
    const VF signs =
        hn::BitCast(DF(), hn::ShiftLeft<31 - static_cast<int>(hwy::FloorLog2(kStride))>(upper));
    return WithinVector<2 * kStride>(hn::Add(Exchanged<kStride>(v), hn::Xor(v, signs)));
  }
}

// Sums and differences between kVectors vectors, for strides from kStride vectors on.
template <size_t kVectors, size_t kStride = 1>
HWY_INLINE void BetweenVectors(VF* v) {
  if constexpr (kStride < kVectors) {
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & kStride) != 0) continue;
      const VF a = v[i], b = v[i + kStride];
      v[i] = hn::Add(a, b);
      v[i + kStride] = hn::Sub(a, b);
    }
    BetweenVectors<kVectors, 2 * kStride>(v);
  }
}

// The sign bits of one half of a block's elements, lane by lane, from the block's hashes.
HWY_INLINE VF SignsOf(V32 hash, bool upper) {
  const V32 bit = hn::Set(D32(), 0x80000000u);
  const V32 raised = upper ? hn::ShiftLeft<15>(hash) : hn::ShiftLeft<31>(hash);
  return hn::BitCast(DF(), hn::And(raised, bit));
}

// kBack: x is a result, in which every NaN becomes 7fc00000.
template <bool kBack>
HWY_INLINE void ChangeSigns(float* x, uint32_t counter) {
  constexpr size_t kHashes = 16 / kLanes32;
  const VF nan = hn::BitCast(DF(), hn::Set(D32(), 0x7fc00000u));
  for (size_t block = 0; block < hbi::kBlocks; ++block, x += kBlock) {
    for (size_t i = 0; i < kHashes; ++i) {
      const auto first = counter + static_cast<uint32_t>(block * 16 + i * kLanes32);
      const V32 hash = LowBias32Lanes(hn::Add(hn::Set(D32(), first), hn::Iota(D32(), 0)));
      for (size_t half = 0; half < 2; ++half) {
        float* at = x + 16 * half + i * kLanes32;
        VF y = hn::Xor(hn::LoadU(DF(), at), SignsOf(hash, half != 0));
        if (kBack) y = hn::IfThenElse(hn::IsNaN(y), nan, y);
        hn::StoreU(y, DF(), at);
      }
    }
  }
}

template <bool kBack>
HWY_INLINE void RotateSuperblock(float* x, uint32_t counter) {
  constexpr size_t kNear = 8, kFar = kSuperblock / kLanes32 / kNear;
  if (!kBack) ChangeSigns<false>(x, counter);
  VF v[kNear];
  for (size_t first = 0; first < kSuperblock; first += kNear * kLanes32) {
    for (size_t i = 0; i < kNear; ++i) {
      v[i] = WithinVector<1>(hn::LoadU(DF(), x + first + i * kLanes32));
    }
    BetweenVectors<kNear>(v);
    for (size_t i = 0; i < kNear; ++i) hn::StoreU(v[i], DF(), x + first + i * kLanes32);
  }
  const VF scale = hn::Set(DF(), 1.0f / 16);
  VF w[kFar];
  for (size_t first = 0; first < kNear * kLanes32; first += kLanes32) {
    for (size_t i = 0; i < kFar; ++i) w[i] = hn::LoadU(DF(), x + first + i * kNear * kLanes32);
    BetweenVectors<kFar>(w);
    for (size_t i = 0; i < kFar; ++i) {
      hn::StoreU(hn::Mul(w[i], scale), DF(), x + first + i * kNear * kLanes32);
    }
  }
  if (kBack) ChangeSigns<true>(x, counter);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
