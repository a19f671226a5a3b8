// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/hbi_kernels.h"

#include <type_traits>

#include "compress/hbi/format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/hbi_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_pack-inl.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "compress/kernels/hbi_side_words-inl.h"
#include "compress/kernels/hbi_strip-inl.h"
#include "compress/kernels/hbi_strip_avx2-inl.h"
#include "compress/kernels/hbi_strip_common-inl.h"
#include "compress/kernels/hbi_strip_vbmi-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

void WordsOfFloats(const float* x, size_t superblocks, float scale, uint8_t* words) {
  SideWords(x, superblocks, scale, words);
}

void WordsOfNarrow(const uint16_t* x, DataType type, size_t superblocks, uint8_t* words) {
  if (type == DataType::kBfloat16) return SideWordsOfNarrow<Bf16>(x, superblocks, words);
  SideWordsOfNarrow<Fp16>(x, superblocks, words);
}

void MergeWordsInto(const uint8_t* from, size_t superblocks, uint8_t* words) {
  MergeWords(from, superblocks, words);
}

void Rotate(float* x, uint32_t counter) { RotateSuperblock<false>(x, counter); }

void RotateBack(float* x, uint32_t counter) { RotateSuperblock<true>(x, counter); }

// ---------------------------------------------------------------- sources and sinks of fields

// Lower and Upper handle the kPerBlock vectors of the first and second of every two blocks, in
// order.
struct ToTile {
  uint16_t* tile;
  HWY_INLINE void Lower(const V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) hn::StoreU(fields[i], D16(), tile + i * kFields);
    tile += kBlock;
  }
  HWY_INLINE void Upper(const V16* fields) { Lower(fields); }
};

struct AddToTile {
  uint16_t* tile;
  HWY_INLINE void Lower(const V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i, tile += kFields) {
      hn::StoreU(hn::Add(fields[i], hn::LoadU(D16(), tile)), D16(), tile);
    }
  }
  HWY_INLINE void Upper(const V16* fields) { Lower(fields); }
};

struct FromTile {
  const uint16_t* tile;
  HWY_INLINE void Lower(V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) fields[i] = hn::LoadU(D16(), tile + i * kFields);
    tile += kBlock;
  }
  HWY_INLINE void Upper(V16* fields) { Lower(fields); }
};

// kOdd: fields have an odd number of bits.
template <bool kPairs, bool kOdd>
struct ToStream {
  Packer<kOdd> packer;
  uint8_t* out;
  size_t stride;
  HWY_INLINE ToStream(uint32_t width, uint8_t* to)
      : packer(width / 2), out(to), stride(kGroups * (width / 2)) {}
  HWY_INLINE void Lower(const V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) Put(fields[i]);
  }
  HWY_INLINE void Upper(const V16* fields) { Lower(fields); }
  HWY_INLINE void Put(V16 fields) {
    packer(fields, out);
    out += stride;
  }
};

template <bool kOdd>
struct ToStream<true, kOdd> {
  ToStream<false, kOdd> stream;
  V16 base;
  V16 lower[kPerBlock];
  HWY_INLINE ToStream(uint32_t width, uint8_t* to)
      : stream(2 * width, to), base(hn::Set(D16(), static_cast<uint16_t>(hbi::PairBase(width)))) {}
  HWY_INLINE void Lower(const V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) lower[i] = fields[i];
  }
  HWY_INLINE void Upper(const V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) {
      stream.Put(hn::Add(lower[i], hn::Mul(fields[i], base)));
    }
  }
};

template <bool kPairs, class Unpacker>
struct FromStream {
  Unpacker unpacker;
  const uint8_t* in;
  size_t stride;
  HWY_INLINE FromStream(uint32_t width, const uint8_t* from)
      : unpacker(width / 2), in(from), stride(kGroups * (width / 2)) {}
  HWY_INLINE void Lower(V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) fields[i] = Take();
  }
  HWY_INLINE void Upper(V16* fields) { Lower(fields); }
  HWY_INLINE V16 Take() {
    const V16 fields = unpacker(in);
    in += stride;
    return fields;
  }
};

