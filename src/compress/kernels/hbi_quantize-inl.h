// SPDX-License-Identifier: Apache-2.0
//
// Quantizes and decodes in vectors, for one instruction set. Included once per target, after
// hbi_side_words-inl.h.
#include <cstddef>
#include <cstdint>

#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/hbi_side_words-inl.h"
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

// LowBias32 but for its last step, x ^ x >> 16.
HWY_INLINE V32 LowBias32Product(V32 x) {
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(D32(), 0x7feb352du));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  return hn::Mul(x, hn::Set(D32(), 0x846ca68bu));
}

HWY_INLINE V32 LowBias32Lanes(V32 x) {
  x = LowBias32Product(x);
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// The upper 16 bits of two vectors of fixed-point values with their offsets and K, in element
// order, clamped to [0, 2K]. This equals clamping the value to +-65536 K before the offset is
// added, since the offset is below 65536.
HWY_INLINE V16 CodesOfFixed(VI32 low, VI32 high, VI16 twice_k) {
#if HWY_TARGET == HWY_AVX2  // the packing instruction clamps at 0
  const auto packed =
      _mm256_packus_epi32(hn::ShiftRight<16>(low).raw, hn::ShiftRight<16>(high).raw);
  return hn::Min(V16{_mm256_permute4x64_epi64(packed, 0xd8)}, hn::BitCast(D16(), twice_k));
#else
  const VI16 above =
      hn::BitCast(DI16(), hn::ConcatOdd(D16(), hn::BitCast(D16(), high), hn::BitCast(D16(), low)));
  return hn::BitCast(D16(), hn::Min(hn::Max(above, hn::Zero(DI16())), twice_k));
#endif
}

inline constexpr size_t kPerBlock = kBlock / kFields;  // vectors of 16-bit fields
inline constexpr size_t kHashes = 16 / kLanes32;  // vectors of hashes of a block; each serves two

// Makes the 32-bit summands of a rank's elements: the 16-bit offset, and K above it. kMasked: the
// random numbers keep their uppermost bits (the number of ranks is a power of two) or all.
template <bool kMasked>
class ToOffsets {
 public:
  explicit HWY_INLINE ToOffsets(const hbi::QuantizeArgs& args)
      : add_(hn::Set(D32(), args.k << 16 | args.offsets.add)),
        kept_(hn::Set(D32(), 0xffffu & ~(Cell(args.offsets) - 1))),
        ranks_(hn::Set(D16(), args.offsets.ranks)),
        inverse_(hn::Set(D16(), args.offsets.inverse)) {}

  // Those of a block's elements, from the counters of its hashes on.
  HWY_INLINE void operator()(V32* counter, V32* offsets) const {
    for (size_t i = 0; i < kHashes; ++i) {
      const V32 product = LowBias32Product(*counter);
      *counter = hn::Add(*counter, hn::Set(D32(), uint32_t{kLanes32}));
      const V32 upper = hn::ShiftRight<16>(product);
      if constexpr (kMasked) {
        offsets[i] = Raised(hn::And(hn::Xor(product, upper), kept_));
        offsets[kHashes + i] = Raised(hn::And(upper, kept_));
      } else {
        const V16 r = hn::BitCast(D16(), hn::Xor(product, upper));
        const V16 beyond = hn::MulHigh(hn::Mul(r, ranks_), inverse_);
        const V32 cells = hn::BitCast(D32(), hn::Sub(r, beyond));
        offsets[i] = Raised(hn::And(cells, hn::Set(D32(), 0xffffu)));
        offsets[kHashes + i] = Raised(hn::ShiftRight<16>(cells));
      }
    }
  }

 private:
  static uint32_t Cell(const hbi::Offsets& offsets) {
    return offsets.inverse == 0 ? 1 : offsets.inverse;
  }
  HWY_INLINE V32 Raised(V32 random) const {  // the sum of the lower halves does not carry
    return hn::BitCast(D32(), hn::Add(hn::BitCast(D16(), random), hn::BitCast(D16(), add_)));
  }

  V32 add_, kept_;
  V16 ranks_, inverse_;
};

// Quantizes every block of every superblock with the summands that offsets(counter, summands)
// makes, and calls the sink's Lower or Upper with its kPerBlock vectors of codes: the first block
// of every two is the lower one.
template <class Offsets, class Sink>
HWY_INLINE void QuantizeBlocks(const hbi::QuantizeArgs& args, Offsets offsets, Sink sink) {
  const float* x = args.x;
  const float* const factors = args.factor;
  const uint8_t* words = args.words;
  const uint8_t* const end = words + size_t{args.superblocks} * hbi::kWordBytes;
  const auto twice_k = hn::Set(DI16(), static_cast<int16_t>(2 * args.k));
  V32 counter = hn::Add(hn::Set(D32(), args.counter), hn::Iota(D32(), 0));
  const auto block = [&](uint32_t code, V16* fields) HWY_ATTR {
    const auto factor = hn::Set(DF(), factors[code]);
    V32 summands[2 * kHashes];
    offsets(&counter, summands);
    const auto fixed = [&](size_t i) HWY_ATTR {
      const auto value = RoundToInt(hn::Mul(hn::LoadU(DF(), x + i * kLanes32), factor));
      return hn::Add(value, hn::BitCast(DI32(), summands[i]));
    };
    for (size_t i = 0; i < kPerBlock; ++i) {
      const auto low = fixed(2 * i);
      fields[i] = CodesOfFixed(low, fixed(2 * i + 1), twice_k);
    }
    x += kBlock;
  };
  for (; words != end; words += hbi::kWordBytes) {
    HWY_ALIGN uint32_t codes[hbi::kBlocks];
    CodesOfWord(hbi::LoadWord(words, 0), codes);
    for (uint32_t b = 0; b < hbi::kBlocks; b += 2) {
      V16 fields[kPerBlock];
      block(codes[b], fields);
      sink.Lower(fields);
      block(codes[b + 1], fields);
      sink.Upper(fields);
    }
  }
}

template <class Sink>
HWY_INLINE void QuantizeWithHash(const hbi::QuantizeArgs& args, Sink sink) {
  if ((args.offsets.ranks & (args.offsets.ranks - 1)) == 0) {
    QuantizeBlocks(args, ToOffsets<true>(args), sink);
  } else {
    QuantizeBlocks(args, ToOffsets<false>(args), sink);
  }
}

// Makes the summands of K levels to nearest.
class ToHalves {
 public:
  explicit HWY_INLINE ToHalves(const hbi::QuantizeArgs& args)
      : half_(hn::Set(D32(), args.k << 16 | hbi::kRoundHalfUp)) {}
  HWY_INLINE void operator()(V32*, V32* summands) const {
    for (size_t i = 0; i < 2 * kHashes; ++i) summands[i] = half_;
  }

 private:
  V32 half_;
};

template <class Sink>
HWY_INLINE void QuantizeToNearest(const hbi::QuantizeArgs& args, Sink sink) {
  QuantizeBlocks(args, ToHalves(args), sink);
}

// ---------------------------------------------------------------- decoding

// Decodes a block's fields to y.
HWY_INLINE void DecodeBlock(const V16* fields, V16 zero, float multiplier, float* y) {
  const hn::Half<DI16> half;
  const auto step = hn::Set(DF(), multiplier);
  for (size_t i = 0; i < kPerBlock; ++i, y += kFields) {
    const auto sums = hn::BitCast(DI16(), hn::Sub(fields[i], zero));
    const auto low = hn::PromoteTo(DI32(), hn::LowerHalf(half, sums));
    const auto high = hn::PromoteTo(DI32(), hn::UpperHalf(half, sums));
    hn::StoreU(hn::Mul(hn::ConvertTo(DF(), low), step), DF(), y);
    hn::StoreU(hn::Mul(hn::ConvertTo(DF(), high), step), DF(), y + kLanes32);
  }
}

// ---------------------------------------------------------------- second quantization

// Replaces the tile's sums by their codes on the scales of `words`.
HWY_INLINE void RequantizeBlocks(const hbi::RequantizeArgs& args, const uint8_t* words,
                                 uint16_t* tile) {
  const hn::Half<DI16> half;
  const V16 zero = hn::Set(D16(), static_cast<uint16_t>(args.sum.zero));
  const auto summand = hn::Set(DI32(), static_cast<int32_t>(args.k << 16 | hbi::kRoundHalfUp));
  const auto twice_k = hn::Set(DI16(), static_cast<int16_t>(2 * args.k));
  for (uint32_t s = 0; s < args.sum.superblocks; ++s) {
    const uint32_t own_word = hbi::LoadWord(words, s);
    if (hbi::IsPoison(own_word)) {
      for (size_t i = 0; i < kSuperblock; ++i) *tile++ = static_cast<uint16_t>(args.k);
      continue;
    }
    HWY_ALIGN uint32_t codes[hbi::kBlocks], own[hbi::kBlocks];
    CodesOfWord(hbi::LoadWord(args.sum.words, s), codes);
    CodesOfWord(own_word, own);
    for (uint32_t b = 0; b < hbi::kBlocks; ++b) {
      const auto step = hn::Set(DF(), args.sum.step[codes[b]]);
      const auto factor = hn::Set(DF(), args.factor[own[b]]);
      const auto fixed = [&](hn::Vec<DI32> sum) HWY_ATTR {
        const auto value = hn::Mul(hn::ConvertTo(DF(), sum), step);
        return hn::Add(RoundToInt(hn::Mul(value, factor)), summand);
      };
      for (size_t i = 0; i < kPerBlock; ++i, tile += kFields) {
        const auto sums = hn::BitCast(DI16(), hn::Sub(hn::LoadU(D16(), tile), zero));
        const auto low = fixed(hn::PromoteTo(DI32(), hn::LowerHalf(half, sums)));
        const auto high = fixed(hn::PromoteTo(DI32(), hn::UpperHalf(half, sums)));
        hn::StoreU(CodesOfFixed(low, high, twice_k), D16(), tile);
      }
    }
  }
}

template <class Source>
HWY_INLINE void DecodeBlocks(const hbi::DecodeArgs& args, Source source, float* y) {
  const float* const steps = args.step;
  const uint8_t* words = args.words;
  const uint8_t* const end = words + size_t{args.superblocks} * hbi::kWordBytes;
  const V16 zero = hn::Set(D16(), static_cast<uint16_t>(args.zero));
  for (; words != end; words += hbi::kWordBytes) {
    HWY_ALIGN uint32_t codes[hbi::kBlocks];
    CodesOfWord(hbi::LoadWord(words, 0), codes);
    for (uint32_t b = 0; b < hbi::kBlocks; b += 2, y += 2 * kBlock) {
      V16 fields[kPerBlock];
      source.Lower(fields);
      DecodeBlock(fields, zero, steps[codes[b]], y);
      source.Upper(fields);
      DecodeBlock(fields, zero, steps[codes[b + 1]], y + kBlock);
    }
  }
}

// Rotates a superblock in vectors, for one instruction set: random signs and the Walsh-Hadamard
// transform. Each element results from the same additions in the same order as in the reference.
// Included once per target, after hbi_quantize-inl.h.

using VF = hn::Vec<DF>;

// Exchanges lanes i and i ^ kStride.
template <size_t kStride>
HWY_INLINE VF Exchanged(VF v) {
  if constexpr (kStride == 1) {
    return hn::Reverse2(DF(), v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (2 * kStride == kLanes32) {
    return hn::ConcatLowerUpper(DF(), v, v);
  } else {
    return hn::SwapAdjacentBlocks(v);
  }
}

// Sums and differences within vectors, for strides from kStride on. a - b is computed as a + -b,
// which gives the same bits.
template <size_t kStride>
HWY_INLINE VF WithinVector(VF v) {
  if constexpr (kStride >= kLanes32) {
    return v;
  } else {
    const V32 stride = hn::Set(D32(), uint32_t{kStride});
    const V32 upper = hn::And(hn::Iota(D32(), 0), stride);
    const VF signs =
        hn::BitCast(DF(), hn::ShiftLeft<31 - static_cast<int>(hwy::FloorLog2(kStride))>(upper));
    return WithinVector<2 * kStride>(hn::Add(Exchanged<kStride>(v), hn::Xor(v, signs)));
  }
}

// Sums and differences between kVectors vectors, for strides from kStride vectors on.
template <size_t kVectors, size_t kStride = 1>
HWY_INLINE void BetweenVectors(VF* v) {
  if constexpr (kStride < kVectors) {
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & kStride) != 0) continue;
      const VF a = v[i], b = v[i + kStride];
      v[i] = hn::Add(a, b);
      v[i + kStride] = hn::Sub(a, b);
    }
    BetweenVectors<kVectors, 2 * kStride>(v);
  }
}

