// SPDX-License-Identifier: Apache-2.0
//
// Packs vectors of 16-bit fields, in element order, into streams, and back, for one instruction
// set. Included once per target.
#include <cstddef>
#include <cstdint>

#include "compress/kernels/pack_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_PACK_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_PACK_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_PACK_INL_H_
#endif

// Only for targets whose vectors have a fixed size of at least 128 bits; the others use the
// reference.
#undef INCCL_HBI_VECTORS
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#define INCCL_HBI_VECTORS 0
#else
#define INCCL_HBI_VECTORS 1
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::ScalableTag<uint8_t>;
using D16 = hn::ScalableTag<uint16_t>;
using D32 = hn::ScalableTag<uint32_t>;
using D64 = hn::ScalableTag<uint64_t>;
using DI16 = hn::ScalableTag<int16_t>;
using DI32 = hn::ScalableTag<int32_t>;
using DF = hn::ScalableTag<float>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using V64 = hn::Vec<D64>;

inline constexpr size_t kFields = HWY_LANES(uint16_t);  // per vector
inline constexpr size_t kGroups = kFields / 8;

// Loads 16 bytes at p, p + w, ...: one group per 128-bit part.
template <class D>
HWY_INLINE hn::Vec<D> LoadGroups(D d, const uint8_t* p, uint32_t w) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    (void)w;
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    const uint8_t* upper = p + hn::MaxLanes(D()) / 32 * w;
    return hn::Combine(d, LoadGroups(half, upper, w), LoadGroups(half, p, w));
  }
}

// Stores the 128-bit parts to p, p + w, ...; the first w bytes of each are valid.
template <class D>
HWY_INLINE void StoreGroups(D d, hn::Vec<D> v, uint32_t w, uint8_t* p) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    (void)w;
    hn::StoreU(v, d, p);
  } else {
    const hn::Half<D> half;
    StoreGroups(half, hn::LowerHalf(half, v), w, p);
    StoreGroups(half, hn::UpperHalf(half, v), w, p + hn::MaxLanes(D()) / 32 * w);
  }
}

// Unpacks fields of kNarrowest..kLastNarrow bits.
class NarrowUnpacker {
 public:
  explicit HWY_INLINE NarrowUnpacker(uint32_t w)
      : words_(hn::Load(D32(), hbi::kPackTables.by_width[w].words)),
        spread_(hn::Load(D8(), hbi::kPackTables.by_width[w].spread)),
        left_(hn::LoadDup128(D16(), hbi::kPackTables.by_width[w].left)),
        width_(w) {}

  // Returns kFields fields from p on; reads 16 * kGroups bytes.
  HWY_INLINE V16 operator()(const uint8_t* p) const {
    V8 groups = hn::LoadU(D8(), p);
    if constexpr (kGroups > 1) {
      groups = hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(D32(), groups),
                                                      hn::IndicesFromVec(D32(), words_)));
    }
    const V16 pairs = hn::BitCast(D16(), hn::TableLookupBytes(groups, spread_));
    return hn::ShiftRightSame(hn::Mul(pairs, left_), static_cast<int>(16 - width_));
  }

 private:
  V32 words_;
  V8 spread_;
  V16 left_;
  uint32_t width_;
};

// Unpacks fields of any width.
class WideUnpacker {
 public:
  explicit HWY_INLINE WideUnpacker(uint32_t w)
      : spread_low_(hn::LoadDup128(D8(), hbi::kPackTables.by_width[w].spread_low)),
        spread_next_(hn::LoadDup128(D8(), hbi::kPackTables.by_width[w].spread_next)),
        times_low_(hn::LoadDup128(D16(), hbi::kPackTables.by_width[w].times_low)),
        times_next_(hn::LoadDup128(D16(), hbi::kPackTables.by_width[w].times_next)),
        mask_(hn::Set(D16(), static_cast<uint16_t>((1u << w) - 1))),
        width_(w) {}

  HWY_INLINE V16 operator()(const uint8_t* p) const {
    const V8 groups = LoadGroups(D8(), p, width_);
    const V16 low = hn::BitCast(D16(), hn::TableLookupBytesOr0(groups, spread_low_));
    const V16 next = hn::BitCast(D16(), hn::TableLookupBytesOr0(groups, spread_next_));
    const V16 both = hn::Or(hn::MulHigh(low, times_low_), hn::Mul(next, times_next_));
    return hn::And(both, mask_);
  }

 private:
  V8 spread_low_, spread_next_;
  V16 times_low_, times_next_, mask_;
  uint32_t width_;
};

template <bool kOdd>
class Packer {
 public:
  explicit HWY_INLINE Packer(uint32_t w)
      : times_(hn::BitCast(D16(), hn::Set(D32(), 0x10000u | (1u << (16 - w))))),
        shifts_(hn::BitCast(D32(), hn::Set(D64(), uint64_t{32 - 2 * w}))),
        gather_(hn::LoadDup128(D8(), hbi::kPackTables.by_width[w].gather)),
        gather_second_(hn::LoadDup128(D8(), hbi::kPackTables.by_width[w].gather_second)),
        width_(w) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64  // rotate: both shifts in one
    shifts_ = hn::BitCast(D32(), hn::Set(D64(), uint64_t{16 + w} << 32 | (16 - w)));
#elif HWY_TARGET > HWY_AVX2 && HWY_ARCH_X86  // without per-lane shifts: multiply instead
    shifts_ = hn::BitCast(D32(), hn::Set(D64(), uint64_t{1} << 32 | uint64_t{1} << (32 - 2 * w)));
#endif
  }

  // Writes kGroups * w bytes and up to 16 - w more. Twice, it moves the lower half of a pair of
  // lanes up to its neighbour and shifts both down together.
  HWY_INLINE void operator()(V16 fields, uint8_t* out) const {
    const int width = static_cast<int>(width_);
    const V32 pairs = hn::BitCast(D32(), hn::Mul(fields, times_));
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
    const V32 raised{_mm512_rolv_epi32(pairs.raw, shifts_.raw)};
#elif HWY_TARGET > HWY_AVX2 && HWY_ARCH_X86
    const V32 raised = hn::Mul(hn::ShiftRightSame(pairs, 16 - width), shifts_);
#else
    const V32 raised = hn::Shl(hn::ShiftRightSame(pairs, 16 - width), shifts_);
#endif
    const V64 fours = hn::ShiftRightSame(hn::BitCast(D64(), raised), 32 - 2 * width);
    V8 group = hn::TableLookupBytesOr0(hn::BitCast(D8(), fours), gather_);
    if constexpr (kOdd) {
      const V8 second = hn::BitCast(D8(), hn::ShiftLeft<4>(fours));
      group = hn::Or(group, hn::TableLookupBytesOr0(second, gather_second_));
    }
    StoreGroups(D8(), group, width_, out);
  }

 private:
  V16 times_;
  V32 shifts_;
  V8 gather_, gather_second_;
  uint32_t width_;
};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
