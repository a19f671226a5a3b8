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
#include "compress/kernels/pack_tables.h"
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

// Strips (hbi_kernels.h) of superblocks whose codes and sums fit bytes, for one instruction set.
// The 64 codes of two blocks are in one vector. Included once per target, after
// hbi_strip_vbmi-inl.h.

inline constexpr uint32_t kWidestInBytes = hbi::kWidestPair;  // half-bits of codes to decode

// Whether the codes that are summed and their sums fit bytes.
HWY_INLINE bool SumsFitBytes(const hbi::Point& point, uint32_t, uint32_t total) {
  return HasByteLevels(point.k) && HasByteLevels(point.k2) && total * point.k <= 127;
}

HWY_INLINE __m512i Bytes(uint32_t value) { return _mm512_set1_epi8(static_cast<char>(value)); }

HWY_INLINE const hbi::ByteOrder& BytesOrderOf(uint32_t width) {
  return hbi::kStripTables.bytes[width % 2];
}

// What the offsets of all superblocks share.
struct ByteOffsetsShared {
  explicit HWY_INLINE ByteOffsetsShared(const hbi::Offsets& offsets) {
    const uint32_t half = 32768u / (offsets.ranks == 0 ? 1u : offsets.ranks);
    shift = static_cast<uint16_t>(offsets.add - half);
    kept = 0x10000u - 2 * half;
    one = kOneBits + half;
    one_and_shift = one + shift;
    asm("" : "+m"(*this));
  }
  uint32_t kept, one, one_and_shift;
  uint32_t first = 0x7feb352d, second = 0x846ca68b, lanes = kLanes32;
  uint16_t shift;
};

// Makes kOne + the offsets of a superblock's elements.
template <Moves kMoves>
class ByteOffsets {
 public:
  HWY_INLINE ByteOffsets(const ByteOffsetsShared& shared, uint32_t counter)
      : counter_(hn::Add(hn::Set(D32(), counter), hn::Iota(D32(), 0))),
        upper_(hn::Set(D32(), counter >> 16)),
        lanes_(hn::Set(D32(), shared.lanes)),
        first_(hn::Set(D32(), shared.first)),
        second_(hn::Set(D32(), shared.second)),
        kept_(hn::Set(D32(), shared.kept)),
        one_(hn::Set(D32(), kMoves == Moves::kHalf ? shared.one_and_shift : shared.one)),
        shift_(hn::Set(D16(), shared.shift)) {}

  // Those of the next block.
  HWY_INLINE void operator()(__m512* low, __m512* high) {
    V32 x = hn::Mul(hn::Xor(counter_, upper_), first_);
    counter_ = hn::Add(counter_, lanes_);
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), second_);
    V32 upper = hn::ShiftRight<16>(x);
    x = hn::Xor(x, upper);
    if constexpr (kMoves == Moves::kAny) {
      x = hn::BitCast(D32(), hn::Add(hn::BitCast(D16(), x), shift_));
      upper = hn::ShiftRight<16>(x);
    }
    *low = Kept(x);
    *high = Kept(upper);
  }

 private:
  HWY_INLINE __m512 Kept(V32 random) const {  // (random & kept_) ^ one_
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(random.raw, kept_.raw, one_.raw, 0x6a));
  }

  V32 counter_;
  const V32 upper_, lanes_, first_, second_, kept_, one_;
  const V16 shift_;
};

// Takes the codes of two blocks, plus kOneByte, out of four vectors of kOne + values.
class ByteNarrower {
 public:
  explicit HWY_INLINE ByteNarrower(const hbi::ByteOrder& order)
      : narrow_(Constant(order.narrow)), second_(order.second) {}
  HWY_INLINE __m512i operator()(const __m512* values) const {
    const auto of_block = [&](size_t b) HWY_ATTR {
      return _mm512_permutex2var_epi8(_mm512_castps_si512(values[2 * b]), narrow_,
                                      _mm512_castps_si512(values[2 * b + 1]));
    };
    const __m512i first = of_block(0);
    return _mm512_mask_blend_epi8(second_, first, of_block(1));
  }

