// SPDX-License-Identifier: Apache-2.0
//
// Computes and merges side words in vectors, for one instruction set. Included once per target,
// after hbi_pack-inl.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "compress/float_types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/convert-inl.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_pack-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_SIDE_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_SIDE_WORDS_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_SIDE_WORDS_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_SIDE_WORDS_INL_H_
#endif

#if INCCL_HBI_VECTORS
HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kLanes32 = HWY_LANES(float);

// ---------------------------------------------------------------- block maxima

// In each 128-bit part, the maxima of the corresponding parts of a, b, c and d.
HWY_INLINE V32 MaxOfFour(V32 a, V32 b, V32 c, V32 d) {
  const V32 ab = hn::Max(hn::InterleaveLower(D32(), a, b), hn::InterleaveUpper(D32(), a, b));
  const V32 cd = hn::Max(hn::InterleaveLower(D32(), c, d), hn::InterleaveUpper(D32(), c, d));
  const V64 ab64 = hn::BitCast(D64(), ab), cd64 = hn::BitCast(D64(), cd);
  return hn::Max(hn::BitCast(D32(), hn::InterleaveLower(D64(), ab64, cd64)),
                 hn::BitCast(D32(), hn::InterleaveUpper(D64(), ab64, cd64)));
}

// The maxima over the 128-bit parts of MaxOfFour's kLanes32 / 4 results, in order.
HWY_INLINE V32 MaxOfParts(const V32* groups) {
#if HWY_MAX_BYTES == 16
  return groups[0];
#else
  const auto halves = [](V32 a, V32 b) HWY_ATTR {
    return hn::Max(hn::ConcatLowerLower(D32(), b, a), hn::ConcatUpperUpper(D32(), b, a));
  };
  const V32 first = halves(groups[0], groups[1]);
#if HWY_MAX_BYTES == 32
  return first;
#else
  const V32 second = halves(groups[2], groups[3]);
  return hn::Max(V32{_mm512_shuffle_i32x4(first.raw, second.raw, 0x88)},
                 V32{_mm512_shuffle_i32x4(first.raw, second.raw, 0xdd)});
#endif
#endif
}