// The sign bits of one half of a block's elements, lane by lane, from the block's hashes.
HWY_INLINE VF SignsOf(V32 hash, bool upper) {
  const V32 bit = hn::Set(D32(), 0x80000000u);
  const V32 raised = upper ? hn::ShiftLeft<15>(hash) : hn::ShiftLeft<31>(hash);
  return hn::BitCast(DF(), hn::And(raised, bit));
}

// kBack: x is a result, in which every NaN becomes 7fc00000.
template <bool kBack>
HWY_INLINE void ChangeSigns(float* x, uint32_t counter) {
  constexpr size_t kHashes = 16 / kLanes32;
  const VF nan = hn::BitCast(DF(), hn::Set(D32(), 0x7fc00000u));
  for (size_t block = 0; block < hbi::kBlocks; ++block, x += kBlock) {
    for (size_t i = 0; i < kHashes; ++i) {
      const auto first = counter + static_cast<uint32_t>(block * 16 + i * kLanes32);
      const V32 hash = LowBias32Lanes(hn::Add(hn::Set(D32(), first), hn::Iota(D32(), 0)));
      for (size_t half = 0; half < 2; ++half) {
        float* at = x + 16 * half + i * kLanes32;
        VF y = hn::Xor(hn::LoadU(DF(), at), SignsOf(hash, half != 0));
        if (kBack) y = hn::IfThenElse(hn::IsNaN(y), nan, y);
        hn::StoreU(y, DF(), at);
      }
    }
  }
}

