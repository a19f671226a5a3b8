// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of strips (hbi_kernels.h) of all instruction sets share. Included once per
// target, after hbi_strip_common-inl.h.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_COMMON_INL_H_
#endif

// ---------------------------------------------------------------- elements

// With the byte permutations of AVX-512 VBMI, and with AVX2.
#undef INCCL_HBI_STRIPS_VBMI
#undef INCCL_HBI_STRIPS_AVX2
#undef INCCL_HBI_STRIPS
#if INCCL_HBI_VECTORS && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INCCL_HBI_STRIPS_VBMI 1
#else
#define INCCL_HBI_STRIPS_VBMI 0
#endif
#if HWY_TARGET == HWY_AVX2
#define INCCL_HBI_STRIPS_AVX2 1
#else
#define INCCL_HBI_STRIPS_AVX2 0
#endif
#define INCCL_HBI_STRIPS (INCCL_HBI_STRIPS_VBMI || INCCL_HBI_STRIPS_AVX2)

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <DataType kType>
inline constexpr size_t kSize = kType == DataType::kFloat32 ? 4 : 2;

#if INCCL_HBI_STRIPS_VBMI

template <DataType kType>
HWY_INLINE __m512 Load16(const std::byte* x) {
  if constexpr (kType == DataType::kFloat32) {
    return _mm512_loadu_ps(x);
  } else {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    if constexpr (kType == DataType::kFloat16) return _mm512_cvtph_ps(narrow);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
}

// Stores the 32 elements of a block; kStream: fp32 without a place in the caches, aligned. No NaN
// has bits set that rounding to bf16 would carry.
template <DataType kType, bool kStream = false>
HWY_INLINE void StoreBlock(__m512 low, __m512 high, std::byte* y) {
  if constexpr (kStream) {
    static_assert(kType == DataType::kFloat32);
    _mm512_stream_ps(reinterpret_cast<float*>(y), low);
    _mm512_stream_ps(reinterpret_cast<float*>(y + 64), high);
  } else if constexpr (kType == DataType::kFloat32) {
    _mm512_storeu_ps(y, low);
    _mm512_storeu_ps(y + 64, high);
  } else if constexpr (kType == DataType::kFloat16) {
    const __m256i l = _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i h = _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_storeu_si512(y, _mm512_inserti64x4(_mm512_castsi256_si512(l), h, 1));
  } else {
    const auto rounded = [](__m512 v) HWY_ATTR {
      const V32 bits{_mm512_castps_si512(v)};
      const V32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(D32(), 1u));
      return hn::BitCast(D16(), hn::Add(hn::Add(bits, hn::Set(D32(), 0x7FFFu)), odd));
    };
    _mm512_storeu_si512(y, hn::ConcatOdd(D16(), rounded(high), rounded(low)).raw);
  }
}

// Writes a superblock that has no levels.
template <DataType kType>
HWY_INLINE void PutUncoded(uint32_t word, std::byte* y) {
  const __m512 value =
      _mm512_set1_ps(hbi::IsPoison(word) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  for (size_t b = 0; b < hbi::kBlocks; ++b) {
    StoreBlock<kType>(value, value, y + b * kBlock * kSize<kType>);
  }
}

#else  // AVX2

template <DataType kType>
HWY_INLINE __m256 Load8(const std::byte* x) {
  if constexpr (kType == DataType::kFloat32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(x));
  } else {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    if constexpr (kType == DataType::kFloat16) return _mm256_cvtph_ps(narrow);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
}

// Stores 16 elements. No NaN has bits set that rounding to bf16 would carry. Non-temporal stores
// gain nothing here.
template <DataType kType>
HWY_INLINE void Store16(__m256 low, __m256 high, std::byte* y) {
  if constexpr (kType == DataType::kFloat32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(y), low);
    _mm256_storeu_ps(reinterpret_cast<float*>(y + 32), high);
  } else if constexpr (kType == DataType::kFloat16) {
    const auto half = [&](__m256 v, std::byte* to) HWY_ATTR {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                       _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    };
    half(low, y);
    half(high, y + 16);
  } else {
    const auto rounded = [](__m256 v) HWY_ATTR {
      const V32 bits{_mm256_castps_si256(v)};
      const V32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(D32(), 1u));
      return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(D32(), 0x7FFFu)), odd)).raw;
    };
    const __m256i both = _mm256_packus_epi32(rounded(low), rounded(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permute4x64_epi64(both, 0xd8));
  }
}

// Writes a superblock that has no levels.
template <DataType kType>
HWY_INLINE void PutUncoded(uint32_t word, std::byte* y) {
  const __m256 value =
      _mm256_set1_ps(hbi::IsPoison(word) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  for (size_t i = 0; i < kSuperblock; i += 16) Store16<kType>(value, value, y + i * kSize<kType>);
}

#endif

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
