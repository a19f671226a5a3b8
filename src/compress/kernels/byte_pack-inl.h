// SPDX-License-Identifier: Apache-2.0
//
// Packs vectors of 8-bit fields, in element order, into streams of 1 to 8 bits per field, and back,
// for one instruction set. The code joins neighbours in lanes of 16, 32 and 64 bits. Included once
// per target.
#include <cstddef>
#include <cstdint>

#include "compress/kernels/hbi_pack-inl.h"
#include "compress/kernels/pack_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_BYTE_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_BYTE_PACK_INL_H_
#undef INCCL_COMPRESS_KERNELS_BYTE_PACK_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_BYTE_PACK_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kBytes = HWY_LANES(uint8_t);  // bytes of a vector

class BytePacker {
 public:
  explicit HWY_INLINE BytePacker(uint32_t w)
      : gather_(hn::LoadDup128(D8(), packing::kByteTables.gather[w])),
        width_(static_cast<int>(w)) {}

  // Bytes of a vector's packed fields; operator() writes up to 16 more.
  HWY_INLINE size_t stride() const { return kBytes / 8 * static_cast<size_t>(width_); }

  HWY_INLINE void operator()(V8 fields, uint8_t* out) const {
    const V16 twos = Joined(D16(), hn::BitCast(D16(), fields), 0xFF, 8 - width_);
    const V32 fours = Joined(D32(), hn::BitCast(D32(), twos), 0xFFFF, 16 - 2 * width_);
    const V64 eights = Joined(D64(), hn::BitCast(D64(), fours), 0xFFFFFFFFu, 32 - 4 * width_);
    const V8 bytes = hn::TableLookupBytesOr0(hn::BitCast(D8(), eights), gather_);
    StoreGroups(D8(), bytes, static_cast<uint32_t>(2 * width_), out);
  }

 private:
  // Shifts the upper half of each lane down by `bits`, next to the lower half.
  template <class D>
  static HWY_INLINE hn::Vec<D> Joined(D d, hn::Vec<D> v, hn::TFromD<D> lower, int bits) {
    const auto mask = hn::Set(d, lower);
    return hn::Or(hn::And(v, mask), hn::ShiftRightSame(hn::AndNot(mask, v), bits));
  }

  V8 gather_;
  int width_;
};

class ByteUnpacker {
 public:
  explicit HWY_INLINE ByteUnpacker(uint32_t w)
      : spread_(hn::LoadDup128(D8(), packing::kByteTables.spread[w])),
        width_(static_cast<int>(w)) {}

  // Bytes of a vector's packed fields; operator() reads up to 16 more.
  HWY_INLINE size_t stride() const { return kBytes / 8 * static_cast<size_t>(width_); }

  HWY_INLINE V8 operator()(const uint8_t* in) const {
    const V8 bytes = LoadGroups(D8(), in, static_cast<uint32_t>(2 * width_));
    const V64 eights = hn::BitCast(D64(), hn::TableLookupBytes(bytes, spread_));
    const V32 fours = hn::BitCast(D32(), Split<32>(D64(), eights, 4 * width_));
    const V16 twos = hn::BitCast(D16(), Split<16>(D32(), fours, 2 * width_));
    return hn::BitCast(D8(), Split<8>(D16(), twos, width_));
  }

 private:
  // Splits the lower 2 * bits of each lane into its two halves.
  template <int kHalf, class D>
  static HWY_INLINE hn::Vec<D> Split(D d, hn::Vec<D> v, int bits) {
    const auto ones = static_cast<hn::TFromD<D>>((uint64_t{1} << bits) - 1);
    const auto lower = hn::Set(d, ones);
    const auto upper = hn::ShiftLeft<kHalf>(lower);
    return hn::Or(hn::And(v, lower), hn::And(hn::ShiftLeftSame(v, kHalf - bits), upper));
  }

  V8 spread_;
  int width_;
};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
