// SPDX-License-Identifier: Apache-2.0
//
// Superblocks of strips (hbi_kernels.h) in 16-bit lanes, with the byte permutations of AVX-512
// VBMI. All widths of pairs take the same instructions, with other constants: the widths of
// neighbouring superblocks often differ, and a branch on them would be unpredictable. Included once
// per target, after hbi_strip_common-inl.h.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "compress/kernels/hbi_strip_vbmi_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_VBMI_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_VBMI_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_VBMI_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_VBMI_INL_H_
#endif

#if INCCL_HBI_STRIPS_VBMI
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kFields == kBlock);

// The codes of two blocks, or sums of them.
struct TwoBlocks {
  V16 lower, upper;
};

// ---------------------------------------------------------------- packing

HWY_INLINE __m512i Constant(const void* bytes) { return _mm512_load_si512(bytes); }
HWY_INLINE V16 Word(uint16_t value) { return hn::Set(D16(), value); }
HWY_INLINE V16 Chosen(TwoBlocks from, __m512i order) {
  return V16{_mm512_permutex2var_epi16(from.lower.raw, order, from.upper.raw)};
}
HWY_INLINE TwoBlocks Sum(TwoBlocks a, TwoBlocks b) {
  return {hn::Add(a.lower, b.lower), hn::Add(a.upper, b.upper)};
}

HWY_INLINE const hbi::FieldTable& FieldsOf(uint32_t width) {
  return hbi::kStripTables.fields[width <= hbi::kWidestPair ? width : width / 2];
}
HWY_INLINE const hbi::PairOrder& OrderOf(uint32_t width) {
  return hbi::kStripTables.orders[width % 2];
}

// Packs fields by the constants of their FieldTable. Writes 64 bytes and returns `out`.
HWY_INLINE uint8_t* StoreFields(__m512i fields, __m512i raises, __m512i rotations, __m512i shifts,
                                __m512i gather, __m512i second, __mmask64 twice, uint8_t* out) {
  const __m512i twos = _mm512_rolv_epi32(_mm512_mullo_epi16(fields, raises), rotations);
  const __m512i fours = _mm512_multishift_epi64_epi8(shifts, twos);
  const __m512i own = _mm512_permutexvar_epi8(gather, fours);
  const __m512i shared = _mm512_maskz_permutexvar_epi8(twice, second, fours);
  _mm512_storeu_si512(out, _mm512_or_si512(own, shared));
  return out;
}

// Packs two blocks of codes of a width in half-bits.
class StripPacker {
 public:
  explicit HWY_INLINE StripPacker(uint32_t width)
      : StripPacker(width <= hbi::kWidestPair, FieldsOf(width), OrderOf(width)) {}

  // Writes 4 w bytes, and others up to 64 from there. Returns where the next ones go.
  HWY_INLINE uint8_t* operator()(TwoBlocks codes, uint8_t* out) const {
    if (!paired_) return Store(codes.upper, Store(codes.lower, out));
    const V16 first = Chosen(codes, first_), second = Chosen(codes, second_);
    return Store(hn::Add(first, hn::Mul(second, base_)), out);
  }

 private:
  HWY_INLINE StripPacker(bool paired, const hbi::FieldTable& table, const hbi::PairOrder& order)
      : paired_(paired),
        bytes_(table.bytes),
        twice_(table.twice),
        first_(Constant(order.first)),
        second_(Constant(order.second)),
        shifts_(Constant(table.shifts)),
        gather_(Constant(table.gather)),
        gather_second_(Constant(table.second)),
        rotations_(_mm512_set1_epi64(static_cast<int64_t>(table.rotations))),
        raises_(_mm512_set1_epi32(static_cast<int32_t>(table.raises))),
        base_(Word(table.base)) {}

  HWY_INLINE uint8_t* Store(V16 fields, uint8_t* out) const {
    return StoreFields(fields.raw, raises_, rotations_, shifts_, gather_, gather_second_, twice_,
                       out) +
           bytes_;
  }

  const bool paired_;
  const size_t bytes_;
  const __mmask64 twice_;
  const __m512i first_, second_, shifts_, gather_, gather_second_, rotations_, raises_;
  const V16 base_;
};

// Unpacks two blocks. The sums of what Fields returns have the order of pairs; InOrder changes it.
class StripUnpacker {
 public:
  explicit HWY_INLINE StripUnpacker(uint32_t width)
      : StripUnpacker(width <= hbi::kWidestPair, FieldsOf(width), OrderOf(width)) {}

  // Reads 64 bytes from each position; advances *in.
  HWY_INLINE TwoBlocks Fields(const uint8_t** in) const {
    const V16 fields = Load(in);
    if (!paired_) return {fields, Load(in)};
    const V16 second{_mm512_srl_epi16(hn::MulHigh(fields, times_).raw, shift_)};
    return {hn::Sub(fields, hn::Mul(second, base_)), second};
  }
  HWY_INLINE TwoBlocks InOrder(TwoBlocks pairs) const {
    if (!paired_) return pairs;
    return {Chosen(pairs, lower_), Chosen(pairs, upper_)};
  }

