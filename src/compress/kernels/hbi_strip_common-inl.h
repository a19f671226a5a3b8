// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of strips (hbi_kernels.h) of all instruction sets share. Included once per
// target, after hbi_strip_elements-inl.h.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip_elements-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#endif

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using VF = hn::Vec<DF>;

inline constexpr size_t kTwoBlocks = 2 * kBlock;  // elements whose codes are packed together

// The scale codes of a superblock, in memory: the compiler would take them out of a vector one by
// one instead.
struct ScaleCodes {
  HWY_ALIGN uint32_t of[hbi::kBlocks];
  explicit HWY_INLINE ScaleCodes(uint32_t word) {
    CodesOfWord(word, of);
    asm("" : "+m"(of));
  }
};

// How the fields of a superblock with levels decode.
struct DecodedFields {
  HWY_INLINE DecodedFields(const hbi::Point& point, const hbi::StripDecoding& how)
      : width(how.result ? point.result_width : point.sum_width),
        zero(how.result ? point.k2 : how.contributions * uint32_t{point.k}) {
    const hbi::LevelTable& table = how.result ? *point.result : *point.sum;
    steps = how.average ? table.average : table.step;
  }
  uint32_t width, zero;
  const float* steps;
};

// Whether non-temporal stores to y are possible.
template <DataType kType>
HWY_INLINE bool Streams(bool stream, const std::byte* y) {
  return kType == DataType::kFloat32 && stream && reinterpret_cast<uintptr_t>(y) % 64 == 0;
}

// Stores the largest magnitudes of a superblock's sums, as their own codes have them.
HWY_INLINE void StoreLargest(const hbi::Point& point, const ScaleCodes& codes, __m256i most,
                             float* largest) {
  HWY_ALIGN float steps[hbi::kBlocks];
  for (size_t b = 0; b < hbi::kBlocks; ++b) steps[b] = point.sum->step[codes.of[b]];
  const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(most), _mm256_load_ps(steps));
  _mm256_store_ps(largest, _mm256_mul_ps(scaled, _mm256_set1_ps(point.result->own)));
}

// ---------------------------------------------------------------- codes in bytes

// A float of kOne + i has the integer i in its bits, |i| <= 2^22; its third byte has i / 65536
// rounded down, plus kOneByte. An addition to kOne + i, i even, rounds to nearest even as a
// conversion to integers does. So the offsets are added to the values by the addition that rounds.
inline constexpr uint32_t kOneBits = 0x4b400000;
inline constexpr uint8_t kOneByte = 0x40;
inline constexpr uint32_t kMostByteLevels = 63;  // 65536 K and the offset stay below 2^22

HWY_INLINE bool HasByteLevels(uint32_t k) { return k <= kMostByteLevels; }

// How the offsets of a rank follow from the random numbers: r goes to the middle of its cell and on
// by the rank's shift.
enum class Moves : uint8_t {
  kNone,  // not in cells, or their number is not a power of two: not in bytes
  kHalf,  // the shift is 0 or half of the circle
  kAny,
};

inline Moves MovesOf(const hbi::Offsets& offsets) {
  const uint32_t n = offsets.ranks;
  if (n < 2 || n > 1 << 14 || (n & (n - 1)) != 0) return Moves::kNone;
  return ((offsets.add - 32768 / n) & 0x7fff) == 0 ? Moves::kHalf : Moves::kAny;
}

// The hashes of a superblock have counters without a carry into the upper half.
HWY_INLINE bool HasPlainCounters(uint32_t counter) {
  return (counter & 0xffff) <= 0xffff - (kSuperblock / 2 - 1);
}

// Whether a superblock's own elements, with offsets that do, go in bytes.
HWY_INLINE bool InBytes(uint32_t k, uint32_t counter) {
  return HasByteLevels(k) && HasPlainCounters(counter);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS

#endif  // per-target include guard
