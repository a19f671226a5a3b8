// SPDX-License-Identifier: Apache-2.0
//
// Superblocks of strips (hbi_kernels.h) with AVX2. Those whose codes fit bytes are here; the others
// go through the kernels of tiles. Included once per target, after hbi_strip_avx2_bytes-inl.h.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip_avx2_bytes-inl.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#endif

#if INCCL_HBI_STRIPS_AVX2
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---------------------------------------------------------------- superblocks in bytes

template <DataType kType, Moves kMoves, bool kOdd>
HWY_INLINE uint8_t* EncodeBytesOf(const hbi::Point& point, uint32_t word, const std::byte* x,
                                  uint32_t counter, const ByteOffsetsShared& offsets,
                                  uint8_t* out) {
  const ScaleCodes codes(word);
  const BytePacker<kOdd> pack(point.own_width);
  const ByteNarrower<kOdd> narrow;
  const ByteClamp clamp(point.k);
  const float* const factors = point.sum->factor;
  ByteOffsets<kMoves> make(offsets, counter);
  for (size_t b = 0; b < hbi::kBlocks; b += 2, x += kTwoBlocks * kSize<kType>) {
    out =
        pack(QuantizeToBytes<kType>(x, factors, codes.of + b, narrow, clamp, offsets, &make), out);
  }
  return out;
}

template <DataType kType, Moves kMoves>
HWY_INLINE uint8_t* EncodeBytes(const hbi::Point& point, uint32_t word, const std::byte* x,
                                uint32_t counter, const ByteOffsetsShared& offsets, uint8_t* out) {
  if (point.own_width % 2 != 0) {
    return EncodeBytesOf<kType, kMoves, true>(point, word, x, counter, offsets, out);
  }
  return EncodeBytesOf<kType, kMoves, false>(point, word, x, counter, offsets, out);
}

// Widens eight signed bytes in memory.
HWY_INLINE __m256 FloatsOfBytes(const int8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
}

// Decodes codes of which `zero` is 0.
template <DataType kType, bool kOdd>
HWY_INLINE void DecodePairs(const Pairs& codes, __m256i zero, const float* steps,
                            const uint32_t* scales, std::byte* y) {
  HWY_ALIGN int8_t in_order[kTwoBlocks];
  StoreInOrder<kOdd>({{_mm256_sub_epi8(codes.of[0], zero), _mm256_sub_epi8(codes.of[1], zero)}},
                     in_order);
  asm("" : "+m"(in_order));  // loads widen with fewer instructions than registers
  for (size_t b = 0; b < 2; ++b) {
    const __m256 step = _mm256_set1_ps(steps[scales[b]]);
    for (size_t i = b * kBlock; i < (b + 1) * kBlock; i += 16) {
      Store16<kType>(_mm256_mul_ps(FloatsOfBytes(in_order + i), step),
                     _mm256_mul_ps(FloatsOfBytes(in_order + i + 8), step), y + i * kSize<kType>);
    }
  }
}

template <DataType kType, bool kOdd>
HWY_INLINE void DecodeBytesOf(uint32_t width, uint32_t zero, const float* steps, uint32_t word,
                              const uint8_t** in, std::byte* y) {
  const ScaleCodes scales(word);
  const ByteUnpacker<kOdd> unpack(width);
  const uint8_t* from = *in;
  for (size_t b = 0; b < hbi::kBlocks; b += 2, y += kTwoBlocks * kSize<kType>) {
    DecodePairs<kType, kOdd>({{unpack(from, 0), unpack(from, 1)}}, Bytes(zero), steps,
                             scales.of + b, y);
    from += unpack.bytes();
  }
  *in = from;
}

template <DataType kType>
HWY_INLINE void DecodeBytes(uint32_t width, uint32_t zero, const float* steps, uint32_t word, bool,
                            const uint8_t** in, std::byte* y) {
  return width % 2 != 0 ? DecodeBytesOf<kType, true>(width, zero, steps, word, in, y)
                        : DecodeBytesOf<kType, false>(width, zero, steps, word, in, y);
}