 private:
  const __m512i narrow_;
  const __mmask64 second_;
};

// Quantizes two blocks; the result is not clamped.
template <DataType kType, class MakeOffsets>
HWY_INLINE __m512i QuantizeToBytes(const std::byte* x, const float* factors, const uint32_t* codes,
                                   MakeOffsets* make, const ByteNarrower& narrow) {
  __m512 values[4];
  for (size_t b = 0; b < 2; ++b) {
    __m512 offsets[2];
    (*make)(&offsets[0], &offsets[1]);
    const __m512 factor = _mm512_set1_ps(factors[codes[b]]);
    for (size_t i = 0; i < 2; ++i) {
      const __m512 v = Load16<kType>(x + (2 * b + i) * 16 * kSize<kType>);
      values[2 * b + i] = _mm512_add_ps(_mm512_mul_ps(v, factor), offsets[i]);
    }
  }
  return narrow(values);
}

// Clamps codes plus kOneByte to [0, 2K] and adds K.
class ByteClamp {
 public:
  explicit HWY_INLINE ByteClamp(uint32_t k) : low_(Bytes(kOneByte - k)), twice_k_(Bytes(2 * k)) {}
  HWY_INLINE __m512i operator()(__m512i codes) const {
    return _mm512_min_epu8(_mm512_subs_epu8(codes, low_), twice_k_);
  }

 private:
  const __m512i low_, twice_k_;
};

// Packs two blocks of codes of at most 7 bits that are in the order of pairs, as StripPacker does.
class BytePacker {
 public:
  explicit HWY_INLINE BytePacker(uint32_t width) : BytePacker(hbi::kStripTables.fields[width]) {}
  HWY_INLINE uint8_t* operator()(__m512i codes, uint8_t* out) const {
    const __m512i fields = _mm512_maddubs_epi16(weights_, codes);
    return StoreFields(fields, raises_, rotations_, shifts_, gather_, second_, twice_, out) +
           bytes_;
  }

 private:
  explicit HWY_INLINE BytePacker(const hbi::FieldTable& table)
      : bytes_(table.bytes),
        twice_(table.twice),
        weights_(_mm512_set1_epi16(static_cast<int16_t>(table.weights))),
        raises_(_mm512_set1_epi32(static_cast<int32_t>(table.raises))),
        rotations_(_mm512_set1_epi64(static_cast<int64_t>(table.rotations))),
        shifts_(Constant(table.shifts)),
        gather_(Constant(table.gather)),
        second_(Constant(table.second)) {}

  const size_t bytes_;
  const __mmask64 twice_;
  const __m512i weights_, raises_, rotations_, shifts_, gather_, second_;
};

// Unpacks two blocks of codes, in the order of pairs.
class ByteUnpacker {
 public:
  explicit HWY_INLINE ByteUnpacker(uint32_t width)
      : ByteUnpacker(hbi::kStripTables.fields[width]) {}
  HWY_INLINE __m512i operator()(const uint8_t** in) const {
    const __m512i lanes = _mm512_permutexvar_epi8(spread_, _mm512_loadu_si512(*in));
    *in += bytes_;
    const __m512i fields = _mm512_and_si512(_mm512_multishift_epi64_epi8(offsets_, lanes), mask_);
    const __m512i second = _mm512_srl_epi16(_mm512_mulhi_epu16(fields, times_), shift_);
    return _mm512_add_epi16(fields, _mm512_mullo_epi16(second, split_));
  }

 private:
  explicit HWY_INLINE ByteUnpacker(const hbi::FieldTable& table)
      : bytes_(table.bytes),
        spread_(Constant(table.spread)),
        offsets_(Constant(table.pair_offsets)),
        mask_(_mm512_set1_epi16(static_cast<int16_t>(table.pair_mask))),
        times_(_mm512_set1_epi16(static_cast<int16_t>(table.times))),
        split_(_mm512_set1_epi16(static_cast<int16_t>(table.split))),
        shift_(_mm_cvtsi32_si128(table.shift)) {}

