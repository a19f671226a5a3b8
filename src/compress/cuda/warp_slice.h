// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels: the work of one warp on one tile of a slice. `part` (below
// kWarpsPerTile) selects the four superblocks of this warp. The same code runs on a GPU and in
// tests (see Warp in warp_fields.h).
#ifndef INCCL_COMPRESS_CUDA_WARP_SLICE_H_
#define INCCL_COMPRESS_CUDA_WARP_SLICE_H_

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"
#include "compress/cuda/warp_fields.h"
#include "compress/hbi/format.h"

namespace inccl::cuda {

// The levels and positions of a tile's superblocks. Lane s holds those of superblock s; other lanes
// get them by shuffles.

// The side words of a tile's superblocks, which may be in memory of the host: the warp reads them
// at once instead of one after the other.
template <class Warp>
class TileWords {
 public:
  INCCL_HOST_DEVICE TileWords(const Warp& warp, const uint32_t* words, uint32_t superblocks,
                              uint32_t tile)
      : warp_(warp) {
    const uint32_t mine = tile * kTile + warp.lane();
    if (mine < superblocks) word_ = words[mine];
  }
  // The word of the tile's superblock s.
  INCCL_HOST_DEVICE uint32_t Of(uint32_t s) const { return warp_.Get(word_, s); }

 private:
  const Warp& warp_;
  uint32_t word_ = 0;
};

// The levels of a tile's superblocks, and the agreed words; 0 beyond the slice's end.
template <class Warp>
class TileLevels {
 public:
  INCCL_HOST_DEVICE TileLevels(const Warp& warp, const SliceArgs& slice, uint32_t tile)
      : warp_(warp),
        slice_(slice),
        first_(tile * kTile),
        words_(warp, slice.words, slice.superblocks(), tile) {
    const uint32_t superblocks = slice.superblocks();
    const uint32_t mine = first_ + warp.lane();
    if (mine < superblocks) point_ = slice.points[mine];
    k_ = slice.choices[point_].k;
    k2_ = slice.choices[point_].k2;
    count_ = superblocks - first_ < kTile ? superblocks - first_ : kTile;
  }

  INCCL_HOST_DEVICE const Warp& warp() const { return warp_; }
  INCCL_HOST_DEVICE const SliceArgs& slice() const { return slice_; }
  INCCL_HOST_DEVICE uint32_t count() const { return count_; }  // superblocks of the tile
  // Index in the slice of the tile's superblock s.
  INCCL_HOST_DEVICE uint32_t Superblock(uint32_t s) const { return first_ + s; }
  INCCL_HOST_DEVICE const LevelChoice& Choice(uint32_t s) const {
    return slice_.choices[warp_.Get(point_, s)];
  }
  INCCL_HOST_DEVICE uint32_t Word(uint32_t s) const { return words_.Of(s); }
  // Width of a packed sum in this lane's superblock.
  INCCL_HOST_DEVICE uint32_t SumWidth(uint32_t contributions) const {
    return hbi::Width(contributions, k_);
  }
  INCCL_HOST_DEVICE uint32_t ResultWidth() const { return hbi::Width(1, k2_); }

 private:
  const Warp& warp_;
  const SliceArgs& slice_;
  const uint32_t first_;
  const TileWords<Warp> words_;
  uint32_t count_;
  uint32_t point_ = 0;  // 0: not coded
  uint32_t k_, k2_;
};

// A packed stream in a tile.
template <class Warp>
class TileStream {
 public:
  // `starts` may be nullptr if nothing is read or written. `width` is that of this lane's
  // superblock.
  INCCL_HOST_DEVICE TileStream(const Warp& warp, const uint32_t* starts, uint32_t tile,
                               uint32_t width)
      : warp_(warp), width_(width) {
    uint32_t sum = width;
    for (uint32_t apart = 1; apart < kWarp; apart *= 2) {
      const uint32_t before = warp.Get(sum, warp.lane() - apart);
      if (warp.lane() >= apart) sum += before;
    }
    if (starts != nullptr) start_ = starts[tile];
    before_ = sum - width;
  }

  // Width and first byte of superblock s.
  INCCL_HOST_DEVICE uint32_t Width(uint32_t s) const { return warp_.Get(width_, s); }
  INCCL_HOST_DEVICE uint64_t FirstByte(uint32_t s) const {
    return uint64_t{start_ + warp_.Get(before_, s)} * hbi::PackedBytes(1);
  }

