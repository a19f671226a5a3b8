// SPDX-License-Identifier: Apache-2.0
//
// Superblocks of strips (hbi_kernels.h) with AVX2. Those whose codes fit bytes are here; the others
// go through the kernels of tiles. Included once per target, after hbi_strip_avx2-inl.h.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "compress/kernels/pack_tables.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_INL_H_
#endif

// Vectors of codes in bytes with AVX2: quantizes, packs and unpacks those of two blocks. Included
// once per target, after hbi_strip_common-inl.h.

#if INCCL_HBI_STRIPS_AVX2
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr uint32_t kWidestInBytes = hbi::kWidestBytePair;  // half-bits of codes to decode

// Whether the codes that are summed and their sums fit bytes.
HWY_INLINE bool SumsFitBytes(const hbi::Point& point, uint32_t contributions, uint32_t total) {
  return HasByteLevels(point.k) && HasByteLevels(point.k2) && total * point.k <= 127 &&
         contributions * point.k <= kMostByteLevels;
}

HWY_INLINE __m256i Constant(const void* bytes) {
  return _mm256_load_si256(static_cast<const __m256i*>(bytes));
}
HWY_INLINE __m256i Bytes(uint32_t value) { return _mm256_set1_epi8(static_cast<char>(value)); }
HWY_INLINE __m256i Words(uint32_t value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }

// ---------------------------------------------------------------- packing

// The codes of two blocks, in pairs as the packed fields have them. Where widths are even, each
// vector has a block; where they are odd, the first one has elements 0..7 of both, then 16..23.
struct Pairs {
  __m256i of[2];
};

// Where the 128-bit parts of a vector of Pairs are, in eighths of the packed fields.
template <bool kOdd>
constexpr size_t PartOf(size_t vector, size_t part) {
  return kOdd ? vector + 2 * part : 2 * vector + part;
}

template <bool kOdd>
class BytePacker {
 public:
  explicit HWY_INLINE BytePacker(uint32_t width)
      : table_(hbi::kBytePairTables.fields[width]), width_(width) {}

  // Writes 4 w bytes and up to 16 more. Returns where the next ones go.
  HWY_INLINE uint8_t* operator()(const Pairs& codes, uint8_t* out) const {
    const __m256i packed[2] = {Fields(codes.of[0]), Fields(codes.of[1])};
    for (size_t i = 0; i < 4; ++i, out += width_) {
      const size_t vector = kOdd ? i % 2 : i / 2, part = kOdd ? i / 2 : i % 2;
      auto* const to = reinterpret_cast<__m128i*>(out);
      _mm_storeu_si128(to, part == 0 ? _mm256_castsi256_si128(packed[vector])
                                     : _mm256_extracti128_si256(packed[vector], 1));
    }
    return out;
  }

 private:
  HWY_INLINE __m256i Fields(__m256i codes) const {
    const __m256i fields = _mm256_maddubs_epi16(Constant(table_.weights), codes);
    const __m256i twos = _mm256_madd_epi16(fields, Constant(table_.joins));
    const __m256i fours = _mm256_srlv_epi64(_mm256_sllv_epi32(twos, Constant(table_.raises)),
                                            Constant(table_.lowers));
    const __m256i own = _mm256_shuffle_epi8(fours, Constant(table_.gather));
    if constexpr (!kOdd) return own;
    return _mm256_or_si256(own, _mm256_shuffle_epi8(fours, Constant(table_.second)));
  }

  const hbi::BytePairTable& table_;
  const size_t width_;
};

template <bool kOdd>
class ByteUnpacker {
 public:
  explicit HWY_INLINE ByteUnpacker(uint32_t width)
      : table_(hbi::kBytePairTables.fields[width]), width_(width) {}

