// SPDX-License-Identifier: Apache-2.0
//
// Computes on the host, from the plan, where the tiles of a packed stream begin
// (PackedArgs::tiles).
#ifndef INCCL_COMPRESS_CUDA_LAYOUT_H_
#define INCCL_COMPRESS_CUDA_LAYOUT_H_

#include <cstdint>
#include <span>

#include "compress/cuda/kernel_args.h"
#include "compress/hbi/format.h"

namespace inccl::cuda {

// Sets starts[t] to the sum of the widths of the superblocks before tile t, where width(point) is
// the width of a superblock with this point. Returns the bytes of the whole stream.
template <class WidthOf>
uint64_t TileStarts(std::span<const uint8_t> points, WidthOf width, uint32_t* starts) {
  uint32_t sum = 0;
  for (size_t s = 0; s < points.size(); ++s) {
    if (s % kTile == 0) starts[s / kTile] = sum;
    sum += width(points[s]);
  }
  return uint64_t{sum} * hbi::PackedBytes(1);
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_LAYOUT_H_
