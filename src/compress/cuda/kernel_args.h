// SPDX-License-Identifier: Apache-2.0
//
// What the kernels get: plain structs that are passed by value, all pointers to memory that the
// device can reach. A tile is 32 superblocks; the last tile of a slice may have fewer.
#ifndef INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_
#define INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_

#include <cstdint>

#include "base/types.h"
#include "compress/hbi/level_table.h"

namespace inccl::cuda {

inline constexpr uint32_t kWarp = 32;         // lanes
inline constexpr uint32_t kTile = 32;         // superblocks
inline constexpr uint32_t kWarpsPerTile = 8;  // a thread block works on one tile
inline constexpr uint32_t kSuperblocksPerWarp = kTile / kWarpsPerTile;
inline constexpr uint32_t kMaxSources = 64;
inline constexpr uint32_t kMaxReduced = 8;  // outputs of a plain reduction

// Element types of callers' buffers.
enum class ElementType : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64 };
inline constexpr int kElementTypes = 4;

// Casts of fp32, as the codecs bf16, fp16, fp8 and mxfp8 make them.
enum class CastFormat : uint8_t { kBf16, kFp16, kE4m3, kE5m2, kMxE4m3, kMxE5m2 };
inline constexpr int kCastFormats = 6;

// hbi::Point with tables that the device can read. Where k is 0, nothing is coded.
struct LevelChoice {
  uint32_t k = 0, k2 = 0;
  const hbi::LevelTable* sum = nullptr;     // of k
  const hbi::LevelTable* result = nullptr;  // of k2
};

// hbi::SliceContext.
struct SliceArgs {
  const uint8_t* codes = nullptr;        // agreed, 8 per superblock
  const uint8_t* points = nullptr;       // planned, one per superblock: indices of
  const LevelChoice* choices = nullptr;  // what superblocks can be given
  uint32_t count = 0;                    // elements; the last superblock may be partial
  uint32_t counter = 0;                  // HashCounter of the slice's first block
  uint32_t result_counter = 0;           // likewise, for the second quantization
  uint32_t shift = 0;                    // RankShift
  bool nearest = false;                  // own elements are rounded to nearest
  bool unbiased = false;                 // the second quantization has a hash
  bool average = false;

  constexpr uint32_t superblocks() const { return count / 256 + (count % 256 != 0 ? 1 : 0); }
  constexpr uint32_t tiles() const { return (superblocks() + kTile - 1) / kTile; }
};

// Packed fields of a slice, one superblock after the other. `tiles` has for each tile the sum of
// the widths of all superblocks before it (TileStarts): its first byte is 32 times as much.
struct PackedArgs {
  uint8_t* data = nullptr;          // a multiple of 4; of 16 for AddPacked
  const uint32_t* tiles = nullptr;  // of `contributions` and k; of a result: of 1 and k2
  uint32_t contributions = 1;
};

// Packed sum of own elements, and of `in` where it is there.
struct EncodeArgs {
  SliceArgs slice = {};
  const void* elements = nullptr;
  PackedArgs in = {};  // data may be null
  PackedArgs out = {};
};

// `contributions` of a, b and out say how wide their fields are; those of out hold the sum. Packed
// as narrow as they can be, two sums always grow; fields of one width for all do not.
struct AddArgs {
  SliceArgs slice = {};
  PackedArgs a = {}, b = {}, out = {};  // out may be a or b where no width grows
};

// A complete sum (codes: those of the slice) or a result (codes: its own).
struct DecodeArgs {
  SliceArgs slice = {};
  const uint8_t* codes = nullptr;
  PackedArgs in = {};
  bool result = false;  // fields are of k2 and one contribution
  void* elements = nullptr;
};

// Everything at once, as hbi::FoldSlice: the sum of all sources, and of own elements where they are
// there; out of it a packed sum, a result, elements, each where it is wanted (not null).
struct FoldArgs {
  SliceArgs slice = {};
  PackedArgs sources[kMaxSources] = {};
  uint32_t source_count = 0;
  const void* own = nullptr;
  bool requantize = false;
  PackedArgs sum = {};
  uint8_t* result_codes = nullptr;
  PackedArgs result = {};
  void* elements = nullptr;
};

// inccl::ReduceArgs (kernels/reduce.h) by value. All pointers have the alignment of their elements;
// an output may be an input, or overlaps none.
struct ReduceKernelArgs {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t inputs = 0;   // 1 .. kMaxSources
  uint32_t outputs = 0;  // 1 .. kMaxReduced; all get the same
  uint64_t count = 0;
  uint64_t scaled = 0;   // bit i: input i is multiplied, by
  double scale = 1;      // floats
  uint64_t factor = 1;   // integers
  uint32_t divisor = 1;  // of integers, last, towards zero
  const void* in[kMaxSources] = {};
  void* out[kMaxReduced] = {};
};

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_