  // The codes of one vector of Pairs; reads up to 16 bytes beyond the fields.
  HWY_INLINE __m256i operator()(const uint8_t* in, size_t vector) const {
    const auto part = [&](size_t i) HWY_ATTR {
      const uint8_t* at = in + PartOf<kOdd>(vector, i) * width_;
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    };
    const __m256i parts = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
    const __m256i spread = _mm256_shuffle_epi8(parts, Constant(table_.spread));
    const __m256i twos = _mm256_srlv_epi32(spread, Constant(table_.offsets));
    const __m256i apart = _mm256_sll_epi32(twos, Count(table_.apart));
    const __m256i fields = _mm256_blend_epi16(twos, apart, 0xaa), mask = Constant(table_.mask);
    const __m128i shift = Count(table_.shift);
    if constexpr (!kOdd) {
      const __m256i second = _mm256_sll_epi16(fields, shift);
      return _mm256_and_si256(_mm256_blendv_epi8(fields, second, Words(0xff00)), mask);
    }
    const __m256i both = _mm256_and_si256(fields, mask);
    const __m256i second =
        _mm256_srl_epi16(_mm256_mulhi_epu16(both, Constant(table_.times)), shift);
    return _mm256_add_epi16(both, _mm256_mullo_epi16(second, Constant(table_.split)));
  }

  size_t bytes() const { return 4 * width_; }  // of two blocks

 private:
  HWY_INLINE __m128i Count(const uint64_t* lanes) const {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
  }

  const hbi::BytePairTable& table_;
  const size_t width_;
};

// Stores the bytes of Pairs in the order of elements; returns them block by block.
template <bool kOdd>
HWY_INLINE Pairs StoreInOrder(const Pairs& pairs, int8_t* to) {
  Pairs blocks = pairs;
  if constexpr (kOdd) {
    const __m256i split = Constant(hbi::kBytePairTables.split);
    const __m256i first = _mm256_shuffle_epi8(pairs.of[0], split);
    const __m256i second = _mm256_shuffle_epi8(pairs.of[1], split);
    blocks = {_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second)};
  }
  for (size_t b = 0; b < 2; ++b) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + b * kBlock), blocks.of[b]);
  }
  return blocks;
}

// ---------------------------------------------------------------- quantization

// What the offsets of all superblocks share: whole vectors, which instructions take from memory.
struct ByteOffsetsShared {
  explicit HWY_INLINE ByteOffsetsShared(const hbi::Offsets& offsets) {
    const uint32_t half = 32768u / (offsets.ranks == 0 ? 1u : offsets.ranks);
    const uint32_t add = static_cast<uint16_t>(offsets.add - half);
    const auto fill = [](uint32_t* to, uint32_t value)
                          HWY_ATTR { hn::Store(hn::Set(D32(), value), D32(), to); };
    fill(kept, 0x10000u - 2 * half);
    fill(one, kOneBits + half);
    fill(one_and_shift, kOneBits + half + add);
    fill(shift, add << 16 | add);
    fill(first, 0x7feb352d);
    fill(second, 0x846ca68b);
    fill(back, 0u - 8);
    fill(next, 8);
    fill(skip, 16);
    hn::Store(hn::Iota(D32(), 0), D32(), lanes);
    asm("" : "+m"(*this));
  }
  HWY_ALIGN uint32_t kept[8], one[8], one_and_shift[8], shift[8], first[8], second[8];
  HWY_ALIGN uint32_t back[8], next[8], skip[8], lanes[8];  // of counters
};

// Makes kOne + the offsets of a superblock's elements.
template <Moves kMoves>
class ByteOffsets {
 public:
  HWY_INLINE ByteOffsets(const ByteOffsetsShared& shared, uint32_t counter)
      : shared_(shared),
        counter_(hn::Add(hn::Set(D32(), counter), Shared(shared.lanes))),
        upper_(hn::Set(D32(), counter >> 16)) {}

