// SPDX-License-Identifier: Apache-2.0
//
// The arguments of the kernels: plain structs, passed by value. All pointers point to memory that
// the device can access. A tile is 32 superblocks; the last tile of a slice may have fewer.
#ifndef INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_
#define INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_

#include <cstdint>

#include "base/types.h"
#include "compress/hbi/format.h"

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

// The casts of fp32 in the codecs bf16, fp16, fp8 and mxfp8.
enum class CastFormat : uint8_t { kBf16, kFp16, kE4m3, kE5m2, kMxE4m3, kMxE5m2 };
inline constexpr int kCastFormats = 6;

// hbi::Point with tables in device memory. Superblocks with k = 0 are not coded.
struct LevelChoice {
  uint32_t k = 0, k2 = 0;
  const hbi::LevelTable* sum = nullptr;     // table of k
  const hbi::LevelTable* result = nullptr;  // table of k2
};

// hbi::SliceContext for kernels.
struct SliceArgs {
  const uint32_t* words = nullptr;  // agreed side words, one per superblock
  const uint8_t* points = nullptr;  // planned, one per superblock: indices into `choices`
  const LevelChoice* choices = nullptr;
  uint32_t count = 0;           // elements; the last superblock may be partial
  uint32_t counter = 0;         // HashCounter of the slice's first block
  uint32_t result_counter = 0;  // the same for the second quantization
  hbi::Offsets offsets = {};    // of own elements
  bool nearest = false;         // own elements are rounded to nearest
  bool unbiased = false;        // the second quantization uses a hash
  bool average = false;

  constexpr uint32_t superblocks() const { return count / 256 + (count % 256 != 0 ? 1 : 0); }
  constexpr uint32_t tiles() const { return (superblocks() + kTile - 1) / kTile; }
};

// Packed fields of a slice, one superblock after the other. `tiles` holds for each tile the sum of
// the widths of all superblocks before it (TileStarts); the tile's first byte is 16 times that sum.
struct PackedArgs {
  uint8_t* data = nullptr;          // aligned to 4; to 16 for AddPacked
  const uint32_t* tiles = nullptr;  // for `contributions` and k; for a result: 1 and k2
  uint32_t contributions = 1;
};

// The packed sum of own elements and, if present, of `in`.
struct EncodeArgs {
  SliceArgs slice = {};
  const void* elements = nullptr;
  PackedArgs in = {};  // data may be nullptr
  PackedArgs out = {};
};

// out = a + b. `contributions` of a, b and out determine the widths of their fields. With the
// narrowest fields the width of a sum always grows; with one width for all it does not.
struct AddArgs {
  SliceArgs slice = {};
  PackedArgs a = {}, b = {}, out = {};  // out may be a or b if no width grows
};

// Decodes a complete sum (`words` are those of the slice) or a result (`words` are its own).
struct DecodeArgs {
  SliceArgs slice = {};
  const uint32_t* words = nullptr;
  PackedArgs in = {};
  bool result = false;  // fields have k2 levels and one contribution
  void* elements = nullptr;
};

// hbi::FoldSlice in one kernel: sums all sources and, if present, own elements; writes a packed
// sum, a result and elements, each if its pointer is not nullptr.
struct FoldArgs {
  SliceArgs slice = {};
  PackedArgs sources[kMaxSources] = {};
  uint32_t source_count = 0;
  const void* own = nullptr;
  bool requantize = false;
  PackedArgs sum = {};
  uint32_t* result_words = nullptr;
  PackedArgs result = {};
  void* elements = nullptr;
};

// inccl::ReduceArgs (kernels/reduce.h) by value. All pointers have the alignment of their elements.
// An output may have the address of an input; it must not partly overlap one.
struct ReduceKernelArgs {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t inputs = 0;   // 1 .. kMaxSources
  uint32_t outputs = 0;  // 1 .. kMaxReduced; all get the same bytes
  uint64_t count = 0;
  uint64_t scaled = 0;   // bit i: input i is multiplied
  double scale = 1;      // factor of floats
  uint64_t factor = 1;   // factor of integers
  uint32_t divisor = 1;  // of integers: divides the result, toward zero
  const void* in[kMaxSources] = {};
  void* out[kMaxReduced] = {};
};

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_KERNEL_ARGS_H_
