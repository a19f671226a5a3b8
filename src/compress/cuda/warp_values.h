// SPDX-License-Identifier: Apache-2.0
//
// Converts the eight elements of a lane to and from codes of K levels. Lane l has elements 8 l to
// 8 l + 7 of a superblock, and four lanes share a block. hbi/element.h has the arithmetic of one
// element.
#ifndef INCCL_COMPRESS_CUDA_WARP_VALUES_H_
#define INCCL_COMPRESS_CUDA_WARP_VALUES_H_

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/warp_fields.h"
#include "compress/hbi/element.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"

namespace inccl::cuda {

inline constexpr uint32_t kLanesPerBlock = 4;

// How values are rounded: to nearest, or by the hash at the counter of the superblock's first block
// and the rank's offsets.
struct Rounding {
  uint32_t counter = 0;
  hbi::Offsets offsets = {};
  bool nearest = false;
};

// The bits of the largest magnitude in this lane's block.
template <class Warp>
INCCL_HOST_DEVICE uint32_t BlockMagnitude(const Warp& warp, const float* x) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    largest = largest < magnitude ? magnitude : largest;
  }
  for (uint32_t apart = 1; apart < kLanesPerBlock; apart *= 2) {
    const uint32_t other = warp.Get(largest, warp.lane() ^ apart);
    largest = largest < other ? other : largest;
  }
  return largest;
}

// The side word of the superblock, in all lanes; the blocks' largest magnitudes count `scale`
// times.
template <class Warp>
INCCL_HOST_DEVICE uint32_t SideWord(const Warp& warp, const float* x, float scale) {
  const float largest = std::bit_cast<float>(BlockMagnitude(warp, x));
  const uint32_t scaled = std::bit_cast<uint32_t>(largest * scale) & 0x7fffffff;
  const uint32_t code = hbi::CodeOfMagnitude(scaled);
  uint32_t top = code;
  for (uint32_t apart = kLanesPerBlock; apart < kWarp; apart *= 2) {
    const uint32_t other = warp.Get(top, warp.lane() ^ apart);
    top = top < other ? other : top;
  }
  const uint32_t most = top - 1 < hbi::kMostBelow ? top - 1 : hbi::kMostBelow;
  const uint32_t below = top - code < most ? top - code : most;
  uint32_t word = below << (8 + 3 * (warp.lane() / kLanesPerBlock));
  for (uint32_t apart = kLanesPerBlock; apart < kWarp; apart *= 2) {
    word |= warp.Get(word, warp.lane() ^ apart);
  }
  return hbi::IsLive(top) ? word | top : top;
}

// The scale code of this lane's block.
template <class Warp>
INCCL_HOST_DEVICE uint32_t LaneCode(const Warp& warp, uint32_t word) {
  return hbi::CodeOf(word, warp.lane() / kLanesPerBlock);
}

// A hash serves two elements of a block, 16 apart, which belong to two lanes: each lane computes
// half of the eight hashes that both need.
template <class Warp>
INCCL_HOST_DEVICE void LaneHashes(const Warp& warp, uint32_t counter, uint32_t* hashes) {
  const uint32_t lane = warp.lane(), place = lane % kLanesPerBlock;
  const bool upper = place >= 2;
  const uint32_t first = counter + lane / kLanesPerBlock * 16 + place % 2 * 8 + (upper ? 4 : 0);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t mine = hbi::LowBias32(first + i);
    const uint32_t other = warp.Get(mine, lane ^ 2);
    hashes[i] = upper ? other : mine;
    hashes[4 + i] = upper ? mine : other;
  }
}

template <class Warp>
INCCL_HOST_DEVICE Fields Quantize(const Warp& warp, const float* x, float factor, uint32_t k,
                                  const Rounding& rounding) {
  uint32_t offsets[kLaneElements];
  if (rounding.nearest) {
    for (uint32_t& offset : offsets) offset = hbi::kRoundHalfUp;
  } else {
    LaneHashes(warp, rounding.counter, offsets);
    const uint32_t first = warp.lane() % kLanesPerBlock * kLaneElements;
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      offsets[i] = hbi::RoundingOffset(offsets[i], first + i, rounding.offsets);
    }
  }
  Fields fields;
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    fields.at[i] = hbi::QuantizeElement(x[i], factor, k, offsets[i]);
  }
  return fields;
}

INCCL_HOST_DEVICE inline void Decode(const Fields& fields, uint32_t zero, float step, float* y) {
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    y[i] = hbi::DecodeElement(fields.at[i], zero, step);
  }
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_VALUES_H_
