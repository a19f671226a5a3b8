// SPDX-License-Identifier: Apache-2.0
//
// Whole strips (hbi_kernels.h), for one instruction set. Superblocks whose codes and sums fit bytes
// go another way than the others. Included once per target, after hbi_strip_bytes-inl.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/level_table.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip-inl.h"
#include "compress/kernels/hbi_strip_bytes-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_FOLD_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_FOLD_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_FOLD_INL_H_
#endif

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether a superblock's own elements, with offsets that do, go in bytes.
HWY_INLINE bool InBytes(uint32_t k, uint32_t counter) {
  return HasByteLevels(k) && HasPlainCounters(counter);
}

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
    const ScaleCodes codes(word);
    V32 counters = hn::Add(hn::Set(D32(), counter), hn::Iota(D32(), 0));
    const StripPacker pack(point.own_width);
    const auto make = OffsetsFor<MakeOffsets>(offsets, point.k);
    const VI16 twice_k = TwiceOf(point.k);
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      out = pack(QuantizeTwoBlocks<kType>(x + b * kBlock * kSize<kType>, point.sum->factor,
                                          codes.of + b, make, &counters, twice_k),
                 out);
    }
  }
  return out;
}

template <DataType kType>
const uint8_t* DecodeStripOf(const hbi::Strip& strip, const hbi::StripDecoding& how,
                             const uint8_t* in, std::byte* y) {
  HWY_ALIGN int16_t tile[kSuperblock];
  for (uint32_t s = 0; s < strip.superblocks; ++s, y += kSuperblock * kSize<kType>) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    const uint32_t word = hbi::LoadWord(strip.words, s);
    if (point.k == 0) {
      PutUncoded<kType>(hbi::LoadWord(how.agreed, s), y);
      continue;
    }
    const hbi::LevelTable& table = how.result ? *point.result : *point.sum;
    const uint32_t width = how.result ? point.result_width : point.sum_width;
    const uint32_t zero = how.result ? point.k2 : how.contributions * uint32_t{point.k};
    const float* const steps = how.average ? table.average : table.step;
    if (width <= hbi::kWidestPair) {
      DecodeBytes<kType>(width, zero, steps, word, strip.stream, &in, y);
      continue;
    }
    const ScaleCodes scales(word);
    const StripUnpacker unpack(width);
    const V16 zeros = Word(static_cast<uint16_t>(zero));
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      StoreMinus(unpack.InOrder(unpack.Fields(&in)), zeros, tile + b * kBlock);
    }
    DecodeSigned<kType>(tile, steps, scales, strip.stream, y);
  }
  if (strip.stream) _mm_sfence();
  return in;
}

// ---------------------------------------------------------------- the owner's step

inline constexpr uint32_t kFolded = kLanes64;  // superblocks at once: their words fill a vector

// In each 128-bit part, the largest 16-bit lanes of that of a, then of that of b, in quarters.
HWY_INLINE V16 LargestOfPair(V16 a, V16 b) {
  return V16{
      _mm512_max_epu16(_mm512_unpacklo_epi64(a.raw, b.raw), _mm512_unpackhi_epi64(a.raw, b.raw))};
}

// The largest 16-bit lane of each of the eight vectors, in order, from LargestOfPair.
HWY_INLINE V64 LargestLanes(const V16* pairs) {
  // The 128-bit parts of a, then those of b: 0 and 1 combined, 2 and 3.
  const auto parts = [](__m512i a, __m512i b) HWY_ATTR {
    return _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  };
  __m512i most = parts(parts(pairs[0].raw, pairs[1].raw), parts(pairs[2].raw, pairs[3].raw));
  most = _mm512_max_epu16(most, _mm512_srli_epi64(most, 32));
  most = _mm512_max_epu16(most, _mm512_srli_epi64(most, 16));
  return hn::And(V64{most}, hn::Set(D64(), 0xffffu));
}