// The largest byte of each of the eight vectors.
HWY_INLINE __m256i LargestBytes(const __m256i* blocks) {
  const auto pair = [](__m256i a, __m256i b) HWY_ATTR {
    return _mm256_castsi256_ps(
        _mm256_max_epu8(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)));
  };
  const auto four = [&](const __m256i* from) HWY_ATTR {
    const __m256 p = pair(from[0], from[1]), q = pair(from[2], from[3]);
    return _mm256_max_epu8(_mm256_castps_si256(_mm256_shuffle_ps(p, q, 0x88)),
                           _mm256_castps_si256(_mm256_shuffle_ps(p, q, 0xdd)));
  };
  const __m256i first = four(blocks), second = four(blocks + 4);
  __m256i most = _mm256_max_epu8(_mm256_permute2x128_si256(first, second, 0x20),
                                 _mm256_permute2x128_si256(first, second, 0x31));
  most = _mm256_max_epu8(most, _mm256_srli_epi32(most, 16));
  most = _mm256_max_epu8(most, _mm256_srli_epi32(most, 8));
  return _mm256_and_si256(most, _mm256_set1_epi32(0xff));
}

template <DataType kType, Moves kMoves, bool kOdd>
HWY_INLINE void SumInBytesOf(const hbi::Point& point, uint32_t width, const ScaleCodes& codes,
                             const std::byte* x, uint32_t counter, const ByteOffsetsShared& offsets,
                             const hbi::StripFold& fold, int8_t* sums, __m256i* distances) {
  const ByteUnpacker<kOdd> unpack(width);
  const ByteNarrower<kOdd> narrow;
  const ByteClamp clamp(point.k);
  const float* const factors = point.sum->factor;
  const __m256i zero = Bytes(fold.total * point.k);
  const std::span<hbi::Source> sources = fold.packed_sources;
  ByteOffsets<kMoves> make(offsets, counter);
  size_t at = 0;  // of the packed sources
  for (size_t b = 0; b < hbi::kBlocks; b += 2, x += kTwoBlocks * kSize<kType>) {
    Pairs total = QuantizeToBytes<kType>(x, factors, codes.of + b, narrow, clamp, offsets, &make);
    for (__m256i& of : total.of) of = _mm256_sub_epi8(of, zero);
    for (const hbi::Source& source : sources) {
      for (size_t i = 0; i < 2; ++i) {
        total.of[i] = _mm256_add_epi8(total.of[i], unpack(source.at + at, i));
      }
    }
    at += unpack.bytes();
    const Pairs blocks = StoreInOrder<kOdd>(total, sums + b * kBlock);
    for (size_t i = 0; i < 2; ++i) distances[b + i] = _mm256_abs_epi8(blocks.of[i]);
  }
  for (hbi::Source& source : sources) source.at += at;
}

// Sums a superblock's contributions, less zero.
template <DataType kType, Moves kMoves>
HWY_INLINE void SumInBytes(const hbi::Point& point, uint32_t word, const std::byte* x,
                           uint32_t counter, const ByteOffsetsShared& offsets,
                           const hbi::StripFold& fold, int8_t* sums, float* largest) {
  const uint32_t width =
      fold.contributions == 1 ? point.own_width : hbi::Width(fold.contributions, point.k);
  const ScaleCodes codes(word);
  HWY_ALIGN __m256i distances[hbi::kBlocks];
  if (width % 2 != 0) {
    SumInBytesOf<kType, kMoves, true>(point, width, codes, x, counter, offsets, fold, sums,
                                      distances);
  } else {
    SumInBytesOf<kType, kMoves, false>(point, width, codes, x, counter, offsets, fold, sums,
                                       distances);
  }
  StoreLargest(point, codes, LargestBytes(distances), largest);
}

template <DataType kType, bool kOdd>
HWY_INLINE uint8_t* RequantizeBytesOf(const hbi::Point& point, const ScaleCodes& codes,
                                      const ScaleCodes& own, const int8_t* sums,
                                      const float* results, uint8_t* packed, std::byte* y) {
  const float *const steps = point.sum->step, *const factors = point.result->factor;
  const BytePacker<kOdd> pack(point.result_width);
  const ByteNarrower<kOdd> narrow;
  const ByteClamp clamp(point.k2);
  const __m256i zero = Bytes(point.k2);
  const __m256 half =
      _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(kOneBits + hbi::kRoundHalfUp)));
  for (size_t b = 0; b < hbi::kBlocks; b += 2, sums += kTwoBlocks) {
    const __m256 step[2] = {_mm256_set1_ps(steps[codes.of[b]]),
                            _mm256_set1_ps(steps[codes.of[b + 1]])};
    const __m256 factor[2] = {_mm256_set1_ps(factors[own.of[b]]),
                              _mm256_set1_ps(factors[own.of[b + 1]])};
    const auto value = [&](size_t block, size_t i) HWY_ATTR {
      const __m256 v = _mm256_mul_ps(FloatsOfBytes(sums + block * kBlock + i * 8), step[block]);
      return _mm256_add_ps(_mm256_mul_ps(v, factor[block]), half);
    };
    Pairs made;
    for (size_t i = 0; i < 2; ++i) {
      made.of[i] = clamp(kOdd ? narrow(value(0, i), value(1, i), value(0, i + 2), value(1, i + 2))
                              : narrow(value(i, 0), value(i, 1), value(i, 2), value(i, 3)));
    }
    packed = pack(made, packed);
    if (y == nullptr) continue;
    DecodePairs<kType, kOdd>(made, zero, results, own.of + b, y);
    y += kTwoBlocks * kSize<kType>;
  }
  return packed;
}