 private:
  const Warp& warp_;
  uint32_t start_ = 0;  // sum of the widths before the tile
  uint32_t width_;      // width of this lane's superblock
  uint32_t before_;     // sum of the widths of the tile's superblocks before it
};

inline constexpr uint32_t kQuietNan = 0x7fc00000;

// ---------------------------------------------------------------- side words

// Computes side words.
template <class Type, class Warp>
INCCL_HOST_DEVICE void SideWordsTile(const Warp& warp, const void* elements, uint32_t count,
                                     uint32_t* words, uint32_t tile, uint32_t part) {
  const uint32_t first = (tile * kTile + part * kSuperblocksPerWarp) * kSuperblock;
  if (first >= count) return;
  uint32_t mine = 0;
  for (uint32_t s = 0; s < kSuperblocksPerWarp; ++s) {
    float x[kLaneElements];
    LoadEight<Type>(elements, first + s * kSuperblock + warp.lane() * kLaneElements, count, x);
    const uint32_t word = SideWord(warp, x, 1.0f);
    if (warp.lane() == s) mine = word;
  }
  if (warp.lane() < kSuperblocksPerWarp && warp.lane() * kSuperblock + first < count) {
    words[first / kSuperblock + warp.lane()] = mine;
  }
}

// ---------------------------------------------------------------- own elements

// Quantizes the lane's elements of superblock s on the agreed scales.
template <class Type, class Warp>
INCCL_HOST_DEVICE Fields QuantizeOwn(const TileLevels<Warp>& levels, const LevelChoice& choice,
                                     const void* elements, uint32_t s) {
  const Warp& warp = levels.warp();
  const SliceArgs& slice = levels.slice();
  const uint32_t superblock = levels.Superblock(s);
  float x[kLaneElements];
  LoadEight<Type>(elements, superblock * kSuperblock + warp.lane() * kLaneElements, slice.count, x);
  const uint32_t code = LaneCode(warp, levels.Word(s));
  const Rounding rounding{slice.counter + superblock * (kSuperblock / 2), slice.offsets,
                          slice.nearest};
  return Quantize(warp, x, LoadConstant(&choice.sum->factor[code]), choice.k, rounding);
}

INCCL_HOST_DEVICE inline void Accumulate(const Fields& more, Fields* sum) {
  for (uint32_t i = 0; i < kLaneElements; ++i) sum->at[i] += more.at[i];
}

template <class Type, bool kAdd, class Warp>
INCCL_HOST_DEVICE void EncodeTile(const Warp& warp, const EncodeArgs& args, uint32_t tile,
                                  uint32_t part) {
  const TileLevels<Warp> levels(warp, args.slice, tile);
  const TileStream<Warp> in(warp, args.in.tiles, tile, levels.SumWidth(args.in.contributions));
  const TileStream<Warp> out(warp, args.out.tiles, tile, levels.SumWidth(args.out.contributions));
  for (uint32_t i = 0; i < kSuperblocksPerWarp; ++i) {
    const uint32_t s = part * kSuperblocksPerWarp + i;
    if (s >= levels.count()) return;
    const uint32_t width = out.Width(s);
    if (width == 0) continue;
    Fields fields = QuantizeOwn<Type>(levels, levels.Choice(s), args.elements, s);
    if constexpr (kAdd) {
      Accumulate(Unpack(warp, args.in.data + in.FirstByte(s), in.Width(s)), &fields);
    }
    Pack(warp, fields, width, args.out.data + out.FirstByte(s));
  }
}

// ---------------------------------------------------------------- sums of packed fields

// a + b; *carry is 1 if the sum overflows.
INCCL_HOST_DEVICE inline uint32_t AddWord(uint32_t a, uint32_t b, uint32_t* carry) {
  const uint32_t sum = a + b;
  *carry = sum < a ? 1 : 0;
  return sum;
}

// Adds whole superblocks of streams of equal widths by one addition of long integers. A field has
// room for its sum and touches at most two words, so the carry of a word ends in the next word and
// depends only on that word.
template <class Warp>
INCCL_HOST_DEVICE void AddBytes(const Warp& warp, const uint8_t* a, const uint8_t* b,
                                uint32_t bytes, uint8_t* out) {
  const uint32_t vectors = bytes / 16;
  uint32_t before = 0;  // lane 0: the carry of the previous row
  for (uint32_t row = 0; row < vectors; row += kWarp) {
    const uint32_t mine = row + warp.lane();
    Words4 x{}, y{}, sum;
    if (mine < vectors) {
      x = Load16(a + size_t{mine} * 16);
      y = Load16(b + size_t{mine} * 16);
    }
    uint32_t carries[4];
    for (uint32_t i = 0; i < 4; ++i) sum.at[i] = AddWord(x.at[i], y.at[i], &carries[i]);
    const uint32_t neighbour = warp.Get(carries[3], warp.lane() - 1);
    sum.at[0] += warp.lane() == 0 ? before : neighbour;
    for (uint32_t i = 1; i < 4; ++i) sum.at[i] += carries[i - 1];
    before = neighbour;
    if (mine < vectors) Store16(sum, out + size_t{mine} * 16);
  }
}

template <class Warp>
INCCL_HOST_DEVICE void AddTile(const Warp& warp, const AddArgs& args, uint32_t tile,
                               uint32_t part) {
  const TileLevels<Warp> levels(warp, args.slice, tile);
  const uint32_t of_a = levels.SumWidth(args.a.contributions);
  const uint32_t of_b = levels.SumWidth(args.b.contributions);
  const uint32_t of_sum = levels.SumWidth(args.out.contributions);
  const TileStream<Warp> a(warp, args.a.tiles, tile, of_a);
  const TileStream<Warp> b(warp, args.b.tiles, tile, of_b);
  const TileStream<Warp> out(warp, args.out.tiles, tile, of_sum);
  const uint32_t first = part * kSuperblocksPerWarp, last = first + kSuperblocksPerWarp - 1;
  const bool grows = of_a != of_sum || of_b != of_sum;
  if (!warp.Any(grows && warp.lane() >= first && warp.lane() <= last)) {
    const uint64_t end = out.FirstByte(last) + hbi::PackedBytes(out.Width(last));
    AddBytes(warp, args.a.data + a.FirstByte(first), args.b.data + b.FirstByte(first),
             static_cast<uint32_t>(end - out.FirstByte(first)),
             args.out.data + out.FirstByte(first));
    return;
  }
  for (uint32_t i = 0; i < kSuperblocksPerWarp; ++i) {
    const uint32_t s = part * kSuperblocksPerWarp + i;
    if (s >= levels.count()) return;
    const uint32_t width = out.Width(s);
    if (width == 0) continue;
    Fields fields = Unpack(warp, args.a.data + a.FirstByte(s), a.Width(s));
    Accumulate(Unpack(warp, args.b.data + b.FirstByte(s), b.Width(s)), &fields);
    Pack(warp, fields, width, args.out.data + out.FirstByte(s));
  }
}

// ---------------------------------------------------------------- elements

// Writes superblock s, which has no levels: zeros, or NaN if it is poisoned.
template <class Type, class Warp>
INCCL_HOST_DEVICE void StoreUncoded(const TileLevels<Warp>& levels, void* elements, uint32_t s) {
  const Warp& warp = levels.warp();
  const bool poison = hbi::IsPoison(levels.Word(s));
  float y[kLaneElements];
  for (float& value : y) value = std::bit_cast<float>(poison ? kQuietNan : 0u);
  StoreSuperblock<Type>(warp, y, elements, levels.Superblock(s) * kSuperblock,
                        levels.slice().count);
}

template <class Type, class Warp>
INCCL_HOST_DEVICE void DecodeTile(const Warp& warp, const DecodeArgs& args, uint32_t tile,
                                  uint32_t part) {
  const TileLevels<Warp> levels(warp, args.slice, tile);
  const uint32_t h = args.in.contributions;
  const TileWords<Warp> words(warp, args.words, args.slice.superblocks(), tile);
  const TileStream<Warp> in(warp, args.in.tiles, tile,
                            args.result ? levels.ResultWidth() : levels.SumWidth(h));
  for (uint32_t i = 0; i < kSuperblocksPerWarp; ++i) {
    const uint32_t s = part * kSuperblocksPerWarp + i;
    if (s >= levels.count()) return;
    const uint32_t width = in.Width(s);
    if (width == 0) {
      StoreUncoded<Type>(levels, args.elements, s);
      continue;
    }
    const Fields fields = Unpack(warp, args.in.data + in.FirstByte(s), width);
    const LevelChoice& choice = levels.Choice(s);
    const hbi::LevelTable& table = args.result ? *choice.result : *choice.sum;
    const float* steps = args.slice.average ? table.average : table.step;
    const uint32_t superblock = levels.Superblock(s);
    const uint32_t code = LaneCode(warp, words.Of(s));
    float y[kLaneElements];
    Decode(fields, args.result ? choice.k2 : h * choice.k, LoadConstant(&steps[code]), y);
    StoreSuperblock<Type>(warp, y, args.elements, superblock * kSuperblock, args.slice.count);
  }
}

// ---------------------------------------------------------------- everything at once

// Sums superblock s of all sources.
template <class Type, class Warp>
INCCL_HOST_DEVICE Fields FoldSources(const TileLevels<Warp>& levels, const LevelChoice& choice,
                                     const FoldArgs& args, uint32_t tile, uint32_t s) {
  const Warp& warp = levels.warp();
  Fields sum{};
  if (args.own != nullptr) sum = QuantizeOwn<Type>(levels, choice, args.own, s);
  uint64_t first = 0;
  uint32_t width = 0;
  for (uint32_t i = 0; i < args.source_count; ++i) {
    const PackedArgs& source = args.sources[i];
    // Usually all sources have one contribution.
    if (i == 0 || source.contributions != args.sources[i - 1].contributions) {
      const TileStream<Warp> in(warp, source.tiles, tile, levels.SumWidth(source.contributions));
      first = in.FirstByte(s);
      width = in.Width(s);
    }
    Accumulate(Unpack(warp, source.data + first, width), &sum);
  }
  return sum;
}

// The second quantization of y, and its side word.
template <class Warp>
INCCL_HOST_DEVICE Fields Requantize(const TileLevels<Warp>& levels, const LevelChoice& choice,
                                    const float* y, uint32_t s, uint32_t* word) {
  const Warp& warp = levels.warp();
  const SliceArgs& slice = levels.slice();
  *word = SideWord(warp, y, LoadConstant(&choice.result->own));
  const Rounding rounding{
      slice.result_counter + levels.Superblock(s) * (kSuperblock / 2), {}, !slice.unbiased};
  const float factor = LoadConstant(&choice.result->factor[LaneCode(warp, *word)]);
  return Quantize(warp, y, factor, choice.k2, rounding);
}

template <class Type, class Warp>
INCCL_HOST_DEVICE void FoldUncoded(const TileLevels<Warp>& levels, const FoldArgs& args,
                                   uint32_t s) {
  if (args.result_words != nullptr && levels.warp().lane() == 0) {
    args.result_words[levels.Superblock(s)] = hbi::kZeroWord;
  }
  if (args.elements != nullptr) StoreUncoded<Type>(levels, args.elements, s);
}

template <class Type, class Warp>
INCCL_HOST_DEVICE void FoldTile(const Warp& warp, const FoldArgs& args, uint32_t contributions,
                                uint32_t tile, uint32_t part) {
  const TileLevels<Warp> levels(warp, args.slice, tile);
  const bool wants_result = args.result.data != nullptr, wants_sum = args.sum.data != nullptr;
  const TileStream<Warp> sums(warp, args.sum.tiles, tile, levels.SumWidth(contributions));
  const TileStream<Warp> results(warp, args.result.tiles, tile, levels.ResultWidth());
  for (uint32_t i = 0; i < kSuperblocksPerWarp; ++i) {
    const uint32_t s = part * kSuperblocksPerWarp + i;
    if (s >= levels.count()) return;
    const uint32_t width = sums.Width(s);
    if (width == 0) {
      FoldUncoded<Type>(levels, args, s);
      continue;
    }
    const LevelChoice& choice = levels.Choice(s);
    Fields fields = FoldSources<Type>(levels, choice, args, tile, s);
    if (wants_sum) Pack(warp, fields, width, args.sum.data + sums.FirstByte(s));
    if (!wants_result && args.elements == nullptr) continue;
    const uint32_t superblock = levels.Superblock(s);
    uint32_t word = levels.Word(s), zero = contributions * choice.k;
    const hbi::LevelTable* table = choice.sum;
    float y[kLaneElements];
    if (args.requantize) {
      Decode(fields, zero, LoadConstant(&table->step[LaneCode(warp, word)]), y);
      fields = Requantize(levels, choice, y, s, &word);
      table = choice.result;
      zero = choice.k2;
      if (args.result_words != nullptr && warp.lane() == 0) args.result_words[superblock] = word;
      if (wants_result) {
        Pack(warp, fields, results.Width(s), args.result.data + results.FirstByte(s));
      }
    }
    if (args.elements == nullptr) continue;
    const float* steps = args.slice.average ? table->average : table->step;
    Decode(fields, zero, LoadConstant(&steps[LaneCode(warp, word)]), y);
    StoreSuperblock<Type>(warp, y, args.elements, superblock * kSuperblock, args.slice.count);
  }
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_SLICE_H_
