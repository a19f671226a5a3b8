// SPDX-License-Identifier: Apache-2.0
//
// Computes scale codes, quantizes and decodes in vectors, for one instruction set. Included once
// per target, after hbi_pack-inl.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/hbi/format.h"
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

// ---------------------------------------------------------------- scale codes

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
  const V32 parts = MaxOfFour(of_block(x), of_block(x + kBlock), of_block(x + 2 * kBlock),
                              of_block(x + 3 * kBlock));
  hn::StoreU(MaxOfParts(D32(), parts), hn::CappedTag<uint32_t, 4>(), maxima);
}

// CodeOfMagnitude of each lane.
HWY_INLINE hn::Vec<DI32> CodesOfMagnitudes(hn::Vec<DI32> bits) {
  const DI32 d;
  const auto mantissa = hn::And(bits, hn::Set(d, 0x7fffff));
  auto q = hn::Sub(hn::ShiftLeft<2>(hn::ShiftRight<23>(bits)), hn::Set(d, 4 * 127));
  for (const uint32_t threshold : hbi::kMantissaBits) {
    const auto above = hn::Gt(mantissa, hn::Set(d, static_cast<int32_t>(threshold & 0x7fffff)));
    q = hn::Sub(q, hn::VecFromMask(d, above));
  }
  const auto one = hn::Set(d, 1);
  const auto steps = [&](int from, int code) HWY_ATTR {
    return hn::Add(hn::ShiftRight<4>(hn::Add(q, hn::Set(d, 15 - from))), hn::Set(d, code));
  };
  const auto low = hn::Max(one, steps(hbi::kMinQuarters, 1));
  const auto middle = hn::Add(q, hn::Set(d, 17 - hbi::kLowQuarters));
  const auto high = steps(hbi::kHighQuarters, 217);
  auto code = hn::Min(hn::Max(low, middle), high);
  const auto finite = hn::Gt(hn::Set(d, static_cast<int32_t>(hbi::kInfinityBits)), bits);
  code = hn::IfThenElse(finite, code, hn::Set(d, int32_t{hbi::kPoison}));
  return hn::IfThenZeroElse(hn::Eq(bits, hn::Zero(d)), code);
}

HWY_INLINE void BlockCodes(const float* x, size_t superblocks, uint8_t* codes) {
  constexpr size_t kAtOnce = 16;  // superblocks
  HWY_ALIGN uint32_t maxima[kAtOnce * hbi::kBlocks] = {};
  HWY_ALIGN uint8_t found[kAtOnce * hbi::kBlocks];
  const hn::Rebind<uint8_t, DI32> d8;
  while (superblocks > 0) {
    const size_t run = superblocks < kAtOnce ? superblocks : kAtOnce, blocks = run * hbi::kBlocks;
    for (size_t b = 0; b < blocks; b += 4) MaximaOfFourBlocks(x + b * kBlock, maxima + b);
    for (size_t b = 0; b < blocks; b += kLanes32) {
      const auto bits = hn::BitCast(DI32(), hn::Load(D32(), maxima + b));
      hn::StoreU(hn::DemoteTo(d8, CodesOfMagnitudes(bits)), d8, found + b);
    }
    std::memcpy(codes, found, blocks);
    x += run * kSuperblock;
    codes += blocks;
    superblocks -= run;
  }
}

