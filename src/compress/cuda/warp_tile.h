// SPDX-License-Identifier: Apache-2.0
//
// The levels and positions of a tile's superblocks. Lane s holds those of superblock s; other lanes
// get them by shuffles.
#ifndef INCCL_COMPRESS_CUDA_WARP_TILE_H_
#define INCCL_COMPRESS_CUDA_WARP_TILE_H_

#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/kernel_args.h"
#include "compress/hbi/format.h"

namespace inccl::cuda {

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

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_TILE_H_
