// SPDX-License-Identifier: Apache-2.0
//
// Computes side words, quantizes and decodes in vectors, for one instruction set. Included once
// per target, after hbi_pack-inl.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_pack-inl.h"
#include "hwy/highway.h"

#if defined(INCCL_COMPRESS_KERNELS_HBI_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INCCL_COMPRESS_KERNELS_HBI_QUANTIZE_INL_H_
#undef INCCL_COMPRESS_KERNELS_HBI_QUANTIZE_INL_H_
#else
#define INCCL_COMPRESS_KERNELS_HBI_QUANTIZE_INL_H_
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

// The maximum over the 128-bit parts.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<uint32_t, 4>> MaxOfParts(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return MaxOfParts(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The bits of the largest magnitudes of four blocks from x on.
HWY_INLINE void MaximaOfFourBlocks(const float* x, uint32_t* maxima) {
  const V32 magnitude = hn::Set(D32(), 0x7fffffffu);
  const auto of_block = [&](const float* block) HWY_ATTR {
    V32 largest = hn::Zero(D32());
    for (size_t i = 0; i < kBlock; i += kLanes32) {
      const V32 bits = hn::BitCast(D32(), hn::LoadU(DF(), block + i));
      largest = hn::Max(largest, hn::And(bits, magnitude));
    }
    return largest;
  };
  // One after the other: the prefetcher gives up on arguments that the compiler evaluates from
  // right to left.
  const V32 first = of_block(x);
  const V32 second = of_block(x + kBlock);
  const V32 third = of_block(x + 2 * kBlock);
  const V32 fourth = of_block(x + 3 * kBlock);
  const V32 parts = MaxOfFour(first, second, third, fourth);
  hn::StoreU(MaxOfParts(D32(), parts), hn::CappedTag<uint32_t, 4>(), maxima);
}

// CodeOfMagnitude of each lane.
HWY_INLINE hn::Vec<DI32> CodesOfMagnitudes(hn::Vec<DI32> bits) {
  const DI32 d;
  const auto mantissa = hn::And(bits, hn::Set(d, 0x7fffff));
  auto octaves = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(d, 127));
  auto fifths = hn::Add(hn::ShiftLeft<2>(octaves), octaves);
  octaves = hn::Sub(octaves, hn::VecFromMask(d, hn::Gt(mantissa, hn::Zero(d))));
  for (const uint32_t threshold : hbi::kMantissaBits) {
    const auto above = hn::Gt(mantissa, hn::Set(d, static_cast<int32_t>(threshold & 0x7fffff)));
    fifths = hn::Sub(fifths, hn::VecFromMask(d, above));
  }
  const auto lowest = hn::Max(hn::Set(d, 1), hn::ShiftRight<3>(hn::Add(octaves, hn::Set(d, 103))));
  const auto low = hn::Add(octaves, hn::Set(d, 61));
  const auto middle = hn::Add(fifths, hn::Set(d, 181));
  const auto high = hn::Add(octaves, hn::Set(d, 221));
  const auto seventeenths = hn::Mul(hn::Sub(octaves, hn::Set(d, 10)), hn::Set(d, 241));
  const auto highest = hn::Add(hn::ShiftRight<12>(seventeenths), hn::Set(d, 247));
  auto code = hn::Max(hn::Max(lowest, low), middle);
  code = hn::Min(code, hn::Min(high, highest));
  const auto finite = hn::Gt(hn::Set(d, static_cast<int32_t>(hbi::kInfinityBits)), bits);
  code = hn::IfThenElse(finite, code, hn::Set(d, int32_t{hbi::kPoison}));
  return hn::IfThenZeroElse(hn::Eq(bits, hn::Zero(d)), code);
}

// ---------------------------------------------------------------- side words

inline constexpr size_t kLanes64 = HWY_LANES(uint64_t);  // a superblock's codes fill a 64-bit lane

template <int kBits>
HWY_INLINE V8 Rotated(V8 v) {
  const V64 lanes = hn::BitCast(D64(), v);
  return hn::BitCast(D8(), hn::Or(hn::ShiftRight<kBits>(lanes), hn::ShiftLeft<64 - kBits>(lanes)));
}

