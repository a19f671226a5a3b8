// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/hbi_kernels.h"

#include "compress/hbi/format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/hbi_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/hbi_pack-inl.h"
#include "compress/kernels/hbi_quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {

#if INCCL_HBI_VECTORS

void BlockCodesOf(const float* x, size_t superblocks, uint8_t* codes) {
  BlockCodes(x, superblocks, codes);
}

// ---------------------------------------------------------------- where fields come from and go to

struct ToTile {
  uint16_t* tile;
  HWY_INLINE void operator()(size_t at, V16 fields) const { hn::StoreU(fields, D16(), tile + at); }
};

struct AddToTile {
  uint16_t* tile;
  HWY_INLINE void operator()(size_t at, V16 fields) const {
    hn::StoreU(hn::Add(fields, hn::LoadU(D16(), tile + at)), D16(), tile + at);
  }
};

struct ToElements {
  const hbi::DecodeArgs& args;
  float* y;
  HWY_INLINE void operator()(size_t at, V16 fields) const { DecodeFields(args, at, fields, y); }
};

template <bool kOdd>
struct ToStream {
  const Packer<kOdd>& packer;
  uint32_t width;
  uint8_t* out;
  HWY_INLINE void operator()(size_t at, V16 fields) const { packer(fields, out + at / 8 * width); }
};

template <class Unpacker, bool kOdd>
struct AddToStream {
  const Unpacker& unpacker;
  const uint8_t* in;
  uint32_t in_width;
  const Packer<kOdd>& packer;
  uint32_t out_width;
  uint8_t* out;
  HWY_INLINE void operator()(size_t at, V16 fields) const {
    const V16 incoming = unpacker(in + at / 8 * in_width);
    packer(hn::Add(fields, incoming), out + at / 8 * out_width);
  }
};

template <class Unpacker, class Sink>
HWY_INLINE void UnpackWith(const uint8_t* in, uint32_t width, const Sink& sink) {
  const Unpacker unpacker(width);
  for (size_t at = 0; at < kSuperblock; at += kFields) sink(at, unpacker(in + at / 8 * width));
}

template <class Sink>
HWY_INLINE void UnpackTo(const uint8_t* in, uint32_t width, const Sink& sink) {
  if (width <= hbi::kLastNarrow) {
    UnpackWith<NarrowUnpacker>(in, width, sink);
  } else {
    UnpackWith<WideUnpacker>(in, width, sink);
  }
}

template <bool kOdd>
HWY_INLINE void PackAs(const uint16_t* tile, uint32_t width, uint8_t* out) {
  const Packer<kOdd> packer(width);
  for (size_t at = 0; at < kSuperblock; at += kFields) {
    packer(hn::LoadU(D16(), tile + at), out + at / 8 * width);
  }
}

template <bool kOdd>
HWY_INLINE void EncodeAs(const hbi::QuantizeArgs& args, uint32_t width, uint8_t* out) {
  const Packer<kOdd> packer(width);
  QuantizeWithHash(args, ToStream<kOdd>{packer, width, out});
}

template <class Unpacker, bool kOdd>
HWY_INLINE void AddEncodeAs(const hbi::QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
                            uint32_t out_width, uint8_t* out) {
  const Unpacker unpacker(in_width);
  const Packer<kOdd> packer(out_width);
  QuantizeWithHash(args,
                   AddToStream<Unpacker, kOdd>{unpacker, in, in_width, packer, out_width, out});
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
  UnpackTo(in, width, ToTile{tile});
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile) {
  UnpackTo(in, width, AddToTile{tile});
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out) {
  width % 2 != 0 ? PackAs<true>(tile, width, out) : PackAs<false>(tile, width, out);
}

void Encode(const hbi::QuantizeArgs& args, uint32_t width, uint8_t* out) {
  width % 2 != 0 ? EncodeAs<true>(args, width, out) : EncodeAs<false>(args, width, out);
}

void AddEncode(const hbi::QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
               uint32_t out_width, uint8_t* out) {
  const bool odd = out_width % 2 != 0;
  if (in_width <= hbi::kLastNarrow) {
    odd ? AddEncodeAs<NarrowUnpacker, true>(args, in, in_width, out_width, out)
        : AddEncodeAs<NarrowUnpacker, false>(args, in, in_width, out_width, out);
  } else {
    odd ? AddEncodeAs<WideUnpacker, true>(args, in, in_width, out_width, out)
        : AddEncodeAs<WideUnpacker, false>(args, in, in_width, out_width, out);
  }
}

void Decode(const hbi::DecodeArgs& args, const uint16_t* tile, float* y) {
  for (size_t at = 0; at < kSuperblock; at += kFields) {
    DecodeFields(args, at, hn::LoadU(D16(), tile + at), y);
  }
}

void UnpackDecode(const hbi::DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  UnpackTo(in, width, ToElements{args, y});
}

const hbi::Kernels& KernelsOfTarget() {
  static constexpr hbi::Kernels kKernels = {BlockCodesOf, Quantize,  QuantizeAdd, QuantizeNearest,
                                            Unpack,       UnpackAdd, Pack,        Encode,
                                            AddEncode,    Decode,    UnpackDecode};
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
