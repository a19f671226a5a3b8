// SPDX-License-Identifier: Apache-2.0
//
// Strips (hbi_kernels.h), with the byte permutations of AVX-512 VBMI. All widths of pairs take the
// same instructions, with other constants: the widths of neighbouring superblocks often differ, and
// a branch on them would be unpredictable. Included once per target, after hbi_quantize-inl.h.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/level_table.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "compress/kernels/hbi_strip_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_INL_H_
#endif

#undef INCCL_HBI_STRIPS
#if INCCL_HBI_VECTORS && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INCCL_HBI_STRIPS 1
#else
#define INCCL_HBI_STRIPS 0
#endif

#if INCCL_HBI_STRIPS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kTwoBlocks = 2 * kBlock;  // elements whose codes fill two vectors
static_assert(kFields == kBlock);

// The codes of two blocks, or sums of them.
struct TwoBlocks {
  V16 lower, upper;
};

// ---------------------------------------------------------------- elements

template <DataType kType>
inline constexpr size_t kSize = kType == DataType::kFloat32 ? 4 : 2;

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

// Stores the 32 elements of a block. No NaN has bits set that rounding to bf16 would carry.
template <DataType kType>
HWY_INLINE void StoreBlock(__m512 low, __m512 high, std::byte* y) {
  if constexpr (kType == DataType::kFloat32) {
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

// ---------------------------------------------------------------- packing

HWY_INLINE __m512i Constant(const void* bytes) { return _mm512_load_si512(bytes); }
HWY_INLINE V16 Word(uint16_t value) { return hn::Set(D16(), value); }
HWY_INLINE V16 Chosen(TwoBlocks from, const uint16_t* order) {
  return V16{_mm512_permutex2var_epi16(from.lower.raw, Constant(order), from.upper.raw)};
}

// Packs two blocks of codes of a width in half-bits.
class StripPacker {
 public:
  explicit HWY_INLINE StripPacker(uint32_t width)
      : paired_(width <= hbi::kWidestPair),
        table_(hbi::kStripTables.fields[paired_ ? width : width / 2]),
        order_(hbi::kStripTables.orders[width % 2]),
        bytes_(4 * (paired_ ? width : width / 2)),
        rotations_(_mm512_set1_epi64(static_cast<int64_t>(table_.rotations))),
        raises_(_mm512_set1_epi32(static_cast<int32_t>(table_.raises))),
        base_(Word(table_.base)) {}

  // Writes 4 w bytes, and others up to 64 from there. Returns where the next ones go.
  HWY_INLINE uint8_t* operator()(TwoBlocks codes, uint8_t* out) const {
    if (!paired_) return Store(codes.upper, Store(codes.lower, out));
    const V16 first = Chosen(codes, order_.first), second = Chosen(codes, order_.second);
    return Store(hn::Add(first, hn::Mul(second, base_)), out);
  }

 private:
  HWY_INLINE uint8_t* Store(V16 fields, uint8_t* out) const {
    const __m512i twos = _mm512_rolv_epi32(_mm512_mullo_epi16(fields.raw, raises_), rotations_);
    const __m512i fours = _mm512_multishift_epi64_epi8(Constant(table_.shifts), twos);
    const __m512i own = _mm512_permutexvar_epi8(Constant(table_.gather), fours);
    const __m512i shared =
        _mm512_maskz_permutexvar_epi8(table_.twice, Constant(table_.second), fours);
    _mm512_storeu_si512(out, _mm512_or_si512(own, shared));
    return out + bytes_;
  }

  const bool paired_;
  const hbi::FieldTable& table_;
  const hbi::PairOrder& order_;
  const size_t bytes_;
  const __m512i rotations_, raises_;
  const V16 base_;
};

// Unpacks two blocks. The sums of what Fields returns have the order of pairs; InOrder changes it.
class StripUnpacker {
 public:
  explicit HWY_INLINE StripUnpacker(uint32_t width)
      : paired_(width <= hbi::kWidestPair),
        table_(hbi::kStripTables.fields[paired_ ? width : width / 2]),
        order_(hbi::kStripTables.orders[width % 2]),
        offsets_(Constant(paired_ ? table_.pair_offsets : table_.offsets)),
        bytes_(4 * (paired_ ? width : width / 2)),
        mask_(Word(paired_ ? table_.pair_mask : table_.mask)),
        times_(Word(table_.times)),
        base_(Word(table_.pair_base)),
        shift_(_mm_cvtsi32_si128(table_.shift)) {}

  // Reads 64 bytes from each position; advances *in.
  HWY_INLINE TwoBlocks Fields(const uint8_t** in) const {
    const V16 fields = Load(in);
    if (!paired_) return {fields, Load(in)};
    const V16 second{_mm512_srl_epi16(hn::MulHigh(fields, times_).raw, shift_)};
    return {hn::Sub(fields, hn::Mul(second, base_)), second};
  }
  HWY_INLINE TwoBlocks InOrder(TwoBlocks pairs) const {
    if (!paired_) return pairs;
    return {Chosen(pairs, order_.lower), Chosen(pairs, order_.upper)};
  }

 private:
  HWY_INLINE V16 Load(const uint8_t** in) const {
    const __m512i lanes = _mm512_permutexvar_epi8(Constant(table_.spread), _mm512_loadu_si512(*in));
    *in += bytes_;
    return hn::And(V16{_mm512_multishift_epi64_epi8(offsets_, lanes)}, mask_);
  }

  const bool paired_;
  const hbi::FieldTable& table_;
  const hbi::PairOrder& order_;
  const __m512i offsets_;
  const size_t bytes_;
  const V16 mask_, times_, base_;
  const __m128i shift_;
};

// ---------------------------------------------------------------- quantization

// Quantizes two blocks of elements, with the summands that offsets(counter, summands) makes.
template <DataType kType, class MakeOffsets>
HWY_INLINE TwoBlocks QuantizeTwoBlocks(const std::byte* x, const float* factors,
                                       const uint32_t* codes, const MakeOffsets& offsets,
                                       V32* counter, VI16 twice_k) {
  const auto block = [&](size_t b) HWY_ATTR {
    V32 summands[2];
    offsets(counter, summands);
    const __m512 factor = _mm512_set1_ps(factors[codes[b]]);
    const auto fixed = [&](size_t i) HWY_ATTR {
      const __m512 v = Load16<kType>(x + (2 * b + i) * 16 * kSize<kType>);
      const VI32 value{_mm512_cvtps_epi32(_mm512_mul_ps(v, factor))};
      return hn::Add(value, hn::BitCast(DI32(), summands[i]));
    };
    const VI32 low = fixed(0);
    return CodesOfFixed(low, fixed(1), twice_k);
  };
  const V16 lower = block(0);
  return {lower, block(1)};
}

// Makes the summands of K levels to nearest.
class ToHalves {
 public:
  explicit HWY_INLINE ToHalves(const hbi::QuantizeArgs& args)
      : half_(hn::Set(D32(), args.k << 16 | hbi::kRoundHalfUp)) {}
  HWY_INLINE void operator()(V32*, V32* summands) const { summands[0] = summands[1] = half_; }

 private:
  V32 half_;
};

template <class MakeOffsets>
HWY_INLINE MakeOffsets OffsetsFor(const hbi::Offsets& offsets, uint32_t k) {
  hbi::QuantizeArgs args;
  args.k = k;
  args.offsets = offsets;
  return MakeOffsets(args);
}

HWY_INLINE VI16 TwiceOf(uint32_t k) { return hn::Set(DI16(), static_cast<int16_t>(2 * k)); }

template <DataType kType, class MakeOffsets>
uint8_t* EncodeStripOf(const hbi::Strip& strip, const std::byte* x, uint32_t counter,
                       const hbi::Offsets& offsets, uint8_t* out) {
  V32 counters = hn::Add(hn::Set(D32(), counter), hn::Iota(D32(), 0));
  HWY_ALIGN uint32_t codes[hbi::kBlocks];
  for (uint32_t s = 0; s < strip.superblocks; ++s, x += kSuperblock * kSize<kType>) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    if (point.k == 0) {
      counters = hn::Add(counters, hn::Set(D32(), kSuperblock / 2));
      continue;
    }
    CodesOfWord(hbi::LoadWord(strip.words, s), codes);
    const StripPacker pack(point.own_width);
    const auto make = OffsetsFor<MakeOffsets>(offsets, point.k);
    const VI16 twice_k = TwiceOf(point.k);
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      out = pack(QuantizeTwoBlocks<kType>(x + b * kBlock * kSize<kType>, point.sum->factor,
                                          codes + b, make, &counters, twice_k),
                 out);
    }
  }
  return out;
}

