// SPDX-License-Identifier: Apache-2.0
//
// The kernels for superblocks of 256 elements, one table per instruction set. All tables give the
// same bits for the same arguments; ScalarKernels() is the reference. A tile is 256 16-bit fields
// in element order, in L1. docs/format.md, "Payloads", defines packed fields; widths are in
// half-bits (hbi::Width), side words are bytes without alignment (hbi/side_words.h).
//
// Slack: vector loads and stores of packed fields touch bytes beyond the 16 w bytes of the last
// superblock. `in` must be readable for kReadSlack more bytes, `out` writable for kWriteSlack more
// bytes. Kernels ignore what they read there and write garbage there.
#ifndef INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

inline constexpr uint32_t kReadSlack = 64;
inline constexpr uint32_t kWriteSlack = 16;

// Arguments to quantize superblocks of this rank's elements to codes in [0, 2K]. Consecutive
// superblocks with the same levels can be handled together.
struct QuantizeArgs {
  const float* x = nullptr;        // finite
  const uint8_t* words = nullptr;  // side words
  const float* factor = nullptr;   // by code: fp32 of 65536 K / M
  uint32_t k = 0;                  // 1..4095
  uint32_t counter = 0;            // HashCounter of the first hash
  Offsets offsets = {};
  uint32_t superblocks = 1;
};

// Arguments to decode superblocks of sums: (field - zero) * step[code of the block].
struct DecodeArgs {
  const uint8_t* words = nullptr;
  const float* step = nullptr;  // by code
  uint32_t zero = 0;            // contributions * K
  uint32_t superblocks = 1;
};

// Arguments to quantize superblocks of sums a second time, to nearest, on scales of their own.
struct RequantizeArgs {
  DecodeArgs sum;                 // how the sums decode
  float own = 1;                  // LevelTable::own
  const float* factor = nullptr;  // by code of their own
  uint32_t k = 0;                 // K2
};

// A packed sum, or the caller's own elements (contributions 1, `elements` set).
struct Source {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  uint32_t contributions = 1;
  const std::byte* elements = nullptr;
};

// Consecutive whole superblocks of any levels. Packed fields have 64 bytes of slack: a superblock
// with levels that follows, as it takes at least as many.
struct Strip {
  const Point* points = nullptr;   // Planner::points()
  const uint8_t* plan = nullptr;   // by superblock
  const uint8_t* words = nullptr;  // side words
  uint32_t superblocks = 0;
  DataType type = DataType::kFloat32;  // or fp16, bf16
  bool stream = false;                 // non-temporal stores of fp32, where they are aligned
};

// What the fields of a strip are.
struct StripDecoding {
  bool result = false;         // of a second quantization, or else sums
  uint32_t contributions = 1;  // of sums: the planner's
  bool average = false;
  const uint8_t* agreed = nullptr;  // side words of the sums
};

// The owner's step: sums all contributions and quantizes the sums a second time, to nearest.
struct StripFold {
  std::span<Source> packed_sources;  // `at` advances; `end` is not used
  const std::byte* own = nullptr;    // elements of one contribution
  uint32_t contributions = 1;        // of each packed source
  uint32_t total = 1;                // contributions
  uint32_t counter = 0;
  Offsets offsets = {};
  bool average = false;
  uint8_t* words = nullptr;       // of the results
  uint8_t* packed = nullptr;      // advances
  std::byte* elements = nullptr;  // may be nullptr
};

// Tiles hold the fields of consecutive superblocks.
struct Kernels {
  // Computes the side words of `superblocks` superblocks of 256 floats, as if the largest magnitude
  // of each block were multiplied by `scale` (LevelTable::own, or 1).
  void (*side_words)(const float* x, size_t superblocks, float scale, uint8_t* words);
  // The same of elements of fp16 or bf16, with a scale of 1.
  void (*side_words_narrow)(const uint16_t* x, DataType type, size_t superblocks, uint8_t* words);
  // Merges `from` into `words`.
  void (*merge_words)(const uint8_t* from, size_t superblocks, uint8_t* words);

  // Rotate one superblock in place: random signs (from the hashes at this counter), then the
  // orthonormal Walsh-Hadamard transform; and the inverse, which returns NaN as 7fc00000.
  void (*rotate)(float* x, uint32_t counter);
  void (*rotate_back)(float* x, uint32_t counter);

  void (*quantize)(const QuantizeArgs& args, uint16_t* tile);
  void (*quantize_add)(const QuantizeArgs& args, uint16_t* tile);      // tile += codes
  void (*quantize_nearest)(const QuantizeArgs& args, uint16_t* tile);  // counter, offsets unused

  void (*unpack)(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks);
  void (*unpack_add)(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks);
  void (*pack)(const uint16_t* tile, uint32_t width, uint8_t* out, uint32_t superblocks);

  // quantize, then pack.
  void (*encode)(const QuantizeArgs& args, uint32_t width, uint8_t* out);
  // unpack, quantize_add, then pack; the width may grow.
  void (*add_encode)(const QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
                     uint32_t out_width, uint8_t* out);

  void (*decode)(const DecodeArgs& args, const uint16_t* tile, float* y);
  // Replaces sums by their codes, of up to 8 superblocks, and writes their side words. The codes of
  // a sum that is not finite are K2.
  void (*requantize)(const RequantizeArgs& args, uint16_t* tile, uint8_t* words);
  // unpack, then decode.
  void (*unpack_decode)(const DecodeArgs& args, const uint8_t* in, uint32_t width, float* y);

  // Of strips; nullptr if the instruction set has none. They return where the next bytes are.
  // strip_pays tells whether encoding (total = 1) or the owner's step of a strip is faster than
  // with the kernels of tiles; nullptr: it always is.
  bool (*strip_pays)(const Strip& strip, const Offsets& offsets, uint32_t contributions,
                     uint32_t total) = nullptr;
  uint8_t* (*encode_strip)(const Strip& strip, const std::byte* x, uint32_t counter,
                           const Offsets& offsets, bool nearest, uint8_t* out) = nullptr;
  const uint8_t* (*decode_strip)(const Strip& strip, const StripDecoding& how, const uint8_t* in,
                                 std::byte* y) = nullptr;
  void (*fold_strip)(const Strip& strip, StripFold* fold) = nullptr;
};

// The scalar reference, available on every machine.
const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h). Callers look them up once per slice.
const Kernels& BestKernels();

// Adds two packed streams of the same width and of `words` 64-bit words, whole superblocks. have
// room for their sums, so this is one addition of long integers. `out` may be a or b.
void AddPacked(const uint8_t* a, const uint8_t* b, size_t words, uint32_t width, uint8_t* out);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_