// Quantizes a superblock's sums on the scales `own`, packs the codes and decodes them to y unless
// it is nullptr.
template <DataType kType, bool>
HWY_INLINE uint8_t* RequantizeBytes(const hbi::Point& point, const ScaleCodes& codes,
                                    const ScaleCodes& own, const int8_t* sums, const float* results,
                                    uint8_t* packed, std::byte* y) {
  if (point.result_width % 2 != 0) {
    return RequantizeBytesOf<kType, true>(point, codes, own, sums, results, packed, y);
  }
  return RequantizeBytesOf<kType, false>(point, codes, own, sums, results, packed, y);
}

// ---------------------------------------------------------------- other superblocks

namespace {
const hbi::Kernels& KernelsOfTarget();
}  // namespace

// A superblock's elements as floats, converted unless they are.
template <DataType kType>
class Floats {
 public:
  HWY_INLINE const float* Of(const std::byte* x) {
    if constexpr (kType == DataType::kFloat32) return reinterpret_cast<const float*>(x);
    ToFloat(kType, x, floats_, kSuperblock);
    return floats_;
  }
  // Where to write them; Put completes it.
  HWY_INLINE float* RoomFor(std::byte* y) {
    return kType == DataType::kFloat32 ? reinterpret_cast<float*>(y) : floats_;
  }
  HWY_INLINE void Put(std::byte* y) const {
    if constexpr (kType != DataType::kFloat32) FromFloat(kType, floats_, y, kSuperblock);
  }

 private:
  HWY_ALIGN float floats_[kType == DataType::kFloat32 ? 1 : kSuperblock];
};

struct WordBytes {
  uint8_t bytes[hbi::kWordBytes];
  explicit HWY_INLINE WordBytes(uint32_t word) { hbi::StoreWord(word, bytes, 0); }
};

template <DataType kType, class MakeOffsets>
HWY_INLINE uint8_t* EncodeWide(const hbi::Point& point, uint32_t word, const std::byte* x,
                               uint32_t counter, const hbi::Offsets& offsets, uint8_t* out) {
  const WordBytes words(word);
  Floats<kType> floats;
  const hbi::QuantizeArgs args{.x = floats.Of(x),
                               .words = words.bytes,
                               .factor = point.sum->factor,
                               .k = point.k,
                               .counter = counter,
                               .offsets = offsets};
  const hbi::Kernels& kernels = KernelsOfTarget();
  if constexpr (std::is_same_v<MakeOffsets, ToHalves>) {
    uint16_t tile[kSuperblock];
    kernels.quantize_nearest(args, tile);
    kernels.pack(tile, point.own_width, out, 1);
  } else {
    kernels.encode(args, point.own_width, out);
  }
  return out + hbi::PackedBytes(point.own_width);
}

// Kernels::strip_pays: of the superblocks with levels, half go in bytes, or three quarters in the
// owner's step.
inline bool StripPays(const hbi::Strip& strip, const hbi::Offsets& offsets, uint32_t contributions,
                      uint32_t total) {
  if (MovesOf(offsets) == Moves::kNone) return false;
  uint32_t coded = 0, in_bytes = 0;
  for (uint32_t s = 0; s < strip.superblocks; ++s) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    const bool fits =
        total == 1 ? HasByteLevels(point.k) : SumsFitBytes(point, contributions, total);
    coded += point.k != 0 ? 1 : 0;
    in_bytes += point.k != 0 && fits ? 1 : 0;
  }
  return 4 * in_bytes >= (total == 1 ? 2 : 3) * coded;
}

