// SPDX-License-Identifier: Apache-2.0
//
// Iterates over the superblocks of a slice and provides the tiles and buffers in which elements and
// packed fields are read and written (used by slice.cc and parts.cc).
#ifndef INCCL_COMPRESS_HBI_WALKER_H_
#define INCCL_COMPRESS_HBI_WALKER_H_

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/convert.h"

namespace inccl::hbi {

inline constexpr uint32_t kMaxPacked = PackedBytes(kMostHalfBits);
inline constexpr uint32_t kAtOnce = 8;  // superblocks of a tile

// All buffers together fit into the L1 cache.
class Walker {
 public:
  explicit Walker(const SliceContext& slice)
      : slice_(slice),
        plain_(slice.type == DataType::kFloat32 && !slice.rotate),
        whole_(slice.rotate ? 0 : slice.count / kSuperblock) {}

  uint32_t superblocks() const { return slice_.superblocks(); }
  const Point& PointOf(uint32_t s) const { return slice_.planner->points()[slice_.points[s]]; }
  const uint8_t* Words(uint32_t s) const { return slice_.words + size_t{s} * kWordBytes; }
  // True if superblock s lies in the caller's memory as the 256 floats to code.
  bool InPlace(uint32_t s) const { return plain_ && Count(s) == kSuperblock; }
  uint32_t Count(uint32_t s) const { return std::min(kSuperblock, slice_.count - s * kSuperblock); }

  // The floats of `run` superblocks from s on: in place if possible, else read to a buffer. `run`
  // is at most AtOnce.
  const float* Elements(uint32_t s, const std::byte* elements, uint32_t run = 1) {
    if (InPlace(s)) return reinterpret_cast<const float*>(elements) + size_t{s} * kSuperblock;
    if (run == 1) {
      Read(s, elements, many_);
    } else {
      ToFloat(slice_.type, elements + size_t{s} * kSuperblock * SizeOf(slice_.type), many_,
              size_t{run} * kSuperblock);
    }
    return many_;
  }
  // Converts, pads and rotates superblock s.
  void Read(uint32_t s, const std::byte* elements, float* x) const {
    const uint32_t count = Count(s);
    ToFloat(slice_.type, elements + size_t{s} * kSuperblock * SizeOf(slice_.type), x, count);
    std::memset(x + count, 0, (kSuperblock - count) * sizeof(float));
    if (slice_.rotate) slice_.kernels->rotate(x, Signs(s));
  }

  // Number of superblocks from s on with the same levels, up to `most`.
  uint32_t Run(uint32_t s, uint32_t most = std::numeric_limits<uint32_t>::max()) const {
    const uint32_t left = std::min(superblocks() - s, most);
    uint32_t run = 1;
    while (run < left && slice_.points[s + run] == slice_.points[s]) ++run;
    return run;
  }

  // The most superblocks whose elements can be read or written at once.
  uint32_t most() const { return plain_ ? std::numeric_limits<uint32_t>::max() : kAtOnce; }
  // Number of these whose elements can be read or written at once.
  uint32_t AtOnce(uint32_t s, uint32_t run) const {
    if (s >= whole_) return 1;
    return std::min({run, whole_ - s, most()});
  }

  // What is quantized of superblocks from s on.
  QuantizeArgs Own(uint32_t s, const std::byte* elements, const Point& point, uint32_t run) {
    return {.x = Elements(s, elements, run),
            .words = Words(s),
            .factor = point.sum->factor,
            .k = point.k,
            .counter = slice_.counter + s * (kSuperblock / 2),
            .offsets = slice_.offsets,
            .superblocks = run};
  }

  // Number of superblocks, up to `run`, that fit `bytes` with `slack` behind them; at least 1,
  // which Take and Room always support.
  static uint32_t Within(std::ptrdiff_t bytes, uint32_t width, uint32_t slack, uint32_t run) {
    const size_t usable =
        static_cast<size_t>(bytes) < slack ? 0 : static_cast<size_t>(bytes) - slack;
    return static_cast<uint32_t>(std::clamp<size_t>(usable / PackedBytes(width), 1, run));
  }

  // The next superblocks of a packed stream, with kReadSlack behind them. `run` is at most Within.
  const uint8_t* Take(Source* source, uint32_t width, uint32_t run = 1) {
    const size_t bytes = size_t{run} * PackedBytes(width);
    const uint8_t* in = source->at;
    source->at += bytes;
    if (static_cast<size_t>(source->end - in) >= bytes + kReadSlack) return in;
    std::memcpy(in_, in, PackedBytes(width));
    return in_;
  }

  // Where to pack the next superblocks, with kWriteSlack behind them; `run` is at most Within. Put
  // completes it.
  uint8_t* Room(const Sink& sink, uint32_t width, uint32_t run = 1) {
    const size_t bytes = size_t{run} * PackedBytes(width);
    return static_cast<size_t>(sink.limit - sink.at) >= bytes + kWriteSlack ? sink.at : out_;
  }
  void Put(const uint8_t* packed, uint32_t width, Sink* sink, uint32_t run = 1) {
    if (packed == out_) std::memcpy(sink->at, out_, PackedBytes(width));
    sink->at += size_t{run} * PackedBytes(width);
  }

  // Where to decode superblocks from s on, at most AtOnce; PutElements completes it.
  float* ElementRoom(uint32_t s, std::byte* elements) {
    return InPlace(s) ? reinterpret_cast<float*>(elements) + size_t{s} * kSuperblock : many_;
  }
  void PutElements(uint32_t s, const float* y, std::byte* elements, uint32_t run = 1) {
    if (y != many_) return;
    if (slice_.rotate) slice_.kernels->rotate_back(many_, Signs(s));
    const uint32_t count = run == 1 ? Count(s) : run * kSuperblock;
    FromFloat(slice_.type, y, elements + size_t{s} * kSuperblock * SizeOf(slice_.type), count);
  }