  // Those of eight hashes, for the lower and for the upper half of a block. Then the counter goes
  // on by `step`, which is back, next or skip.
  HWY_INLINE void operator()(const uint32_t* step, __m256* low, __m256* high) {
    V32 x = hn::Mul(hn::Xor(counter_, upper_), Shared(shared_.first));
    counter_ = hn::Add(counter_, Shared(step));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), Shared(shared_.second));
    V32 upper = hn::ShiftRight<16>(x);
    x = hn::Xor(x, upper);
    if constexpr (kMoves == Moves::kAny) {
      const V16 shift = hn::BitCast(D16(), Shared(shared_.shift));
      x = hn::BitCast(D32(), hn::Add(hn::BitCast(D16(), x), shift));
      upper = hn::ShiftRight<16>(x);
    }
    *low = Kept(x);
    *high = Kept(upper);
  }

 private:
  static HWY_INLINE V32 Shared(const uint32_t* lanes) { return hn::Load(D32(), lanes); }
  HWY_INLINE __m256 Kept(V32 random) const {
    const V32 one = Shared(kMoves == Moves::kHalf ? shared_.one_and_shift : shared_.one);
    return _mm256_castsi256_ps(hn::Xor(hn::And(random, Shared(shared_.kept)), one).raw);
  }

  const ByteOffsetsShared& shared_;
  V32 counter_;
  const V32 upper_;
};

// Takes the codes plus kOneByte out of four vectors of kOne + values that are a vector of Pairs.
template <bool kOdd>
class ByteNarrower {
 public:
  HWY_INLINE ByteNarrower()
      : shuffle_(Constant(hbi::kBytePairTables.orders[kOdd].shuffle)),
        words_(Constant(hbi::kBytePairTables.orders[kOdd].words)) {}
  HWY_INLINE __m256i operator()(__m256 a, __m256 b, __m256 c, __m256 d) const {
    const auto bits = [](__m256 v) HWY_ATTR { return _mm256_castps_si256(v); };
    const __m256i even = _mm256_blend_epi16(_mm256_srli_epi32(bits(a), 16), bits(c), 0xaa);
    const __m256i odd =
        _mm256_blend_epi16(_mm256_srli_epi32(bits(b), 8), _mm256_slli_epi32(bits(d), 8), 0xaa);
    const __m256i bytes = _mm256_blendv_epi8(even, odd, Words(0xff00));
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes, shuffle_), words_);
  }

 private:
  const __m256i shuffle_, words_;
};

// Clamps codes plus kOneByte to [0, 2K] and adds K.
class ByteClamp {
 public:
  explicit HWY_INLINE ByteClamp(uint32_t k) : low_(Bytes(kOneByte - k)), twice_k_(Bytes(2 * k)) {}
  HWY_INLINE __m256i operator()(__m256i codes) const {
    return _mm256_min_epu8(_mm256_subs_epu8(codes, low_), twice_k_);
  }

 private:
  const __m256i low_, twice_k_;
};

// Quantizes two blocks.
template <DataType kType, bool kOdd, Moves kMoves>
HWY_INLINE Pairs QuantizeToBytes(const std::byte* x, const float* factors, const uint32_t* codes,
                                 const ByteNarrower<kOdd>& narrow, const ByteClamp& clamp,
                                 const ByteOffsetsShared& offsets, ByteOffsets<kMoves>* make) {
  const __m256 factor[2] = {_mm256_set1_ps(factors[codes[0]]), _mm256_set1_ps(factors[codes[1]])};
  // Vector i of block b with those offsets.
  const auto value = [&](size_t b, size_t i, __m256 offset) HWY_ATTR {
    const __m256 v = Load8<kType>(x + (4 * b + i) * 8 * kSize<kType>);
    return _mm256_add_ps(_mm256_mul_ps(v, factor[b]), offset);
  };
  Pairs pairs;
  for (size_t i = 0; i < 2; ++i) {  // vectors of Pairs
    __m256 low[2], high[2];
    if constexpr (kOdd) {
      (*make)(offsets.skip, &low[0], &high[0]);
      (*make)(i == 0 ? offsets.back : offsets.next, &low[1], &high[1]);
      pairs.of[i] = clamp(narrow(value(0, i, low[0]), value(1, i, low[1]), value(0, i + 2, high[0]),
                                 value(1, i + 2, high[1])));
    } else {
      for (size_t j = 0; j < 2; ++j) (*make)(offsets.next, &low[j], &high[j]);
      pairs.of[i] = clamp(narrow(value(i, 0, low[0]), value(i, 1, low[1]), value(i, 2, high[0]),
                                 value(i, 3, high[1])));
    }
  }
  return pairs;
}

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