// ---------------------------------------------------------------- decoding

// Decodes a superblock's signed codes.
template <DataType kType>
HWY_INLINE void DecodeSigned(const int16_t* codes, const float* steps, const uint32_t* scales,
                             std::byte* y) {
  for (size_t b = 0; b < hbi::kBlocks; ++b, codes += kBlock, y += kBlock * kSize<kType>) {
    const __m512 step = _mm512_set1_ps(steps[scales[b]]);
    const auto value = [&](size_t i) HWY_ATTR {
      const hn::Half<DI16> half;
      const VI32 code = hn::PromoteTo(DI32(), hn::Load(half, codes + 16 * i));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(code.raw), step);
    };
    StoreBlock<kType>(value(0), value(1), y);
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

HWY_INLINE void StoreMinus(TwoBlocks codes, V16 zero, int16_t* to) {
  hn::Store(hn::BitCast(DI16(), hn::Sub(codes.lower, zero)), DI16(), to);
  hn::Store(hn::BitCast(DI16(), hn::Sub(codes.upper, zero)), DI16(), to + kBlock);
}

template <DataType kType>
const uint8_t* DecodeStripOf(const hbi::Strip& strip, const hbi::StripDecoding& how,
                             const uint8_t* in, std::byte* y) {
  HWY_ALIGN uint32_t scales[hbi::kBlocks];
  HWY_ALIGN int16_t tile[kSuperblock];
  for (uint32_t s = 0; s < strip.superblocks; ++s, y += kSuperblock * kSize<kType>) {
    const hbi::Point& point = strip.points[strip.plan[s]];
    const uint32_t word = hbi::LoadWord(strip.words, s);
    if (point.k == 0) {
      PutUncoded<kType>(hbi::LoadWord(how.agreed, s), y);
      continue;
    }
    const hbi::LevelTable& table = how.result ? *point.result : *point.sum;
    CodesOfWord(word, scales);
    const StripUnpacker unpack(how.result ? point.result_width : point.sum_width);
    const V16 zero =
        Word(static_cast<uint16_t>(how.result ? point.k2 : how.contributions * uint32_t{point.k}));
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      StoreMinus(unpack.InOrder(unpack.Fields(&in)), zero, tile + b * kBlock);
    }
    DecodeSigned<kType>(tile, how.average ? table.average : table.step, scales, y);
  }
  return in;
}