 private:
  HWY_INLINE StripUnpacker(bool paired, const hbi::FieldTable& table, const hbi::PairOrder& order)
      : paired_(paired),
        bytes_(table.bytes),
        spread_(Constant(table.spread)),
        offsets_(Constant(paired ? table.pair_offsets : table.offsets)),
        lower_(Constant(order.lower)),
        upper_(Constant(order.upper)),
        mask_(Word(paired ? table.pair_mask : table.mask)),
        times_(Word(table.times)),
        base_(Word(table.pair_base)),
        shift_(_mm_cvtsi32_si128(table.shift)) {}

  HWY_INLINE V16 Load(const uint8_t** in) const {
    const __m512i lanes = _mm512_permutexvar_epi8(spread_, _mm512_loadu_si512(*in));
    *in += bytes_;
    return hn::And(V16{_mm512_multishift_epi64_epi8(offsets_, lanes)}, mask_);
  }

  const bool paired_;
  const size_t bytes_;
  const __m512i spread_, offsets_, lower_, upper_;
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

template <class MakeOffsets>
HWY_INLINE MakeOffsets OffsetsFor(const hbi::Offsets& offsets, uint32_t k) {
  hbi::QuantizeArgs args;
  args.k = k;
  args.offsets = offsets;
  return MakeOffsets(args);
}

HWY_INLINE VI16 TwiceOf(uint32_t k) { return hn::Set(DI16(), static_cast<int16_t>(2 * k)); }

// ---------------------------------------------------------------- decoding

// Decodes a superblock's signed codes.
template <DataType kType, bool kStream = false>
HWY_INLINE void DecodeSignedTo(const int16_t* codes, const float* steps, const ScaleCodes& scales,
                               std::byte* y) {
  for (size_t b = 0; b < hbi::kBlocks; ++b, codes += kBlock, y += kBlock * kSize<kType>) {
    const __m512 step = _mm512_set1_ps(steps[scales.of[b]]);
    const auto value = [&](size_t i) HWY_ATTR {
      const hn::Half<DI16> half;
      const VI32 code = hn::PromoteTo(DI32(), hn::Load(half, codes + 16 * i));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(code.raw), step);
    };
    StoreBlock<kType, kStream>(value(0), value(1), y);
  }
}

template <DataType kType>
HWY_INLINE void DecodeSigned(const int16_t* codes, const float* steps, const ScaleCodes& scales,
                             bool stream, std::byte* y) {
  if constexpr (kType == DataType::kFloat32) {
    if (stream && reinterpret_cast<uintptr_t>(y) % 64 == 0) {
      return DecodeSignedTo<kType, true>(codes, steps, scales, y);
    }
  }
  DecodeSignedTo<kType>(codes, steps, scales, y);
}

HWY_INLINE void StoreMinus(TwoBlocks codes, V16 zero, int16_t* to) {
  hn::Store(hn::BitCast(DI16(), hn::Sub(codes.lower, zero)), DI16(), to);
  hn::Store(hn::BitCast(DI16(), hn::Sub(codes.upper, zero)), DI16(), to + kBlock);
}

// ---------------------------------------------------------------- superblocks

// Codes that do not go in bytes (hbi_strip-inl.h).

template <DataType kType, class MakeOffsets>
HWY_INLINE uint8_t* EncodeWide(const hbi::Point& point, uint32_t word, const std::byte* x,
                               uint32_t counter, const hbi::Offsets& offsets, uint8_t* out) {
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
  return out;
}

template <DataType kType>
HWY_INLINE void DecodeWide(uint32_t width, uint32_t zero, const float* steps, uint32_t word,
                           bool stream, const uint8_t** in, std::byte* y) {
  HWY_ALIGN int16_t tile[kSuperblock];
  const ScaleCodes scales(word);
  const StripUnpacker unpack(width);
  const V16 zeros = Word(static_cast<uint16_t>(zero));
  for (size_t b = 0; b < hbi::kBlocks; b += 2) {
    StoreMinus(unpack.InOrder(unpack.Fields(in)), zeros, tile + b * kBlock);
  }
  DecodeSigned<kType>(tile, steps, scales, stream, y);
}

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
HWY_INLINE void SumWide(const hbi::Strip& strip, uint32_t s, const hbi::StripFold& fold,
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

// Results of superblock s from its sums: to fold->packed and, unless it is nullptr, to y.
template <DataType kType>
HWY_INLINE void PutWide(const hbi::Strip& strip, uint32_t s, uint32_t own_word,
                        const float* results, int16_t* sums, hbi::StripFold* fold, std::byte* y) {
  const hbi::Point& point = strip.points[strip.plan[s]];
  const ScaleCodes own(own_word);
  if (hbi::IsPoison(own_word)) {  // every code is K2
    const StripPacker pack(point.result_width);
    const V16 zero = Word(point.k2);
    for (size_t b = 0; b < hbi::kBlocks; b += 2) {
      fold->packed = pack({zero, zero}, fold->packed);
      StoreMinus({zero, zero}, zero, sums + b * kBlock);
    }
  } else {
    const ScaleCodes codes(hbi::LoadWord(strip.words, s));
    fold->packed = RequantizeSuperblock(point, codes, own, sums, fold->packed);
  }
  if (y == nullptr) return;
  DecodeSigned<kType>(sums, results, own, strip.stream, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS_VBMI

#endif  // per-target include guard