// Sums a superblock's contributions, less zero, and writes its blocks' largest magnitudes.
template <DataType kType, bool kMasked>
HWY_INLINE void SumSuperblock(const hbi::Strip& strip, uint32_t s, const hbi::StripFold& fold,
                              int16_t* sums, float* largest) {
  const hbi::Point& point = strip.points[strip.plan[s]];
  const ScaleCodes codes(hbi::LoadWord(strip.words, s));
  const StripUnpacker unpack(fold.contributions == 1 ? point.own_width
                                                     : hbi::Width(fold.contributions, point.k));
  const auto make = OffsetsFor<ToOffsets<kMasked>>(fold.offsets, point.k);
  const VI16 twice_k = TwiceOf(point.k);
  const V16 minus_zero = Word(static_cast<uint16_t>(0 - fold.total * point.k));
  V32 counters = hn::Add(hn::Set(D32(), fold.counter + s * (kSuperblock / 2)), hn::Iota(D32(), 0));
  V16 distances[hbi::kBlocks / 2];
  for (size_t b = 0; b < hbi::kBlocks; b += 2) {
    TwoBlocks total = {minus_zero, minus_zero};
    for (hbi::Source& source : fold.packed_sources) total = Sum(total, unpack.Fields(&source.at));
    total = unpack.InOrder(total);
    const std::byte* x = fold.own + (size_t{s} * kSuperblock + b * kBlock) * kSize<kType>;
    total = Sum(total, QuantizeTwoBlocks<kType>(x, point.sum->factor, codes.of + b, make, &counters,
                                                twice_k));
    const VI16 lower = hn::BitCast(DI16(), total.lower);
    const VI16 upper = hn::BitCast(DI16(), total.upper);
    hn::Store(lower, DI16(), sums + b * kBlock);
    hn::Store(upper, DI16(), sums + (b + 1) * kBlock);
    distances[b / 2] =
        LargestOfPair(hn::BitCast(D16(), hn::Abs(lower)), hn::BitCast(D16(), hn::Abs(upper)));
  }
  StoreLargest(point, codes, _mm512_cvtepi64_epi32(LargestLanes(distances).raw), largest);
}

// Quantizes a superblock's sums on the scales `own` and replaces them by the signed codes; packs
// these.
HWY_INLINE uint8_t* RequantizeSuperblock(const hbi::Point& point, const ScaleCodes& codes,
                                         const ScaleCodes& own, int16_t* sums, uint8_t* packed) {
  const StripPacker pack(point.result_width);
  const VI32 summand =
      hn::Set(DI32(), static_cast<int32_t>(uint32_t{point.k2} << 16 | hbi::kRoundHalfUp));
  const VI16 twice_k = TwiceOf(point.k2);
  const V16 zero = Word(point.k2);
  const float *const steps = point.sum->step, *const factors = point.result->factor;
  for (size_t b = 0; b < hbi::kBlocks; b += 2, sums += kTwoBlocks) {
    const auto block = [&](size_t i) HWY_ATTR {
      const __m512 step = _mm512_set1_ps(steps[codes.of[b + i]]);
      const __m512 factor = _mm512_set1_ps(factors[own.of[b + i]]);
      const auto fixed = [&](size_t half) HWY_ATTR {
        const hn::Half<DI16> d;
        const VI32 sum = hn::PromoteTo(DI32(), hn::Load(d, sums + i * kBlock + 16 * half));
        const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum.raw), step);
        return hn::Add(VI32{_mm512_cvtps_epi32(_mm512_mul_ps(value, factor))}, summand);
      };
      const VI32 low = fixed(0);
      return CodesOfFixed(low, fixed(1), twice_k);
    };
    const V16 lower = block(0);
    const TwoBlocks made{lower, block(1)};
    packed = pack(made, packed);
    StoreMinus(made, zero, sums);
  }
  return packed;
}

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
  const ScaleCodes own(own_word);
  const float* const results = fold->average ? point.result->average : point.result->step;
  if (in_bytes) {
    auto* const bytes = reinterpret_cast<int8_t*>(sums);
    if (hbi::IsPoison(own_word)) std::memset(bytes, 0, kSuperblock);  // every code is K2
    const ScaleCodes codes(word);
    if constexpr (kType == DataType::kFloat32) {
      if (Streams<kType>(strip.stream, y)) {
        fold->packed =
            RequantizeBytes<kType, true>(point, codes, own, bytes, results, fold->packed, y);
        return;
      }
    }
    fold->packed =
        RequantizeBytes<kType, false>(point, codes, own, bytes, results, fold->packed, y);
    return;
  }
  if (hbi::IsPoison(own_word)) {  // every code is K2
    const StripPacker pack(point.result_width);
    const V16 zero = Word(point.k2);
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      fold->packed = pack({zero, zero}, fold->packed);
      StoreMinus({zero, zero}, zero, sums + b * kBlock);
    }
  } else {
    fold->packed = RequantizeSuperblock(point, ScaleCodes(word), own, sums, fold->packed);
  }
  if (y == nullptr) return;
  DecodeSigned<kType>(sums, results, own, strip.stream, y);
}

// Whether the sums of superblock s fit bytes.
template <Moves kMoves>
HWY_INLINE bool SumsInBytes(const hbi::Point& point, uint32_t counter, const hbi::StripFold& fold) {
  return kMoves != Moves::kNone && InBytes(point.k, counter) && HasByteLevels(point.k2) &&
         fold.total * point.k <= 127;
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
        SumSuperblock<kType, kMasked>(strip, s, *fold, to, blocks);
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
    StoreWords(WordsOf(CodesOfMagnitudes(bits)), count, words);
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
