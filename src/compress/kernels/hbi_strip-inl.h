// SPDX-License-Identifier: Apache-2.0
//
// Whole strips (hbi_kernels.h), for one instruction set. Superblocks whose codes and sums fit bytes
// go another way than the others. Included once per target, after what makes superblocks of strips.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip_avx2-inl.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "compress/kernels/hbi_strip_vbmi-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#endif

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <DataType kType, class MakeOffsets, Moves kMoves>
uint8_t* EncodeStripOf(const hbi::Strip& strip, const std::byte* x, uint32_t counter,
                       const hbi::Offsets& offsets, uint8_t* out) {
  const ByteOffsetsShared in_bytes(offsets);
  for (uint32_t s = 0; s < strip.superblocks;
       ++s, x += kSuperblock * kSize<kType>, counter += kSuperblock / 2) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    if (point.k == 0) continue;
    const uint32_t word = hbi::LoadWord(strip.words, s);
    if constexpr (kMoves != Moves::kNone) {
      if (InBytes(point.k, counter)) {
        out = EncodeBytes<kType, kMoves>(point, word, x, counter, in_bytes, out);
        continue;
      }
    }
    out = EncodeWide<kType, MakeOffsets>(point, word, x, counter, offsets, out);
  }
  return out;
}

template <DataType kType>
const uint8_t* DecodeStripOf(const hbi::Strip& strip, const hbi::StripDecoding& how,
                             const uint8_t* in, std::byte* y) {
  for (uint32_t s = 0; s < strip.superblocks; ++s, y += kSuperblock * kSize<kType>) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    const uint32_t word = hbi::LoadWord(strip.words, s);
    if (point.k == 0) {
      PutUncoded<kType>(hbi::LoadWord(how.agreed, s), y);
      continue;
    }
    const DecodedFields fields(point, how);
    if (fields.width <= kWidestInBytes) {
      DecodeBytes<kType>(fields.width, fields.zero, fields.steps, word, strip.stream, &in, y);
    } else {
      DecodeWide<kType>(fields.width, fields.zero, fields.steps, word, strip.stream, &in, y);
    }
  }
  if (strip.stream) _mm_sfence();
  return in;
}

// ---------------------------------------------------------------- the owner's step

inline constexpr uint32_t kFolded = kLanes64;  // superblocks at once: their words fill a vector

// Results of superblock s from its sums.
template <DataType kType>
HWY_INLINE void PutResult(const hbi::Strip& strip, uint32_t s, uint32_t own_word, bool in_bytes,
                          int16_t* sums, hbi::StripFold* fold) {
  const hbi::Point& point = strip.points[strip.plan[s]];
  const uint32_t word = hbi::LoadWord(strip.words, s);
  std::byte* const y =
      fold->elements == nullptr ? nullptr : fold->elements + size_t{s} * kSuperblock * kSize<kType>;
  if (point.k == 0) {
    if (y != nullptr) PutUncoded<kType>(word, y);
    return;
  }
  const float* const results = fold->average ? point.result->average : point.result->step;
  if (!in_bytes) {
    PutWide<kType>(strip, s, own_word, results, sums, fold, y);
    return;
  }
  auto* const bytes = reinterpret_cast<int8_t*>(sums);
  if (hbi::IsPoison(own_word)) std::memset(bytes, 0, kSuperblock);  // every code is K2
  const ScaleCodes codes(word), own(own_word);
  if constexpr (kType == DataType::kFloat32) {
    if (Streams<kType>(strip.stream, y)) {
      fold->packed =
          RequantizeBytes<kType, true>(point, codes, own, bytes, results, fold->packed, y);
      return;
    }
  }
  fold->packed = RequantizeBytes<kType, false>(point, codes, own, bytes, results, fold->packed, y);
}

// Whether the sums of superblock s fit bytes.
template <Moves kMoves>
HWY_INLINE bool SumsInBytes(const hbi::Point& point, uint32_t counter, const hbi::StripFold& fold) {
  return kMoves != Moves::kNone && HasPlainCounters(counter) &&
         SumsFitBytes(point, fold.contributions, fold.total);
}

template <DataType kType, bool kMasked, Moves kMoves>
void FoldStripOf(const hbi::Strip& strip, hbi::StripFold* fold) {
  HWY_ALIGN int16_t sums[kFolded * kSuperblock];
  HWY_ALIGN float largest[kFolded * hbi::kBlocks] = {};
  static_assert(sizeof largest == 4 * sizeof(V32));
  bool in_bytes[kFolded] = {};
  const ByteOffsetsShared offsets(fold->offsets);
  for (uint32_t first = 0; first < strip.superblocks; first += kFolded) {
    const uint32_t left = strip.superblocks - first, count = left < kFolded ? left : kFolded;
    for (uint32_t i = 0; i < count; ++i) {
      float* const blocks = largest + i * hbi::kBlocks;
      int16_t* const to = sums + i * kSuperblock;
      const uint32_t s = first + i, counter = fold->counter + s * (kSuperblock / 2);
      const hbi::Point& point = strip.points[strip.plan[s]];
      in_bytes[i] = SumsInBytes<kMoves>(point, counter, *fold);
      if (point.k == 0) {
        _mm256_store_ps(blocks, _mm256_setzero_ps());
      } else if (!in_bytes[i]) {
        SumWide<kType, kMasked>(strip, s, *fold, to, blocks);
      } else if constexpr (kMoves != Moves::kNone) {
        SumInBytes<kType, kMoves>(point, hbi::LoadWord(strip.words, s),
                                  fold->own + size_t{s} * kSuperblock * kSize<kType>, counter,
                                  offsets, *fold, reinterpret_cast<int8_t*>(to), blocks);
      }
    }
    V32 bits[4];
    for (size_t i = 0; i < 4; ++i) {
      bits[i] = hn::And(hn::BitCast(D32(), hn::Load(DF(), largest + i * kLanes32)),
                        hn::Set(D32(), 0x7fffffffu));
    }
    uint8_t* const words = fold->words + size_t{first} * hbi::kWordBytes;
    StoreWords(WordsOfMagnitudes(bits), count, words);
    for (uint32_t i = 0; i < count; ++i) {
      PutResult<kType>(strip, first + i, hbi::LoadWord(words, i), in_bytes[i],
                       sums + i * kSuperblock, fold);
    }
  }
  if (strip.stream) _mm_sfence();
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS

#endif  // per-target include guard