template <class Unpacker>
struct FromStream<true, Unpacker> {
  FromStream<false, Unpacker> stream;
  V16 base, times;
  int shift;
  V16 upper[kPerBlock];
  HWY_INLINE FromStream(uint32_t width, const uint8_t* from)
      : stream(2 * width, from),
        base(hn::Set(D16(), static_cast<uint16_t>(hbi::PairBase(width)))),
        times(hn::Set(D16(), static_cast<uint16_t>(hbi::InverseOfBase(width).times))),
        shift(static_cast<int>(hbi::InverseOfBase(width).shift)) {}
  HWY_INLINE void Lower(V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) {
      const V16 pair = stream.Take();
      upper[i] = hn::ShiftRightSame(hn::MulHigh(pair, times), shift);
      fields[i] = hn::Sub(pair, hn::Mul(upper[i], base));
    }
  }
  HWY_INLINE void Upper(V16* fields) {
    for (size_t i = 0; i < kPerBlock; ++i) fields[i] = upper[i];
  }
};

// Adds the fields of `source` on their way to `sink`.
template <class Source, class Sink>
struct Added {
  Source source;
  Sink sink;
  HWY_INLINE void Lower(const V16* fields) {
    V16 sums[kPerBlock];
    source.Lower(sums);
    for (size_t i = 0; i < kPerBlock; ++i) sums[i] = hn::Add(sums[i], fields[i]);
    sink.Lower(sums);
  }
  HWY_INLINE void Upper(const V16* fields) {
    V16 sums[kPerBlock];
    source.Upper(sums);
    for (size_t i = 0; i < kPerBlock; ++i) sums[i] = hn::Add(sums[i], fields[i]);
    sink.Upper(sums);
  }
};

template <class Source, class Sink>
HWY_INLINE void Move(Source source, Sink sink, uint32_t superblocks) {
  for (size_t i = 0; i < size_t{superblocks} * (hbi::kBlocks / 2); ++i) {
    V16 fields[kPerBlock];
    source.Lower(fields);
    sink.Lower(fields);
    source.Upper(fields);
    sink.Upper(fields);
  }
}

// Calls work(source) with what reads a stream of this width.
template <class Work>
HWY_INLINE void WithSource(const uint8_t* in, uint32_t width, Work work) {
  const bool pairs = width % 2 != 0;
  if ((pairs ? width : width / 2) <= hbi::kLastNarrow) {
    pairs ? work(FromStream<true, NarrowUnpacker>(width, in))
          : work(FromStream<false, NarrowUnpacker>(width, in));
  } else {
    pairs ? work(FromStream<true, WideUnpacker>(width, in))
          : work(FromStream<false, WideUnpacker>(width, in));
  }
}

// Calls work(sink) with what writes a stream of this width.
template <class Work>
HWY_INLINE void WithSink(uint8_t* out, uint32_t width, Work work) {
  if (width % 2 != 0) {
    work(ToStream<true, true>(width, out));
  } else if (width % 4 != 0) {
    work(ToStream<false, true>(width, out));
  } else {
    work(ToStream<false, false>(width, out));
  }
}

// ---------------------------------------------------------------- the table

void Quantize(const hbi::QuantizeArgs& args, uint16_t* tile) {
  QuantizeWithHash(args, ToTile{tile});
}

void QuantizeAdd(const hbi::QuantizeArgs& args, uint16_t* tile) {
  QuantizeWithHash(args, AddToTile{tile});
}

void QuantizeNearest(const hbi::QuantizeArgs& args, uint16_t* tile) {
  QuantizeToNearest(args, ToTile{tile});
}

void Unpack(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  WithSource(in, width, [&](auto source) HWY_ATTR { Move(source, ToTile{tile}, superblocks); });
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  WithSource(in, width, [&](auto source) HWY_ATTR { Move(source, AddToTile{tile}, superblocks); });
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out, uint32_t superblocks) {
  WithSink(out, width, [&](auto sink) HWY_ATTR { Move(FromTile{tile}, sink, superblocks); });
}

void Encode(const hbi::QuantizeArgs& args, uint32_t width, uint8_t* out) {
  WithSink(out, width, [&](auto sink) HWY_ATTR { QuantizeWithHash(args, sink); });
}

void AddEncode(const hbi::QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
               uint32_t out_width, uint8_t* out) {
  WithSource(in, in_width, [&](auto source) HWY_ATTR {
    WithSink(out, out_width, [&](auto sink) HWY_ATTR {
      QuantizeWithHash(args, Added<decltype(source), decltype(sink)>{source, sink});
    });
  });
}

void Decode(const hbi::DecodeArgs& args, const uint16_t* tile, float* y) {
  DecodeBlocks(args, FromTile{tile}, y);
}