  // Writes superblock s, which has no levels: zeros, or NaN if it is poisoned.
  void PutUncoded(uint32_t s, std::byte* elements) {
    float* y = ElementRoom(s, elements);
    const bool poison = IsPoison(LoadWord(slice_.words, s));
    std::fill_n(y, kSuperblock, poison ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    PutElements(s, y, elements);
  }

  uint16_t* tile() { return tile_; }  // kAtOnce superblocks
  float* many() { return many_; }     // kAtOnce superblocks

 private:
  uint32_t Signs(uint32_t s) const { return slice_.sign_counter + s * (kSuperblock / 2); }

  const SliceContext& slice_;
  const bool plain_;
  const uint32_t whole_;  // superblocks that are not rotated and have 256 elements
  alignas(64) uint16_t tile_[kAtOnce * kSuperblock];
  alignas(64) float many_[kAtOnce * kSuperblock];
  alignas(64) uint8_t in_[kMaxPacked + kReadSlack] = {};
  alignas(64) uint8_t out_[kMaxPacked + kWriteSlack];
};

// Sums `run` superblocks of the sources from s on, of one point, into the tile.
inline void FoldTile(const SliceContext& slice, Walker* walker, uint32_t s, uint32_t run,
                     const Point& point, std::span<Source> sources) {
  const Kernels& kernels = *slice.kernels;
  bool first = true;
  for (Source& source : sources) {
    const uint32_t width = Width(source.contributions, point.k);
    for (uint32_t i = 0, done = 1; i < run; i += done) {
      uint16_t* tile = walker->tile() + size_t{i} * kSuperblock;
      if (source.elements != nullptr) {
        done = walker->AtOnce(s + i, run - i);
        const QuantizeArgs own = walker->Own(s + i, source.elements, point, done);
        const auto quantize = slice.nearest ? kernels.quantize_nearest : kernels.quantize;
        (first ? quantize : kernels.quantize_add)(own, tile);
      } else {
        done = Walker::Within(source.end - source.at, width, kReadSlack, run - i);
        const uint8_t* in = walker->Take(&source, width, done);
        (first ? kernels.unpack : kernels.unpack_add)(in, width, tile, done);
      }
    }
    first = false;
  }
}

// Packs `run` superblocks of the tile.
inline void PackTile(const SliceContext& slice, Walker* walker, uint32_t width, uint32_t run,
                     Sink* sink) {
  for (uint32_t i = 0, done = 1; i < run; i += done) {
    done = Walker::Within(sink->limit - sink->at, width, kWriteSlack, run - i);
    uint8_t* out = walker->Room(*sink, width, done);
    slice.kernels->pack(walker->tile() + size_t{i} * kSuperblock, width, out, done);
    walker->Put(out, width, sink, done);
  }
}

// Quantizes y on the scales of `own_word` into a superblock's tile, with K2 levels.
inline void RequantizeValues(const SliceContext& slice, const QuantizeArgs& how, float* y,
                             const uint8_t* own_word, uint16_t* tile) {
  const Kernels& kernels = *slice.kernels;
  if (IsPoison(LoadWord(own_word, 0))) std::fill_n(y, kSuperblock, 0.0f);
  QuantizeArgs args = how;
  args.x = y;
  args.words = own_word;
  (slice.unbiased ? kernels.quantize : kernels.quantize_nearest)(args, tile);
}

// The arguments of the result's quantization.
inline QuantizeArgs ResultRounding(const SliceContext& slice, uint32_t s, const Point& point) {
  return {.factor = point.result->factor,
          .k = point.k2,
          .counter = slice.result_counter + s * (kSuperblock / 2)};
}

// Quantizes the tile's sums of `run` superblocks from s on for the result.
inline void RequantizeTile(const SliceContext& slice, Walker* walker, uint32_t s,
                           const Point& point, const DecodeArgs& sum, uint8_t* own_words) {
  const Kernels& kernels = *slice.kernels;
  if (!slice.unbiased) {
    const RequantizeArgs args{
        .sum = sum, .own = point.result->own, .factor = point.result->factor, .k = point.k2};
    return kernels.requantize(args, walker->tile(), own_words);
  }
  kernels.decode(sum, walker->tile(), walker->many());
  kernels.side_words(walker->many(), sum.superblocks, point.result->own, own_words);
  for (uint32_t i = 0; i < sum.superblocks; ++i) {
    const size_t at = size_t{i} * kSuperblock;
    RequantizeValues(slice, ResultRounding(slice, s + i, point), walker->many() + at,
                     own_words + size_t{i} * kWordBytes, walker->tile() + at);
  }
}

// Writes superblocks from s on from the tile to the wanted outputs: packed, and decoded.
inline void PutResult(const SliceContext& slice, Walker* walker, uint32_t s, const Point& point,
                      const DecodeArgs& decode, Sink* result, std::byte* elements) {
  const uint32_t run = decode.superblocks;
  if (result->at != nullptr) PackTile(slice, walker, Width(1, point.k2), run, result);
  if (elements == nullptr) return;
  DecodeArgs part = decode;
  for (uint32_t i = 0; i < run; i += part.superblocks) {
    part.words = decode.words + size_t{i} * kWordBytes;
    part.superblocks = walker->AtOnce(s + i, run - i);
    float* y = walker->ElementRoom(s + i, elements);
    slice.kernels->decode(part, walker->tile() + size_t{i} * kSuperblock, y);
    walker->PutElements(s + i, y, elements, part.superblocks);
  }
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_WALKER_H_