template <bool kBack>
HWY_INLINE void RotateSuperblock(float* x, uint32_t counter) {
  constexpr size_t kNear = 8, kFar = kSuperblock / kLanes32 / kNear;
  if (!kBack) ChangeSigns<false>(x, counter);
  VF v[kNear];
  for (size_t first = 0; first < kSuperblock; first += kNear * kLanes32) {
    for (size_t i = 0; i < kNear; ++i) {
      v[i] = WithinVector<1>(hn::LoadU(DF(), x + first + i * kLanes32));
    }
    BetweenVectors<kNear>(v);
    for (size_t i = 0; i < kNear; ++i) hn::StoreU(v[i], DF(), x + first + i * kLanes32);
  }
  const VF scale = hn::Set(DF(), 1.0f / 16);
  VF w[kFar];
  for (size_t first = 0; first < kNear * kLanes32; first += kLanes32) {
    for (size_t i = 0; i < kFar; ++i) w[i] = hn::LoadU(DF(), x + first + i * kNear * kLanes32);
    BetweenVectors<kFar>(w);
    for (size_t i = 0; i < kFar; ++i) {
      hn::StoreU(hn::Mul(w[i], scale), DF(), x + first + i * kNear * kLanes32);
    }
  }
  if (kBack) ChangeSigns<true>(x, counter);
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
