// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/hbi_kernels.h"

#include "compress/hbi/format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/hbi_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_pack-inl.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "compress/kernels/hbi_rotate-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

void BlockCodesOf(const float* x, size_t superblocks, uint8_t* codes) {
  BlockCodes(x, superblocks, codes);
}

void TopCodesOf(const uint8_t* codes, size_t superblocks, uint8_t* tops) {
  TopCodes(codes, superblocks, tops);
}

void Rotate(float* x, uint32_t counter) { RotateSuperblock<false>(x, counter); }

void RotateBack(float* x, uint32_t counter) { RotateSuperblock<true>(x, counter); }

// ---------------------------------------------------------------- sources and sinks of fields

// Each call handles the next kFields fields.

struct ToTile {
  uint16_t* tile;
  HWY_INLINE void operator()(V16 fields) {
    hn::StoreU(fields, D16(), tile);
    tile += kFields;
  }
};

struct AddToTile {
  uint16_t* tile;
  HWY_INLINE void operator()(V16 fields) {
    hn::StoreU(hn::Add(fields, hn::LoadU(D16(), tile)), D16(), tile);
    tile += kFields;
  }
};

template <bool kOdd>
struct ToStream {
  Packer<kOdd> packer;
  uint8_t* out;
  size_t stride;
  HWY_INLINE ToStream(uint32_t width, uint8_t* to)
      : packer(width), out(to), stride(kGroups * width) {}
  HWY_INLINE void operator()(V16 fields) {
    packer(fields, out);
    out += stride;
  }
};

template <class Unpacker, bool kOdd>
struct AddToStream {
  Unpacker unpacker;
  const uint8_t* in;
  size_t stride;
  ToStream<kOdd> stream;
  HWY_INLINE AddToStream(uint32_t in_width, const uint8_t* from, uint32_t out_width, uint8_t* to)
      : unpacker(in_width), in(from), stride(kGroups * in_width), stream(out_width, to) {}
  HWY_INLINE void operator()(V16 fields) {
    stream(hn::Add(fields, unpacker(in)));
    in += stride;
  }
};

template <class Unpacker, class Sink>
HWY_INLINE void UnpackWith(const uint8_t* in, uint32_t width, size_t superblocks, Sink sink) {
  const Unpacker unpacker(width);
  const size_t stride = kGroups * width;
  const uint8_t* const end = in + superblocks * hbi::PackedBytes(width);
  for (; in != end; in += stride) sink(unpacker(in));
}

template <class Sink>
HWY_INLINE void UnpackTo(const uint8_t* in, uint32_t width, size_t superblocks, Sink sink) {
  if (width <= hbi::kLastNarrow) {
    UnpackWith<NarrowUnpacker>(in, width, superblocks, sink);
  } else {
    UnpackWith<WideUnpacker>(in, width, superblocks, sink);
  }
}

template <class Unpacker>
HWY_INLINE void AddEncodeWith(const hbi::QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
                              uint32_t out_width, uint8_t* out) {
  if (out_width % 2 != 0) {
    QuantizeWithHash(args, AddToStream<Unpacker, true>(in_width, in, out_width, out));
  } else {
    QuantizeWithHash(args, AddToStream<Unpacker, false>(in_width, in, out_width, out));
  }
}

template <bool kOdd>
HWY_INLINE void PackAs(const uint16_t* tile, uint32_t width, uint8_t* out) {
  ToStream<kOdd> stream(width, out);
  for (size_t at = 0; at < kSuperblock; at += kFields) stream(hn::LoadU(D16(), tile + at));
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

void Unpack(const uint8_t* in, uint32_t width, uint16_t* tile) {
  UnpackTo(in, width, 1, ToTile{tile});
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile) {
  UnpackTo(in, width, 1, AddToTile{tile});
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out) {
  width % 2 != 0 ? PackAs<true>(tile, width, out) : PackAs<false>(tile, width, out);
}

void Encode(const hbi::QuantizeArgs& args, uint32_t width, uint8_t* out) {
  if (width % 2 != 0) {
    QuantizeWithHash(args, ToStream<true>(width, out));
  } else {
    QuantizeWithHash(args, ToStream<false>(width, out));
  }
}

void AddEncode(const hbi::QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
               uint32_t out_width, uint8_t* out) {
  if (in_width <= hbi::kLastNarrow) {
    AddEncodeWith<NarrowUnpacker>(args, in, in_width, out_width, out);
  } else {
    AddEncodeWith<WideUnpacker>(args, in, in_width, out_width, out);
  }
}

void Decode(const hbi::DecodeArgs& args, const uint16_t* tile, float* y) {
  ToElements elements(args, y);
  for (size_t at = 0; at < kSuperblock; at += kFields) elements(hn::LoadU(D16(), tile + at));
}

void UnpackDecode(const hbi::DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  UnpackTo(in, width, args.superblocks, ToElements(args, y));
}

const hbi::Kernels& KernelsOfTarget() {
  static constexpr hbi::Kernels kKernels = {
      BlockCodesOf, TopCodesOf, Rotate, RotateBack, Quantize,  QuantizeAdd, QuantizeNearest,
      Unpack,       UnpackAdd,  Pack,   Encode,     AddEncode, Decode,      UnpackDecode};
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