// ---------------------------------------------------------------- the owner's step

inline constexpr uint32_t kFolded = kLanes64;  // superblocks at once: their words fill a vector

// The largest 16-bit lane of each of eight vectors, in the lowest quarters of 64-bit lanes.
HWY_INLINE V64 LargestLanes(const V16* v) {
  const auto pairs = [](V16 a, V16 b) HWY_ATTR {
    return _mm512_max_epu16(_mm512_unpacklo_epi64(a.raw, b.raw),
                            _mm512_unpackhi_epi64(a.raw, b.raw));
  };
  // The 128-bit parts of a, then those of b: 0 and 1 combined, 2 and 3.
  const auto parts = [](__m512i a, __m512i b) HWY_ATTR {
    return _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  };
  const __m512i low = parts(pairs(v[0], v[1]), pairs(v[2], v[3]));
  const __m512i high = parts(pairs(v[4], v[5]), pairs(v[6], v[7]));
  __m512i most = parts(low, high);
  most = _mm512_max_epu16(most, _mm512_srli_epi64(most, 32));
  most = _mm512_max_epu16(most, _mm512_srli_epi64(most, 16));
  return hn::And(V64{most}, hn::Set(D64(), 0xffffu));
}

// Sums a superblock's contributions, less zero, and writes its blocks' largest magnitudes.
template <DataType kType, bool kMasked>
HWY_INLINE void SumSuperblock(const hbi::Strip& strip, uint32_t s, const hbi::StripFold& fold,
                              int16_t* sums, float* largest) {
  const hbi::Point& point = strip.points[strip.plan[s]];
  HWY_ALIGN uint32_t codes[hbi::kBlocks];
  CodesOfWord(hbi::LoadWord(strip.words, s), codes);
  const StripUnpacker unpack(fold.contributions == 1 ? point.own_width
                                                     : hbi::Width(fold.contributions, point.k));
  const auto make = OffsetsFor<ToOffsets<kMasked>>(fold.offsets, point.k);
  const VI16 twice_k = TwiceOf(point.k);
  TwoBlocks totals[hbi::kBlocks / 2];
  bool first = true;
  uint32_t contributions = 0;
  for (hbi::Source& source : fold.sources) {
    if (source.elements != nullptr) continue;
    for (TwoBlocks& total : totals) {
      const TwoBlocks more = unpack.Fields(&source.at);
      total = first ? more
                    : TwoBlocks{hn::Add(total.lower, more.lower), hn::Add(total.upper, more.upper)};
    }
    first = false;
    contributions += source.contributions;
  }
  for (TwoBlocks& total : totals) {
    total = first ? TwoBlocks{hn::Zero(D16()), hn::Zero(D16())} : unpack.InOrder(total);
  }
  for (const hbi::Source& source : fold.sources) {
    if (source.elements == nullptr) continue;
    V32 counters =
        hn::Add(hn::Set(D32(), fold.counter + s * (kSuperblock / 2)), hn::Iota(D32(), 0));
    const std::byte* x = source.elements + size_t{s} * kSuperblock * kSize<kType>;
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      const TwoBlocks own = QuantizeTwoBlocks<kType>(
          x + b * kBlock * kSize<kType>, point.sum->factor, codes + b, make, &counters, twice_k);
      TwoBlocks& total = totals[b / 2];
      total = {hn::Add(total.lower, own.lower), hn::Add(total.upper, own.upper)};
    }
    ++contributions;
  }
  const V16 zero = Word(static_cast<uint16_t>(contributions * point.k));
  V16 distances[hbi::kBlocks];
  for (size_t b = 0; b < hbi::kBlocks; ++b) {
    const TwoBlocks& total = totals[b / 2];
    const VI16 sum = hn::BitCast(DI16(), hn::Sub(b % 2 == 0 ? total.lower : total.upper, zero));
    hn::Store(sum, DI16(), sums + b * kBlock);
    distances[b] = hn::BitCast(D16(), hn::Abs(sum));
  }
  const __m256i most = _mm512_cvtepi64_epi32(LargestLanes(distances).raw);
  HWY_ALIGN float steps[hbi::kBlocks];
  for (size_t b = 0; b < hbi::kBlocks; ++b) steps[b] = point.sum->step[codes[b]];
  const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(most), _mm256_load_ps(steps));
  _mm256_store_ps(largest, _mm256_mul_ps(scaled, _mm256_set1_ps(point.result->own)));
}

