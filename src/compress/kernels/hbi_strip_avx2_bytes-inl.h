// SPDX-License-Identifier: Apache-2.0
//
// Vectors of codes in bytes with AVX2: quantizes, packs and unpacks those of two blocks. Included
// once per target, after hbi_strip_common-inl.h.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "compress/hbi/format.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_strip_avx2_tables.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_BYTES_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_BYTES_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_BYTES_INL_H_
#endif

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

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_STRIPS_AVX2

#endif  // per-target include guard