HWY_INLINE void TopCodes(const uint8_t* codes, size_t superblocks, uint8_t* tops) {
  constexpr size_t kAtOnce = HWY_LANES(uint64_t);  // a superblock's codes fill a 64-bit lane
  HWY_ALIGN uint8_t found[kAtOnce * hbi::kBlocks] = {};
  const V8 poison = hn::Set(D8(), hbi::kPoison);
  for (size_t s = 0; s < superblocks; s += kAtOnce) {
    const size_t run = superblocks - s < kAtOnce ? superblocks - s : kAtOnce;
    V8 top;
    if (run == kAtOnce) {
      top = hn::LoadU(D8(), codes + s * hbi::kBlocks);
    } else {
      std::memcpy(found, codes + s * hbi::kBlocks, run * hbi::kBlocks);
      top = hn::Load(D8(), found);
    }
    top = hn::IfThenZeroElse(hn::Eq(top, poison), top);
    top = hn::Max(top, hn::BitCast(D8(), hn::ShiftRight<32>(hn::BitCast(D64(), top))));
    top = hn::Max(top, hn::BitCast(D8(), hn::ShiftRight<16>(hn::BitCast(D64(), top))));
    top = hn::Max(top, hn::BitCast(D8(), hn::ShiftRight<8>(hn::BitCast(D64(), top))));
    hn::Store(top, D8(), found);
    for (size_t i = 0; i < run; ++i) tops[s + i] = found[i * hbi::kBlocks];
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

// Calls sink(codes) for every kFields elements of the superblocks, in order.
template <class Sink>
HWY_INLINE void QuantizeWithHash(const hbi::QuantizeArgs& args, Sink sink) {
  constexpr size_t kHashes = 16 / kLanes32;  // vectors of hashes of a block; each serves two
  const float* x = args.x;
  const uint8_t* codes = args.codes;
  const float* factors = args.factor;
  const auto k = hn::Set(DI16(), static_cast<int16_t>(args.k));
  const V16 shift = hn::Set(D16(), args.shift);
  const V32 low_half = hn::Set(D32(), 0xffffu);
  V32 counter = hn::Add(hn::Set(D32(), args.counter), hn::Iota(D32(), 0));
  const float* const end = x + size_t{args.superblocks} * kSuperblock;
  for (; x != end; x += kBlock) {
    const auto factor = hn::Set(DF(), factors[*codes++]);
    V32 hash[kHashes];
    for (size_t i = 0; i < kHashes; ++i) {
      const V32 random = LowBias32Lanes(counter);
      hash[i] = hn::BitCast(D32(), hn::Add(hn::BitCast(D16(), random), shift));
      counter = hn::Add(counter, hn::Set(D32(), uint32_t{kLanes32}));
    }
    const auto fixed = [&](size_t i) HWY_ATTR {
      const V32 h = hash[i % kHashes];
      const V32 offset = i < kHashes ? hn::And(h, low_half) : hn::ShiftRight<16>(h);
      const auto value = RoundToInt(hn::Mul(hn::LoadU(DF(), x + i * kLanes32), factor));
      return hn::Add(value, hn::BitCast(DI32(), offset));
    };
    for (size_t i = 0; i < 2 * kHashes; i += 2) sink(CodesOfFixed(fixed(i), fixed(i + 1), k));
  }
}

template <class Sink>
HWY_INLINE void QuantizeToNearest(const hbi::QuantizeArgs& args, Sink sink) {
  const float* x = args.x;
  const auto k = hn::Set(DI16(), static_cast<int16_t>(args.k));
  const auto half = hn::Set(DI32(), int32_t{hbi::kRoundHalfUp});
  for (size_t b = 0; b < hbi::kBlocks; ++b) {
    const auto factor = hn::Set(DF(), args.factor[args.codes[b]]);
    const auto fixed = [&]() HWY_ATTR {
      const auto value = RoundToInt(hn::Mul(hn::LoadU(DF(), x), factor));
      x += kLanes32;
      return hn::Add(value, half);
    };
    for (size_t at = 0; at < kBlock; at += kFields) {
      const auto low = fixed();
      sink(CodesOfFixed(low, fixed(), k));
    }
  }
}

// ---------------------------------------------------------------- decoding

// A sink that decodes fields, kFields per call, in order.
class ToElements {
 public:
  HWY_INLINE ToElements(const hbi::DecodeArgs& args, float* y)
      : zero_(hn::Set(D16(), static_cast<uint16_t>(args.zero))),
        codes_(args.codes),
        step_(args.step),
        y_(y) {}

  HWY_INLINE void operator()(V16 fields) {
    const hn::Half<DI16> half;
    const auto step = hn::Set(DF(), step_[codes_[at_ / kBlock]]);
    const auto sums = hn::BitCast(DI16(), hn::Sub(fields, zero_));
    const auto low = hn::PromoteTo(DI32(), hn::LowerHalf(half, sums));
    const auto high = hn::PromoteTo(DI32(), hn::UpperHalf(half, sums));
    hn::StoreU(hn::Mul(hn::ConvertTo(DF(), low), step), DF(), y_ + at_);
    hn::StoreU(hn::Mul(hn::ConvertTo(DF(), high), step), DF(), y_ + at_ + kLanes32);
    at_ += kFields;
  }

 private:
  V16 zero_;
  const uint8_t* codes_;
  const float* step_;
  float* y_;
  size_t at_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();
#endif  // INCCL_HBI_VECTORS

#endif  // per-target include guard