// Quantizes a superblock's sums on the scales `own` and replaces them by the signed codes. Writes
// the packed codes if `packed` is not nullptr.
HWY_INLINE uint8_t* RequantizeSuperblock(const hbi::Point& point, const uint32_t* codes,
                                         const uint32_t* own, bool poison, int16_t* sums,
                                         uint8_t* packed) {
  const StripPacker pack(point.result_width);
  const VI32 summand =
      hn::Set(DI32(), static_cast<int32_t>(uint32_t{point.k2} << 16 | hbi::kRoundHalfUp));
  const VI16 twice_k = TwiceOf(point.k2);
  const V16 zero = Word(point.k2);
  for (size_t b = 0; b < hbi::kBlocks; b += 2, sums += kTwoBlocks) {
    const auto block = [&](size_t i) HWY_ATTR {
      const __m512 step = _mm512_set1_ps(point.sum->step[codes[b + i]]);
      const __m512 factor = _mm512_set1_ps(point.result->factor[own[b + i]]);
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
    TwoBlocks made{lower, block(1)};
    if (poison) made = {zero, zero};
    if (packed != nullptr) packed = pack(made, packed);
    StoreMinus(made, zero, sums);
  }
  return packed;
}

// Results of superblock s from its sums.
template <DataType kType>
HWY_INLINE void PutResult(const hbi::Strip& strip, uint32_t s, uint32_t own_word, int16_t* sums,
                          hbi::StripFold* fold) {
  const hbi::Point& point = strip.points[strip.plan[s]];
  const uint32_t word = hbi::LoadWord(strip.words, s);
  std::byte* const y =
      fold->elements == nullptr ? nullptr : fold->elements + size_t{s} * kSuperblock * kSize<kType>;
  if (point.k == 0) {
    if (y != nullptr) PutUncoded<kType>(word, y);
    return;
  }
  HWY_ALIGN uint32_t codes[hbi::kBlocks], own[hbi::kBlocks];
  CodesOfWord(word, codes);
  CodesOfWord(own_word, own);
  fold->packed =
      RequantizeSuperblock(point, codes, own, hbi::IsPoison(own_word), sums, fold->packed);
  if (y == nullptr) return;
  DecodeSigned<kType>(sums, fold->average ? point.result->average : point.result->step, own, y);
}

template <DataType kType, bool kMasked>
void FoldStripOf(const hbi::Strip& strip, hbi::StripFold* fold) {
  HWY_ALIGN int16_t sums[kFolded * kSuperblock];
  HWY_ALIGN float largest[kFolded * hbi::kBlocks] = {};
  static_assert(sizeof largest == 4 * sizeof(V32));
  for (uint32_t first = 0; first < strip.superblocks; first += kFolded) {
    const uint32_t left = strip.superblocks - first, count = left < kFolded ? left : kFolded;
    for (uint32_t i = 0; i < count; ++i) {
      float* const blocks = largest + i * hbi::kBlocks;
      if (strip.points[strip.plan[first + i]].k == 0) {
        _mm256_store_ps(blocks, _mm256_setzero_ps());
      } else {
        SumSuperblock<kType, kMasked>(strip, first + i, *fold, sums + i * kSuperblock, blocks);
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
      PutResult<kType>(strip, first + i, hbi::LoadWord(words, i), sums + i * kSuperblock, fold);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS

#endif  // per-target include guard
