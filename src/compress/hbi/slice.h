// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice, superblock by superblock: any sums and own elements in; packed sums, the
// requantized result and elements out. Lengths have been checked: nothing here can fail.
#ifndef INCCL_COMPRESS_HBI_SLICE_H_
#define INCCL_COMPRESS_HBI_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "compress/codec.h"
#include "compress/hbi/plan.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {

// What a slice's superblocks have in common.
struct SliceContext {
  const Kernels* kernels = nullptr;
  const Planner* planner = nullptr;
  DataType type = DataType::kFloat32;
  bool average = false;
  bool nearest = false;         // own elements are rounded to nearest, without hash and shift
  bool rotate = false;          // superblocks are rotated on their way in and back on the way out
  bool unbiased = false;        // the second quantization has a hash, else it is to nearest
  uint16_t shift = 0;           // RankShift of this rank
  uint32_t counter = 0;         // HashCounter of the slice's first block
  uint32_t result_counter = 0;  // likewise, for the second quantization
  uint32_t sign_counter = 0;    // likewise, for the signs of a rotation
  uint32_t group_counter = 0;   // likewise, for sums of groups (policy H)
  uint32_t count = 0;           // elements; the last superblock may be partial
  const uint8_t* codes = nullptr;   // agreed (all-gather: the sender's), kBlocks per superblock
  const uint8_t* points = nullptr;  // planned, one per superblock

  uint32_t superblocks() const { return (count + kSuperblock - 1) / kSuperblock; }
};

// A packed sum, or (contributions 1, `elements` set) the caller's own elements.
struct Source {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  uint32_t contributions = 1;
  const std::byte* elements = nullptr;
};

// Writable memory for packed data: [at, limit).
struct Sink {
  uint8_t* at = nullptr;
  uint8_t* limit = nullptr;
};

// Null where an output is not wanted.
struct SliceOutputs {
  Sink sum;                       // packed, of all contributions together
  Sink result;                    // kResult; unless Planner::requantizes() use `sum`
  std::byte* elements = nullptr;  // decoded, in the caller's type
};

// Bytes of a slice's packed sum of h contributions, and of its kResult payload.
uint64_t SumBytes(const SliceContext& slice, uint32_t contributions);
uint64_t ResultBytes(const SliceContext& slice);

// Folds the sources (at least one; `at` advances) into the outputs. `result` and `elements` need
// all contributions.
void FoldSlice(const SliceContext& slice, std::span<Source> sources, const SliceOutputs& outputs);

// Decodes a kResult payload of ResultBytes bytes whose codes have been checked.
void DecodeResult(const SliceContext& slice, const uint8_t* payload, std::byte* elements);

// Scale codes of a slice's elements, kBlocks per superblock, zeros beyond the end: written to
// `codes` if they are the first, else combined with what is there by MAX.
void FoldOwnCodes(const SliceContext& slice, const std::byte* elements, bool first, uint8_t* codes);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_SLICE_H_