  const size_t bytes_;
  const __m512i spread_, offsets_, mask_, times_, split_;
  const __m128i shift_;
};

// Decodes codes that are in the order of pairs.
template <DataType kType, bool kStream>
class ByteDecoder {
 public:
  HWY_INLINE ByteDecoder(uint32_t width, uint32_t zero)
      : order_(BytesOrderOf(width)),
        zero_(_mm512_set1_ps(8388608.0f + static_cast<float>(zero))),
        ones_(_mm512_set1_epi32(0x4b000000)) {}

  // Of two blocks with these steps.
  HWY_INLINE void operator()(__m512i codes, const float* steps, const uint32_t* scales,
                             std::byte* y) const {
    for (size_t b = 0; b < 2; ++b) {
      const __m512 step = _mm512_set1_ps(steps[scales[b]]);
      const auto value = [&](size_t i) HWY_ATTR {  // from 2^23 + the code
        const __m512i order = Constant(order_.widen[2 * b + i]);
        const __m512 v = _mm512_castsi512_ps(_mm512_permutex2var_epi8(codes, order, ones_));
        return _mm512_mul_ps(_mm512_sub_ps(v, zero_), step);
      };
      const __m512 low = value(0);
      StoreBlock<kType, kStream>(low, value(1), y + b * kBlock * kSize<kType>);
    }
  }

 private:
  const hbi::ByteOrder& order_;
  const __m512 zero_;
  const __m512i ones_;
};

// ---------------------------------------------------------------- superblocks

// Encodes a superblock.
template <DataType kType, Moves kMoves>
HWY_INLINE uint8_t* EncodeBytes(const hbi::Point& point, uint32_t word, const std::byte* x,
                                uint32_t counter, const ByteOffsetsShared& offsets, uint8_t* out) {
  const ScaleCodes codes(word);
  const BytePacker pack(point.own_width);
  const ByteNarrower narrow(BytesOrderOf(point.own_width));
  const ByteClamp clamp(point.k);
  ByteOffsets<kMoves> make(offsets, counter);
  for (size_t b = 0; b < hbi::kBlocks; b += 2, x += kTwoBlocks * kSize<kType>) {
    out =
        pack(clamp(QuantizeToBytes<kType>(x, point.sum->factor, codes.of + b, &make, narrow)), out);
  }
  return out;
}

// Decodes a superblock.
template <DataType kType, bool kStream>
HWY_INLINE void DecodeBytesTo(uint32_t width, uint32_t zero, const float* steps, uint32_t word,
                              const uint8_t** in, std::byte* y) {
  const ScaleCodes scales(word);
  const ByteUnpacker unpack(width);
  const ByteDecoder<kType, kStream> decode(width, zero);
  for (size_t b = 0; b < hbi::kBlocks; b += 2, y += kTwoBlocks * kSize<kType>) {
    decode(unpack(in), steps, scales.of + b, y);
  }
}

template <DataType kType>
HWY_INLINE void DecodeBytes(uint32_t width, uint32_t zero, const float* steps, uint32_t word,
                            bool stream, const uint8_t** in, std::byte* y) {
  if constexpr (kType == DataType::kFloat32) {
    if (Streams<kType>(stream, y)) {
      return DecodeBytesTo<kType, true>(width, zero, steps, word, in, y);
    }
  }
  DecodeBytesTo<kType, false>(width, zero, steps, word, in, y);
}