// The bits of the largest magnitudes of a block's vectors.
HWY_INLINE V32 LargestOfBlock(const float* block) {
  const V32 magnitude = hn::Set(D32(), 0x7fffffffu);
  V32 largest = hn::And(hn::BitCast(D32(), hn::LoadU(DF(), block)), magnitude);
  for (size_t i = kLanes32; i < kBlock; i += kLanes32) {
    const V32 bits = hn::BitCast(D32(), hn::LoadU(DF(), block + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return largest;
}

// The same of a block of 16-bit floats, in the upper halves of the lanes: magnitudes are in the
// order of their bits.
HWY_INLINE V32 LargestOfNarrowBlock(const uint16_t* block) {
  const V16 magnitude = hn::Set(D16(), uint16_t{0x7fff});
  V16 largest = hn::And(hn::LoadU(D16(), block), magnitude);
  for (size_t i = kFields; i < kBlock; i += kFields) {
    largest = hn::Max(largest, hn::And(hn::LoadU(D16(), block + i), magnitude));
  }
  const V32 lanes = hn::BitCast(D32(), largest);
  const V16 swapped = hn::BitCast(D16(), hn::ShiftLeft<16>(lanes));
  return hn::BitCast(D32(), hn::Max(largest, swapped));
}

// The bits of fp32 for those of 16-bit floats in the upper halves of the lanes.
template <class Small>
HWY_INLINE V32 WidenUpper(V32 bits) {
  const V32 codes = hn::ShiftRight<16>(bits);
  if constexpr (std::is_same_v<Small, Bf16>) {
    return hn::ShiftLeft<16>(codes);
  } else {
    return hn::BitCast(D32(), DecodeLanes<Small>(DF(), codes));
  }
}

// The same of a block of sums: (field - zero) * step grows with the distance from zero.
HWY_INLINE V32 LargestOfSums(const uint16_t* block, V16 zero, float step) {
  const hn::Half<DI16> half;
  const auto distance = [&](size_t i) HWY_ATTR {
    return hn::Abs(hn::BitCast(DI16(), hn::Sub(hn::LoadU(D16(), block + i), zero)));
  };
  auto largest = distance(0);
  for (size_t i = kFields; i < kBlock; i += kFields) largest = hn::Max(largest, distance(i));
  const auto of_half = hn::Max(hn::LowerHalf(half, largest), hn::UpperHalf(half, largest));
  const auto value = hn::ConvertTo(DF(), hn::PromoteTo(DI32(), of_half));
  return hn::BitCast(D32(), hn::Mul(value, hn::Set(DF(), step)));
}

// Loads do not move across this.
HWY_INLINE void InOrder() { asm volatile("" : : : "memory"); }

// In each 128-bit part, the bits of the largest magnitudes of the part of four blocks from `block`
// on.
template <class OfBlock>
HWY_INLINE V32 MaximaOfFourBlocks(OfBlock of_block, size_t block) {
  // One after the other, and the compiler must not mix the loads with those of other blocks: the
  // prefetcher gives up on memory that is read in another order.
  const V32 first = of_block(block);
  const V32 second = of_block(block + 1);
  const V32 third = of_block(block + 2);
  const V32 fourth = of_block(block + 3);
  InOrder();
  return MaxOfFour(first, second, third, fourth);
}

using VI16 = hn::Vec<DI16>;
using VI32 = hn::Vec<DI32>;

#if HWY_ARCH_X86 && HWY_MAX_BYTES >= 32
// By the uppermost bits of a mantissa: how many of kFifthBits are below all such mantissas,
// times 2^23, plus what makes a mantissa carry into bit 23 if it is above the one in between.
struct FifthsTable {
  HWY_ALIGN uint32_t add[kLanes32] = {};
  constexpr FifthsTable() {
    constexpr uint32_t kCell = 0x800000 / kLanes32;
    for (uint32_t i = 0; i < kLanes32; ++i) {
      for (const uint32_t bits : hbi::kFifthBits) {
        const uint32_t threshold = bits & 0x7fffff;
        if (threshold < i * kCell) {
          add[i] += 0x800000;
        } else if (threshold < (i + 1) * kCell) {
          add[i] += 0x7fffff - threshold;
        }
      }
    }
  }
};
inline constexpr FifthsTable kFifthsTable;

// The exponent field plus the number of kFifthBits that are below the mantissa.
HWY_INLINE V32 ExponentAndFifths(V32 bits) {
  const V32 table = hn::Load(D32(), kFifthsTable.add);
#if HWY_MAX_BYTES == 64  // the instructions take the indices modulo the number of lanes
  const V32 add{_mm512_permutexvar_epi32(hn::ShiftRight<19>(bits).raw, table.raw)};
#else
  const V32 add{_mm256_permutevar8x32_epi32(table.raw, hn::ShiftRight<20>(bits).raw)};
#endif
  return hn::ShiftRight<23>(hn::Add(bits, add));
}
#else
HWY_INLINE V32 ExponentAndFifths(V32 bits) {
  const auto mantissa = hn::BitCast(DI32(), hn::And(bits, hn::Set(D32(), 0x7fffffu)));
  auto sum = hn::BitCast(DI32(), hn::ShiftRight<23>(bits));
  for (const uint32_t threshold : hbi::kFifthBits) {
    const auto limit = hn::Set(DI32(), static_cast<int32_t>(threshold & 0x7fffff));
    sum = hn::Sub(sum, hn::VecFromMask(DI32(), hn::Gt(mantissa, limit)));
  }
  return hn::BitCast(D32(), sum);
}
#endif

// For magnitudes' bits: the exponent of the fifth of an octave at or above each, plus 5 * 127; 0
// for zero, at least 1 for others, and kNotFinite for NaN and infinity.
inline constexpr int16_t kMostFifths = 5 * 255, kNotFinite = 2 * kMostFifths;
HWY_INLINE VI32 FifthsOf(V32 bits) {
  const auto infinite = hn::Gt(hn::BitCast(DI32(), bits),
                               hn::Set(DI32(), static_cast<int32_t>(hbi::kInfinityBits) - 1));
  const V32 four = hn::ShiftLeft<2>(hn::ShiftRight<23>(bits));
  const VI32 fifths = hn::BitCast(DI32(), hn::Add(four, ExponentAndFifths(bits)));
  return hn::IfThenElse(infinite, hn::Set(DI32(), kNotFinite), fifths);
}

// How far the codes of magnitudes are above hbi::kBeforeMiddle: at least 1 but for zero, at most
// kMiddleBytes + 1 but for those that are not finite, which have at least kPoisonWord.
HWY_INLINE VI16 AboveMiddle(VI16 fifths) {
  constexpr int kLess = 5 * 127 + hbi::FifthOctaves(hbi::kBeforeMiddle);
  const VI16 above = hn::Sub(fifths, hn::Set(DI16(), int16_t{kLess}));
  const VI16 limited = hn::Min(above, hn::Set(DI16(), int16_t{hbi::kMiddleBytes + 1}));
  const auto infinite = hn::Gt(fifths, hn::Set(DI16(), kMostFifths));
  return hn::IfThenElse(infinite, fifths,
                        hn::Max(limited, hn::Min(fifths, hn::Set(DI16(), int16_t{1}))));
}

// The bytes nearest to the lanes of a and b, their 128-bit parts interleaved.
HWY_INLINE V8 BytesOf(VI16 a, VI16 b) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
  return V8{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_ARCH_X86 && HWY_MAX_BYTES == 32
  return V8{_mm256_packus_epi16(a.raw, b.raw)};
#else
  const hn::Half<D8> half;
  return hn::Combine(D8(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

// AboveMiddle of four vectors of magnitudes' bits in bytes, in order; poison is kPoisonWord.
HWY_INLINE V8 BytesOfMagnitudes(const V32* bits) {
  VI16 codes[2];
  for (size_t i = 0; i < 2; ++i) {
    codes[i] =
        AboveMiddle(hn::ReorderDemote2To(DI16(), FifthsOf(bits[2 * i]), FifthsOf(bits[2 * i + 1])));
  }
  const V8 bytes = BytesOf(codes[0], codes[1]);
  if constexpr (kLanes32 == 4) {
    return bytes;
  } else {  // every 128-bit part has four codes of each vector
    HWY_ALIGN static constexpr uint32_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                      2, 6, 10, 14, 3, 7, 11, 15};
    HWY_ALIGN static constexpr uint32_t kOrderOfHalf[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const auto order = hn::SetTableIndices(D32(), kLanes32 == 8 ? kOrderOfHalf : kOrder);
    return hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(D32(), bytes), order));
  }
}

// ---------------------------------------------------------------- side words

inline constexpr size_t kLanes64 = HWY_LANES(uint64_t);  // a superblock's codes fill a 64-bit lane

template <int kBits>
HWY_INLINE V8 Rotated(V8 v) {
  const V64 lanes = hn::BitCast(D64(), v);
  return hn::BitCast(D8(), hn::Or(hn::ShiftRight<kBits>(lanes), hn::ShiftLeft<64 - kBits>(lanes)));
}

// The middle words of the lanes' codes, counted from hbi::kBeforeMiddle, in the lower halves. Zero
// and poison have their bytes.
HWY_INLINE V64 WordsOf(V8 codes) {
  V8 top = hn::Max(codes, Rotated<32>(codes));
  top = hn::Max(top, Rotated<16>(top));
  top = hn::Max(top, Rotated<8>(top));
  const V8 poison = hn::Set(D8(), uint8_t{hbi::kPoisonWord});
  const V8 least = hn::Max(hn::SaturatedSub(top, hn::Set(D8(), uint8_t{hbi::kMostBelow})),
                           hn::Min(top, hn::Set(D8(), uint8_t{1})));
  codes = hn::IfThenElse(hn::Eq(top, poison), poison, hn::Max(codes, least));
  V64 below = hn::BitCast(D64(), hn::Sub(top, codes));
  below = hn::And(hn::Or(below, hn::ShiftRight<5>(below)), hn::Set(D64(), 0x003F003F003F003Fu));
  below = hn::And(hn::Or(below, hn::ShiftRight<10>(below)), hn::Set(D64(), 0x00000FFF00000FFFu));
  below = hn::Or(hn::ShiftLeft<8>(below), hn::ShiftRight<12>(below));
  below = hn::And(below, hn::Set(D64(), 0xFFFFFF00u));
  return hn::Or(below, hn::And(hn::BitCast(D64(), top), hn::Set(D64(), 0xFFu)));
}

// The codes of the words in the lanes' lower halves, as WordsOf takes them. Outer words have none.
HWY_INLINE V8 CodesOf(V64 words) {
  HWY_ALIGN static constexpr uint8_t kTops[16] = {0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8};
  const V8 top = hn::TableLookupBytes(hn::BitCast(D8(), words), hn::LoadDup128(D8(), kTops));
  V64 below = hn::ShiftRight<8>(words);
  below = hn::And(hn::Or(below, hn::ShiftLeft<20>(below)), hn::Set(D64(), 0x00000FFF00000FFFu));
  below = hn::And(hn::Or(below, hn::ShiftLeft<10>(below)), hn::Set(D64(), 0x003F003F003F003Fu));
  below = hn::And(hn::Or(below, hn::ShiftLeft<5>(below)), hn::Set(D64(), 0x0707070707070707u));
  return hn::Sub(top, hn::BitCast(D8(), below));
}

// Stores the first `count` words, at most kLanes64.
HWY_INLINE void StoreWords(V64 words, size_t count, uint8_t* to) {
  const hn::Rebind<uint32_t, D64> d32;
  const hn::Repartition<uint8_t, decltype(d32)> d8;
  const auto bytes = hn::BitCast(d8, hn::TruncateTo(d32, words));
  if (count == kLanes64) {
    hn::StoreU(bytes, d8, to);
    return;
  }
  HWY_ALIGN uint8_t first[kLanes64 * hbi::kWordBytes];
  hn::Store(bytes, d8, first);
  std::memcpy(to, first, count * hbi::kWordBytes);
}

// True if one of these words may have to be an outer one: a middle word whose top is the smallest,
// which smaller ones became, or beyond the largest.
HWY_INLINE bool MayBeOuter(V64 words) {
  const V64 tops = hn::And(words, hn::Set(D64(), 0xFFu));
  const auto least = hn::Eq(tops, hn::Set(D64(), 1u));
  const auto beyond = hn::Eq(tops, hn::Set(D64(), hbi::kMiddleBytes + 1u));
  return !hn::AllFalse(D64(), hn::Or(least, beyond));
}

// WordsOfMagnitudes, one by one.
HWY_MAYBE_UNUSED static HWY_NOINLINE V64 WordsOneByOne(const V32* bits) {
  HWY_ALIGN uint32_t magnitudes[kLanes64 * hbi::kBlocks];
  HWY_ALIGN uint64_t words[kLanes64];
  for (size_t i = 0; i < 4; ++i) hn::Store(bits[i], D32(), magnitudes + i * kLanes32);
  for (size_t s = 0; s < kLanes64; ++s) {
    uint16_t codes[hbi::kBlocks];
    for (size_t b = 0; b < hbi::kBlocks; ++b) {
      codes[b] = hbi::CodeOfMagnitude(magnitudes[s * hbi::kBlocks + b]);
    }
    words[s] = hbi::WordOf(codes);
  }
  return hn::Load(D64(), words);
}

// The words of kLanes64 superblocks whose blocks have these bits of magnitudes, in order.
HWY_INLINE V64 WordsOfMagnitudes(const V32* bits) {
  const V64 words = WordsOf(BytesOfMagnitudes(bits));
  return HWY_UNLIKELY(MayBeOuter(words)) ? WordsOneByOne(bits) : words;
}

// The words of kLanes64 superblocks or, if not kAll, of the first `count`, followed by repetitions.
// of_block(b): what LargestOfBlock returns of block b; widen(bits): the bits of fp32.
template <bool kAll, class OfBlock, class Widen>
HWY_INLINE V64 WordsOfBlocks(OfBlock of_block, Widen widen, size_t count, float scale) {
  constexpr size_t kParts = kLanes32 / 4;
  V32 bits[4];
  V32 last = hn::Zero(D32());
  for (size_t i = 0; i < 4; ++i) {
    V32 groups[kParts];
    for (size_t j = 0; j < kParts; ++j) {
      const size_t group = i * kParts + j;
      if (kAll || group < 2 * count) last = MaximaOfFourBlocks(of_block, 4 * group);
      groups[j] = last;
    }
    const V32 most = widen(MaxOfParts(groups));
    const auto scaled = hn::Mul(hn::BitCast(DF(), most), hn::Set(DF(), scale));
    bits[i] = hn::And(hn::BitCast(D32(), scaled), hn::Set(D32(), 0x7fffffffu));
  }
  return WordsOfMagnitudes(bits);
}

// As fp32.
struct NotWidened {
  HWY_INLINE V32 operator()(V32 bits) const { return bits; }
};

// largest(block): what LargestOfBlock returns.
template <class Element, class Largest, class Widen>
HWY_INLINE void SideWordsOf(const Element* x, size_t superblocks, float scale, Largest largest,
                            Widen widen, uint8_t* words) {
  const auto of_block = [&](size_t block) HWY_ATTR { return largest(x + block * kBlock); };
  for (; superblocks >= kLanes64; superblocks -= kLanes64, x += kLanes64 * kSuperblock) {
    StoreWords(WordsOfBlocks<true>(of_block, widen, kLanes64, scale), kLanes64, words);
    words += kLanes64 * hbi::kWordBytes;
  }
  if (superblocks == 0) return;
  StoreWords(WordsOfBlocks<false>(of_block, widen, superblocks, scale), superblocks, words);
}

HWY_INLINE void SideWords(const float* x, size_t superblocks, float scale, uint8_t* words) {
  const auto largest = [](const float* block) HWY_ATTR { return LargestOfBlock(block); };
  SideWordsOf(x, superblocks, scale, largest, NotWidened(), words);
}

// Of Bf16 or Fp16.
template <class Small>
HWY_INLINE void SideWordsOfNarrow(const uint16_t* x, size_t superblocks, uint8_t* words) {
  const auto largest = [](const uint16_t* block) HWY_ATTR { return LargestOfNarrowBlock(block); };
  const auto widen = [](V32 bits) HWY_ATTR { return WidenUpper<Small>(bits); };
  SideWordsOf(x, superblocks, 1.0f, largest, widen, words);
}

// Stores the codes of a superblock's blocks, as hbi::CodeOf.
HWY_INLINE void CodesOfWord(uint32_t word, uint32_t* codes) {
  if (HWY_UNLIKELY(!hbi::IsMiddle(word))) {
    for (uint32_t b = 0; b < hbi::kBlocks; ++b) codes[b] = hbi::CodeOf(word, b);
    return;
  }
  const hn::CappedTag<uint32_t, hbi::kBlocks> d;
  HWY_ALIGN static constexpr uint32_t kShifts[hbi::kBlocks] = {8, 11, 14, 17, 20, 23, 26, 29};
  const auto words = hn::Set(d, word), top = hn::Set(d, hbi::kBeforeMiddle + (word & 0xff));
  for (size_t i = 0; i < hbi::kBlocks; i += hn::MaxLanes(d)) {
    const auto below = hn::And(hn::Shr(words, hn::Load(d, kShifts + i)), hn::Set(d, 7u));
    hn::Store(hn::Sub(top, below), d, codes + i);
  }
}

// The words of sums, on scales of their own.
HWY_INLINE void SideWordsOfSums(const hbi::RequantizeArgs& args, const uint16_t* tile,
                                uint8_t* words) {
  const V16 zero = hn::Set(D16(), static_cast<uint16_t>(args.sum.zero));
  const uint8_t* from = args.sum.words;
  HWY_ALIGN uint32_t codes[kLanes64 * hbi::kBlocks];
  const auto of_block = [&](size_t block) HWY_ATTR {
    return LargestOfSums(tile + block * kBlock, zero, args.sum.step[codes[block]]);
  };
  size_t left = args.sum.superblocks;
  while (left != 0) {
    const size_t count = left < kLanes64 ? left : kLanes64;
    for (size_t s = 0; s < count; ++s, from += hbi::kWordBytes) {
      CodesOfWord(hbi::LoadWord(from, 0), codes + s * hbi::kBlocks);
    }
    const V64 own = count == kLanes64
                        ? WordsOfBlocks<true>(of_block, NotWidened(), count, args.own)
                        : WordsOfBlocks<false>(of_block, NotWidened(), count, args.own);
    StoreWords(own, count, words);
    words += count * hbi::kWordBytes;
    tile += count * kSuperblock;
    left -= count;
  }
}

// True if one of these words is an outer one.
HWY_INLINE bool AreOuter(V64 words) {
  const hn::RebindToSigned<D64> d;
  const auto bytes = hn::BitCast(d, hn::And(words, hn::Set(D64(), 0xFFu)));
  return !hn::AllFalse(d, hn::And(hn::Gt(bytes, hn::Set(d, int64_t{hbi::kMiddleBytes})),
                                  hn::Lt(bytes, hn::Set(d, int64_t{hbi::kPoisonWord}))));
}

HWY_INLINE void MergeWords(const uint8_t* from, size_t superblocks, uint8_t* words) {
  const hn::Rebind<uint32_t, D64> d32;
  for (size_t s = 0; s < superblocks; s += kLanes64) {
    const size_t run = superblocks - s < kLanes64 ? superblocks - s : kLanes64;
    HWY_ALIGN uint32_t a[kLanes64] = {}, b[kLanes64] = {};
    std::memcpy(a, words + s * hbi::kWordBytes, run * hbi::kWordBytes);
    std::memcpy(b, from + s * hbi::kWordBytes, run * hbi::kWordBytes);
    const V64 mine = hn::PromoteTo(D64(), hn::Load(d32, a));
    const V64 theirs = hn::PromoteTo(D64(), hn::Load(d32, b));
    StoreWords(WordsOf(hn::Max(CodesOf(mine), CodesOf(theirs))), run, words + s * hbi::kWordBytes);
    if (HWY_LIKELY(!AreOuter(mine) && !AreOuter(theirs))) continue;
    for (size_t i = 0; i < run; ++i) hbi::StoreWord(hbi::Merged(a[i], b[i]), words, s + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