// Decodes a strip of fp32, in runs of superblocks of the same point.
HWY_INLINE const uint8_t* DecodeRuns(const hbi::Strip& strip, const hbi::StripDecoding& how,
                                     const uint8_t* in, std::byte* y) {
  for (uint32_t s = 0, run = 1; s < strip.superblocks; s += run, y += run * kSuperblock * 4) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    run = 1;
    if (point.k == 0) {
      PutUncoded<DataType::kFloat32>(hbi::LoadWord(how.agreed, s), y);
      continue;
    }
    while (s + run < strip.superblocks && strip.plan[s + run] == strip.plan[s]) ++run;
    const DecodedFields fields(point, how);
    KernelsOfTarget().unpack_decode({.words = strip.words + size_t{s} * hbi::kWordBytes,
                                     .step = fields.steps,
                                     .zero = fields.zero,
                                     .superblocks = run},
                                    in, fields.width, reinterpret_cast<float*>(y));
    in += size_t{run} * hbi::PackedBytes(fields.width);
  }
  return in;
}

template <DataType kType>
HWY_INLINE void DecodeWide(uint32_t width, uint32_t zero, const float* steps, uint32_t word, bool,
                           const uint8_t** in, std::byte* y) {
  const WordBytes words(word);
  Floats<kType> floats;
  KernelsOfTarget().unpack_decode({.words = words.bytes, .step = steps, .zero = zero}, *in, width,
                                  floats.RoomFor(y));
  floats.Put(y);
  *in += hbi::PackedBytes(width);
}

// Sums a superblock's contributions and writes its blocks' largest magnitudes.
template <DataType kType, bool kMasked>
HWY_INLINE void SumWide(const hbi::Strip& strip, uint32_t s, const hbi::StripFold& fold,
                        int16_t* sums, float* largest) {
  const hbi::Kernels& kernels = KernelsOfTarget();
  const hbi::Point& point = strip.points[strip.plan[s]];
  auto* const tile = reinterpret_cast<uint16_t*>(sums);
  Floats<kType> floats;
  kernels.quantize({.x = floats.Of(fold.own + size_t{s} * kSuperblock * kSize<kType>),
                    .words = strip.words + size_t{s} * hbi::kWordBytes,
                    .factor = point.sum->factor,
                    .k = point.k,
                    .counter = fold.counter + s * (kSuperblock / 2),
                    .offsets = fold.offsets},
                   tile);
  const uint32_t width = hbi::Width(fold.contributions, point.k);
  for (hbi::Source& source : fold.packed_sources) {
    kernels.unpack_add(source.at, width, tile, 1);
    source.at += hbi::PackedBytes(width);
  }
  const ScaleCodes codes(hbi::LoadWord(strip.words, s));
  const V16 zero = hn::Set(D16(), static_cast<uint16_t>(fold.total * point.k));
  const auto of_block = [&](size_t block) HWY_ATTR {
    return LargestOfSums(tile + block * kBlock, zero, point.sum->step[codes.of[block]]);
  };
  const V32 fours[2] = {MaximaOfFourBlocks(of_block, 0), MaximaOfFourBlocks(of_block, 4)};
  const VF most = hn::BitCast(DF(), MaxOfParts(fours));
  hn::Store(hn::Mul(most, hn::Set(DF(), point.result->own)), DF(), largest);
}

// Results of superblock s from its sums: to fold->packed and, unless it is nullptr, to y.
template <DataType kType>
HWY_INLINE void PutWide(const hbi::Strip& strip, uint32_t s, uint32_t own_word,
                        const float* results, int16_t* sums, hbi::StripFold* fold, std::byte* y) {
  const hbi::Kernels& kernels = KernelsOfTarget();
  const hbi::Point& point = strip.points[strip.plan[s]];
  auto* const tile = reinterpret_cast<uint16_t*>(sums);
  const WordBytes own(own_word);
  RequantizeBlocks({.sum = {.words = strip.words + size_t{s} * hbi::kWordBytes,
                            .step = point.sum->step,
                            .zero = fold->total * point.k},
                    .factor = point.result->factor,
                    .k = point.k2},
                   own.bytes, tile);
  kernels.pack(tile, point.result_width, fold->packed, 1);
  fold->packed += hbi::PackedBytes(point.result_width);
  if (y == nullptr) return;
  Floats<kType> floats;
  kernels.decode({.words = own.bytes, .step = results, .zero = point.k2}, tile, floats.RoomFor(y));
  floats.Put(y);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS_AVX2

#endif  // per-target include guard