// Sums a superblock's contributions, less zero.
template <DataType kType, Moves kMoves>
HWY_INLINE void SumInBytes(const hbi::Point& point, uint32_t word, const std::byte* x,
                           uint32_t counter, const ByteOffsetsShared& offsets,
                           const hbi::StripFold& fold, int8_t* sums, float* largest) {
  const uint32_t width =
      fold.contributions == 1 ? point.own_width : hbi::Width(fold.contributions, point.k);
  const ScaleCodes codes(word);
  const ByteUnpacker unpack(width);
  const ByteNarrower narrow(BytesOrderOf(width));
  const ByteClamp clamp(point.k);
  const __m512i in_order = Constant(BytesOrderOf(width).in_order);
  const __m512i zero = Bytes(fold.total * point.k);
  ByteOffsets<kMoves> make(offsets, counter);
  __m512i distances[hbi::kBlocks / 2];
  for (size_t b = 0; b < hbi::kBlocks; b += 2, x += kTwoBlocks * kSize<kType>) {
    __m512i total =
        clamp(QuantizeToBytes<kType>(x, point.sum->factor, codes.of + b, &make, narrow));
    for (hbi::Source& source : fold.packed_sources) {
      total = _mm512_add_epi8(total, unpack(&source.at));
    }
    total = _mm512_permutexvar_epi8(in_order, _mm512_sub_epi8(total, zero));
    _mm512_store_si512(sums + b * kBlock, total);
    distances[b / 2] = _mm512_abs_epi8(total);
  }
  // The blocks' maxima: in 64-bit, then in 32-bit lanes, then in 128-bit parts.
  const auto pair = [](__m512i a, __m512i b) HWY_ATTR {
    return _mm512_max_epu8(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  };
  const __m512 p = _mm512_castsi512_ps(pair(distances[0], distances[1]));
  const __m512 q = _mm512_castsi512_ps(pair(distances[2], distances[3]));
  const __m512i fours = _mm512_max_epu8(_mm512_castps_si512(_mm512_shuffle_ps(p, q, 0x88)),
                                        _mm512_castps_si512(_mm512_shuffle_ps(p, q, 0xdd)));
  const __m512i parts = _mm512_max_epu8(fours, _mm512_shuffle_i64x2(fours, fours, 0xb1));
  // The first and third parts have the even and the odd blocks.
  const __m256i even = _mm512_castsi512_si256(parts), odd = _mm512_extracti64x4_epi64(parts, 1);
  __m256i most = _mm256_inserti128_si256(
      _mm256_unpacklo_epi32(even, odd),
      _mm_unpackhi_epi32(_mm256_castsi256_si128(even), _mm256_castsi256_si128(odd)), 1);
  most = _mm256_max_epu8(most, _mm256_srli_epi32(most, 16));
  most = _mm256_max_epu8(most, _mm256_srli_epi32(most, 8));
  most = _mm256_and_si256(most, _mm256_set1_epi32(0xff));
  StoreLargest(point, codes, most, largest);
}

// Quantizes a superblock's sums on the scales `own`, packs the codes and decodes them to y unless
// it is nullptr.
template <DataType kType, bool kStream>
HWY_INLINE uint8_t* RequantizeBytes(const hbi::Point& point, const ScaleCodes& codes,
                                    const ScaleCodes& own, const int8_t* sums, const float* results,
                                    uint8_t* packed, std::byte* y) {
  const BytePacker pack(point.result_width);
  const ByteNarrower narrow(BytesOrderOf(point.result_width));
  const ByteClamp clamp(point.k2);
  const ByteDecoder<kType, kStream> decode(point.result_width, point.k2);
  const __m512 half =
      _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(kOneBits + hbi::kRoundHalfUp)));
  const float *const steps = point.sum->step, *const factors = point.result->factor;
  for (size_t b = 0; b < hbi::kBlocks; b += 2, sums += kTwoBlocks) {
    __m512 values[4];
    for (size_t i = 0; i < 4; ++i) {
      const __m512 step = _mm512_set1_ps(steps[codes.of[b + i / 2]]);
      const __m512 factor = _mm512_set1_ps(factors[own.of[b + i / 2]]);
      const __m512i sum =
          _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(sums + i * 16)));
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step);
      values[i] = _mm512_add_ps(_mm512_mul_ps(value, factor), half);
    }
    const __m512i made = clamp(narrow(values));
    packed = pack(made, packed);
    if (y == nullptr) continue;
    decode(made, results, own.of + b, y);
    y += kTwoBlocks * kSize<kType>;
  }
  return packed;
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS_VBMI

#endif  // per-target include guard