void Requantize(const hbi::RequantizeArgs& args, uint16_t* tile, uint8_t* words) {
  SideWordsOfSums(args, tile, words);
  RequantizeBlocks(args, words, tile);
}

void UnpackDecode(const hbi::DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  WithSource(in, width, [&](auto source) HWY_ATTR { DecodeBlocks(args, source, y); });
}

#if INCCL_HBI_STRIPS
// Calls work(std::integral_constant<DataType, type>()).
template <class Work>
HWY_INLINE auto WithType(DataType type, Work work) {
  switch (type) {
    case DataType::kFloat16: return work(std::integral_constant<DataType, DataType::kFloat16>());
    case DataType::kBfloat16: return work(std::integral_constant<DataType, DataType::kBfloat16>());
    default: return work(std::integral_constant<DataType, DataType::kFloat32>());
  }
}

bool IsMasked(const hbi::Offsets& offsets) { return (offsets.ranks & (offsets.ranks - 1)) == 0; }

uint8_t* EncodeStrip(const hbi::Strip& strip, const std::byte* x, uint32_t counter,
                     const hbi::Offsets& offsets, bool nearest, uint8_t* out) {
  return WithType(strip.type, [&](auto type) HWY_ATTR {
    const auto encode = [&]() HWY_ATTR {
      if (nearest) return EncodeStripOf<type(), ToHalves, Moves::kNone>;
      if (!IsMasked(offsets)) return EncodeStripOf<type(), ToOffsets<false>, Moves::kNone>;
      switch (MovesOf(offsets)) {
        case Moves::kHalf: return EncodeStripOf<type(), ToOffsets<true>, Moves::kHalf>;
        case Moves::kAny: return EncodeStripOf<type(), ToOffsets<true>, Moves::kAny>;
        default: return EncodeStripOf<type(), ToOffsets<true>, Moves::kNone>;
      }
    };
    return encode()(strip, x, counter, offsets, out);
  });
}

const uint8_t* DecodeStrip(const hbi::Strip& strip, const hbi::StripDecoding& how,
                           const uint8_t* in, std::byte* y) {
#if INCCL_HBI_STRIPS_AVX2  // the kernels of tiles take fewer instructions
  if (strip.type == DataType::kFloat32) return DecodeRuns(strip, how, in, y);
#endif
  return WithType(strip.type,
                  [&](auto type) HWY_ATTR { return DecodeStripOf<type()>(strip, how, in, y); });
}

void FoldStrip(const hbi::Strip& strip, hbi::StripFold* fold) {
  WithType(strip.type, [&](auto type) HWY_ATTR {
    const auto fold_strip = [&]() HWY_ATTR {
      if (!IsMasked(fold->offsets)) return FoldStripOf<type(), false, Moves::kNone>;
      switch (MovesOf(fold->offsets)) {
        case Moves::kHalf: return FoldStripOf<type(), true, Moves::kHalf>;
        case Moves::kAny: return FoldStripOf<type(), true, Moves::kAny>;
        default: return FoldStripOf<type(), true, Moves::kNone>;
      }
    };
    fold_strip()(strip, fold);
  });
}
#endif  // INCCL_HBI_STRIPS

const hbi::Kernels& KernelsOfTarget() {
  static constexpr hbi::Kernels kKernels = {
    WordsOfFloats,
    WordsOfNarrow,
    MergeWordsInto,
    Rotate,
    RotateBack,
    Quantize,
    QuantizeAdd,
    QuantizeNearest,
    Unpack,
    UnpackAdd,
    Pack,
    Encode,
    AddEncode,
    Decode,
    Requantize,
    UnpackDecode,
#if INCCL_HBI_STRIPS
#if INCCL_HBI_STRIPS_AVX2
    StripPays,
#else
    nullptr,
#endif
    EncodeStrip,
    DecodeStrip,
    FoldStrip
#endif
  };
  return kKernels;
}

#else

const hbi::Kernels& KernelsOfTarget() { return hbi::ScalarKernels(); }

#endif  // INCCL_HBI_VECTORS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl::hbi {
namespace {
HWY_EXPORT(KernelsOfTarget);
}  // namespace
const Kernels& BestKernels() { return HWY_DYNAMIC_DISPATCH(KernelsOfTarget)(); }
}  // namespace inccl::hbi
#endif  // HWY_ONCE