// The words of the lanes' codes, in the lower halves.
HWY_INLINE V64 WordsOf(V8 codes) {
  V8 top = hn::Max(codes, Rotated<32>(codes));
  top = hn::Max(top, Rotated<16>(top));
  top = hn::Max(top, Rotated<8>(top));
  const V8 poison = hn::Set(D8(), hbi::kPoison);
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

// The codes of the words in the lanes' lower halves.
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

HWY_INLINE void SideWords(const float* x, size_t superblocks, float scale, uint8_t* words) {
  constexpr size_t kAtOnce = 16;  // superblocks
  HWY_ALIGN uint32_t maxima[kAtOnce * hbi::kBlocks];
  HWY_ALIGN uint8_t codes[kAtOnce * hbi::kBlocks];
  const hn::Rebind<uint8_t, DI32> d8;
  const auto factor = hn::Set(DF(), scale);
  const V32 magnitude = hn::Set(D32(), 0x7fffffffu);
  while (superblocks > 0) {
    const size_t run = superblocks < kAtOnce ? superblocks : kAtOnce, blocks = run * hbi::kBlocks;
    for (size_t b = 0; b < blocks; b += 4) MaximaOfFourBlocks(x + b * kBlock, maxima + b);
    if (run < kAtOnce) {  // vectors reach beyond the end
      std::memset(maxima + blocks, 0, hbi::kBlocks * sizeof(uint32_t));
      std::memset(codes + blocks, 0, sizeof codes - blocks);
    }
    for (size_t b = 0; b < blocks; b += kLanes32) {
      const auto scaled = hn::Mul(hn::BitCast(DF(), hn::Load(D32(), maxima + b)), factor);
      const V32 bits = hn::And(hn::BitCast(D32(), scaled), magnitude);
      hn::StoreU(hn::DemoteTo(d8, CodesOfMagnitudes(hn::BitCast(DI32(), bits))), d8, codes + b);
    }
    for (size_t s = 0; s < run; s += kLanes64) {
      const V64 found = WordsOf(hn::Load(D8(), codes + s * hbi::kBlocks));
      StoreWords(found, run - s < kLanes64 ? run - s : kLanes64, words + s * hbi::kWordBytes);
    }
    x += run * kSuperblock;
    words += run * hbi::kWordBytes;
    superblocks -= run;
  }
}

HWY_INLINE void MergeWords(const uint8_t* from, size_t superblocks, uint8_t* words) {
  const hn::Rebind<uint32_t, D64> d32;
  for (size_t s = 0; s < superblocks; s += kLanes64) {
    const size_t run = superblocks - s < kLanes64 ? superblocks - s : kLanes64;
    HWY_ALIGN uint32_t a[kLanes64] = {}, b[kLanes64] = {};
    std::memcpy(a, words + s * hbi::kWordBytes, run * hbi::kWordBytes);
    std::memcpy(b, from + s * hbi::kWordBytes, run * hbi::kWordBytes);
    const V8 codes = hn::Max(CodesOf(hn::PromoteTo(D64(), hn::Load(d32, a))),
                             CodesOf(hn::PromoteTo(D64(), hn::Load(d32, b))));
    StoreWords(WordsOf(codes), run, words + s * hbi::kWordBytes);
  }
}

// ---------------------------------------------------------------- quantization

// Rounds to nearest, ties to even; magnitudes stay far below 2^31.
HWY_INLINE hn::Vec<DI32> RoundToInt(hn::Vec<DF> v) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
  return hn::Vec<DI32>{_mm512_cvtps_epi32(v.raw)};
#elif HWY_ARCH_X86 && HWY_MAX_BYTES == 32
  return hn::Vec<DI32>{_mm256_cvtps_epi32(v.raw)};
#elif HWY_ARCH_X86
  return hn::Vec<DI32>{_mm_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

HWY_INLINE V32 LowBias32Lanes(V32 x) {
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(D32(), 0x7feb352du));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(D32(), 0x846ca68bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// The upper 16 bits of two vectors of fixed-point values, in element order, clamped to [-K, K] and
// raised by K. This equals clamping the value to +-65536 K before the offset is added, since the
// offset is below 65536.
HWY_INLINE V16 CodesOfFixed(hn::Vec<DI32> low, hn::Vec<DI32> high, hn::Vec<DI16> k) {
  const auto above =
      hn::BitCast(DI16(), hn::ConcatOdd(D16(), hn::BitCast(D16(), high), hn::BitCast(D16(), low)));
  const auto clamped = hn::Min(hn::Max(above, hn::Neg(k)), k);
  return hn::BitCast(D16(), hn::Add(clamped, k));
}

inline constexpr size_t kPerBlock = kBlock / kFields;  // vectors of 16-bit fields

// Adds to the random numbers what makes them a rank's offsets.
class ToOffsets {
 public:
  explicit HWY_INLINE ToOffsets(const hbi::Offsets& offsets)
      : ranks_(hn::Set(D16(), offsets.ranks)),
        inverse_(hn::Set(D16(), offsets.inverse)),
        add_(hn::Set(D16(), offsets.add)) {}
  HWY_INLINE V32 operator()(V32 random) const {
    const V16 r = hn::BitCast(D16(), random);
    const V16 beyond = hn::MulHigh(hn::Mul(r, ranks_), inverse_);
    return hn::BitCast(D32(), hn::Add(hn::Sub(r, beyond), add_));
  }

 private:
  V16 ranks_, inverse_, add_;
};

// The codes of a superblock's blocks, as bytes.
HWY_INLINE uint64_t CodesOfWord(uint32_t word) {
  uint64_t below = word >> 8;
  below = (below | below << 20) & 0x00000FFF00000FFFu;
  below = (below | below << 10) & 0x003F003F003F003Fu;
  below = (below | below << 5) & 0x0707070707070707u;
  return hbi::TopOf(word) * 0x0101010101010101u - below;
}

// Calls block(factor, x, codes) for every block of every superblock, and the sink's Lower or Upper
// with its kPerBlock vectors of codes: the first block of every two is the lower one.
template <class Block, class Sink>
HWY_INLINE void QuantizeBlocks(const hbi::QuantizeArgs& args, Block block, Sink sink) {
  const float* x = args.x;
  for (uint32_t s = 0; s < args.superblocks; ++s) {
    uint64_t codes = CodesOfWord(hbi::LoadWord(args.words, s));
    for (uint32_t b = 0; b < hbi::kBlocks; b += 2, x += 2 * kBlock, codes >>= 16) {
      V16 fields[kPerBlock];
      block(args.factor[codes & 0xff], x, fields);
      sink.Lower(fields);
      block(args.factor[codes >> 8 & 0xff], x + kBlock, fields);
      sink.Upper(fields);
    }
  }
}

template <class Sink>
HWY_INLINE void QuantizeWithHash(const hbi::QuantizeArgs& args, Sink sink) {
  constexpr size_t kHashes = 16 / kLanes32;  // vectors of hashes of a block; each serves two
  const auto k = hn::Set(DI16(), static_cast<int16_t>(args.k));
  const ToOffsets to_offsets(args.offsets);
  const V32 low_half = hn::Set(D32(), 0xffffu);
  V32 counter = hn::Add(hn::Set(D32(), args.counter), hn::Iota(D32(), 0));
  const auto block = [&](float multiplier, const float* x, V16* codes) HWY_ATTR {
    const auto factor = hn::Set(DF(), multiplier);
    V32 hash[kHashes];
    for (size_t i = 0; i < kHashes; ++i) {
      hash[i] = to_offsets(LowBias32Lanes(counter));
      counter = hn::Add(counter, hn::Set(D32(), uint32_t{kLanes32}));
    }
    const auto fixed = [&](size_t i) HWY_ATTR {
      const V32 h = hash[i % kHashes];
      const V32 offset = i < kHashes ? hn::And(h, low_half) : hn::ShiftRight<16>(h);
      const auto value = RoundToInt(hn::Mul(hn::LoadU(DF(), x + i * kLanes32), factor));
      return hn::Add(value, hn::BitCast(DI32(), offset));
    };
    for (size_t i = 0; i < kPerBlock; ++i) {
      const auto low = fixed(2 * i);
      codes[i] = CodesOfFixed(low, fixed(2 * i + 1), k);
    }
  };
  QuantizeBlocks(args, block, sink);
}

template <class Sink>
HWY_INLINE void QuantizeToNearest(const hbi::QuantizeArgs& args, Sink sink) {
  const auto k = hn::Set(DI16(), static_cast<int16_t>(args.k));
  const auto half = hn::Set(DI32(), int32_t{hbi::kRoundHalfUp});
  const auto block = [&](float multiplier, const float* x, V16* codes) HWY_ATTR {
    const auto factor = hn::Set(DF(), multiplier);
    const auto fixed = [&](size_t i) HWY_ATTR {
      return hn::Add(RoundToInt(hn::Mul(hn::LoadU(DF(), x + i * kLanes32), factor)), half);
    };
    for (size_t i = 0; i < kPerBlock; ++i) {
      const auto low = fixed(2 * i);
      codes[i] = CodesOfFixed(low, fixed(2 * i + 1), k);
    }
  };
  QuantizeBlocks(args, block, sink);
}

// ---------------------------------------------------------------- decoding

// A sink that decodes fields, in order.
class ToElements {
 public:
  HWY_INLINE ToElements(const hbi::DecodeArgs& args, float* y)
      : zero_(hn::Set(D16(), static_cast<uint16_t>(args.zero))),
        words_(args.words),
        step_(args.step),
        y_(y) {}

  HWY_INLINE void Lower(const V16* fields) {
    if (block_ % hbi::kBlocks == 0)
      codes_ = CodesOfWord(hbi::LoadWord(words_, block_ / hbi::kBlocks));
    Block(fields, step_[codes_ & 0xff]);
  }
  HWY_INLINE void Upper(const V16* fields) {
    Block(fields, step_[codes_ >> 8 & 0xff]);
    codes_ >>= 16;
    block_ += 2;
  }

 private:
  HWY_INLINE void Block(const V16* fields, float multiplier) {
    const hn::Half<DI16> half;
    const auto step = hn::Set(DF(), multiplier);
    for (size_t i = 0; i < kPerBlock; ++i, y_ += kFields) {
      const auto sums = hn::BitCast(DI16(), hn::Sub(fields[i], zero_));
      const auto low = hn::PromoteTo(DI32(), hn::LowerHalf(half, sums));
      const auto high = hn::PromoteTo(DI32(), hn::UpperHalf(half, sums));
      hn::StoreU(hn::Mul(hn::ConvertTo(DF(), low), step), DF(), y_);
      hn::StoreU(hn::Mul(hn::ConvertTo(DF(), high), step), DF(), y_ + kLanes32);
    }
  }

  V16 zero_;
  const uint8_t* words_;
  const float* step_;
  float* y_;
  uint32_t block_ = 0;
  uint64_t codes_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
