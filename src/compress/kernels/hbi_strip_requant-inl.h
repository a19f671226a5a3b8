// SPDX-License-Identifier: Apache-2.0
//
// The second quantization of superblocks whose sums fit bytes, for one instruction set: in fp32 or
// by tables (compress/hbi/requant_table.h). Included once per target, after hbi_strip_bytes-inl.h.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/level_table.h"
#include "compress/hbi/requant_table.h"
#include "compress/kernels/hbi_strip-inl.h"
#include "compress/kernels/hbi_strip_bytes-inl.h"
#include "compress/kernels/hbi_strip_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_REQUANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_REQUANT_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_REQUANT_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_REQUANT_INL_H_
#endif

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---------------------------------------------------------------- scale codes

inline constexpr uint32_t kFolded = kLanes64;  // superblocks at once: their words fill a vector

// The scale codes of kFolded superblocks.
struct FoldedCodes {
  HWY_INLINE void SetAgreed(const uint8_t* words, uint32_t count) {
    const __m256i loaded =
        _mm256_maskz_loadu_epi32(static_cast<__mmask8>((1u << count) - 1), words);
    _mm512_store_si512(agreed, CodesOf(V64{_mm512_cvtepu32_epi64(loaded)}).raw);
  }
  // Also makes the keys of all blocks (RequantTable::KeyOf). Returns a bit for each block that has
  // one.
  HWY_INLINE uint64_t SetOwn(V64 words) {
    const __m512i from = Constant(agreed), to = CodesOf(words).raw;
    _mm512_store_si512(own, to);
    return MakeKeys(from, to);
  }

  HWY_ALIGN uint8_t agreed[kFolded * hbi::kBlocks];
  HWY_ALIGN uint8_t own[kFolded * hbi::kBlocks];
  HWY_ALIGN uint8_t keys[kFolded * hbi::kBlocks];

 private:
  HWY_INLINE uint64_t MakeKeys(__m512i from, __m512i to) {
    constexpr uint8_t kFine = hbi::RequantTable::kLastFine - hbi::RequantTable::kFirstFine;
    const __m512i first = Bytes(hbi::RequantTable::kFirstFine), most = Bytes(kFine);
    const __m512i difference =
        _mm512_sub_epi8(_mm512_add_epi8(to, Bytes(hbi::RequantTable::kMostBelowAgreed)), from);
    const __mmask64 has =
        _mm512_cmple_epu8_mask(_mm512_sub_epi8(from, first), most) &
        _mm512_cmple_epu8_mask(_mm512_sub_epi8(to, first), most) &
        _mm512_cmplt_epu8_mask(difference, Bytes(hbi::RequantTable::kDifferences));
    const uint8_t* const table = hbi::kStripTables.keys.of;
    const __m512i low = _mm512_permutex2var_epi8(Constant(table), from, Constant(table + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(Constant(table + 128), from, Constant(table + 192));
    const __m512i key = _mm512_mask_blend_epi8(_mm512_movepi8_mask(from), low, high);
    _mm512_store_si512(keys, _mm512_add_epi8(key, to));
    return has;
  }
};

// ---------------------------------------------------------------- codes

// Quantizes sums to the nearest codes, in fp32.
class SumQuantizer {
 public:
  HWY_INLINE SumQuantizer(const hbi::Point& point, uint32_t word, uint32_t own_word,
                          const int8_t* sums)
      : codes_(word),
        own_(own_word),
        narrow_(BytesOrderOf(point.result_width)),
        clamp_(point.k2),
        half_(_mm512_castsi512_ps(
            _mm512_set1_epi32(static_cast<int32_t>(kOneBits + hbi::kRoundHalfUp)))),
        steps_(point.sum->step),
        factors_(point.result->factor),
        sums_(sums) {}

  // The codes of two blocks from b on, in the order of pairs.
  HWY_INLINE __m512i operator()(size_t b) const {
    __m512 values[4];
    for (size_t i = 0; i < 4; ++i) {
      const __m512 step = _mm512_set1_ps(steps_[codes_.of[b + i / 2]]);
      const __m512 factor = _mm512_set1_ps(factors_[own_.of[b + i / 2]]);
      const auto* const sums = reinterpret_cast<const __m128i*>(sums_ + b * kBlock + i * 16);
      const __m512i sum = _mm512_cvtepi8_epi32(_mm_load_si128(sums));
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step);
      values[i] = _mm512_add_ps(_mm512_mul_ps(value, factor), half_);
    }
    return clamp_(narrow_(values));
  }

 private:
  const ScaleCodes codes_, own_;
  const ByteNarrower narrow_;
  const ByteClamp clamp_;
  const __m512 half_;
  const float *const steps_, *const factors_;
  const int8_t* const sums_;
};

// The same by tables.
class SumTables {
 public:
  HWY_INLINE SumTables(const hbi::Point& point, const uint8_t* keys, const int8_t* sums)
      : codes_(point.codes_of_sums->codes()),
        sums_(sums),
        in_pairs_(Constant(BytesOrderOf(point.result_width).in_pairs)) {
    const uint8_t* const rows = point.codes_of_sums->rows();
    const __m512i of_blocks =
        _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(keys)));
    const __m512i chosen = _mm512_permutex2var_epi8(Constant(rows), of_blocks, Constant(rows + 64));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(rows_), _mm512_castsi512_si128(chosen));
    asm("" : "+m"(rows_));
  }

  HWY_INLINE __m512i operator()(size_t b) const {
    constexpr __mmask64 kFirst = 0xffffffff;
    const __m512i sums = _mm512_load_si512(sums_ + b * kBlock);
    const uint8_t* const first = codes_ + size_t{rows_[b]} * hbi::RequantTable::kSums;
    const uint8_t* const second = codes_ + size_t{rows_[b + 1]} * hbi::RequantTable::kSums;
    const __m512i half =
        _mm512_mask2_permutex2var_epi8(Constant(first), sums, kFirst, Constant(first + 64));
    const __m512i both =
        _mm512_mask2_permutex2var_epi8(Constant(second), half, ~kFirst, Constant(second + 64));
    return _mm512_permutexvar_epi8(in_pairs_, both);
  }

 private:
  const uint8_t* const codes_;
  const int8_t* const sums_;
  const __m512i in_pairs_;
  HWY_ALIGN uint8_t rows_[hbi::kBlocks];
};

// Packs the codes that make(b) returns for two blocks from b on, and decodes them to y unless it is
// nullptr.
template <DataType kType, bool kStream, class Make>
HWY_INLINE uint8_t* PutCodes(const hbi::Point& point, const Make& make, const float* results,
                             const uint8_t* own, uint8_t* packed, std::byte* y) {
  const BytePacker pack(point.result_width);
  const ByteDecoder<kType, kStream> decode(point.result_width, point.k2);
  for (size_t b = 0; b < hbi::kBlocks; b += 2) {
    const __m512i made = make(b);
    packed = pack(made, packed);
    if (y == nullptr) continue;
    decode(made, results, own + b, y);
    y += kTwoBlocks * kSize<kType>;
  }
  return packed;
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS

#endif  // per-target include guard
