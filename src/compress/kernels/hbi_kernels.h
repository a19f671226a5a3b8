// SPDX-License-Identifier: Apache-2.0
//
// What is done to superblocks of 256 elements, for every instruction set. All tables do exactly
// the same, bit for bit, on the same arguments; Scalar() is the plain reference. A tile is 256
// 16-bit fields in element order, in L1. Packed fields: docs/format.md, "Payloads".
//
// Slack: vector loads and stores of packed fields touch bytes beyond the 32 w of a superblock (of
// the last one, where several are handled).
// `in` must be readable for kReadSlack bytes more, `out` writable for kWriteSlack bytes more; what
// is read there is ignored, what is written there has no meaning.
#ifndef INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::hbi {

inline constexpr uint32_t kReadSlack = 64;
inline constexpr uint32_t kWriteSlack = 16;

// Superblocks of this rank's elements on their way to codes in [0, 2K]. Those that follow each
// other with the same levels go together; into a tile goes one.
struct QuantizeArgs {
  const float* x = nullptr;        // finite, |x| <= M of its block; zeros in poisoned blocks
  const uint8_t* codes = nullptr;  // scale codes of the blocks
  const float* factor = nullptr;   // by code: fp32 of 65536 K / M
  uint32_t k = 0;                  // 1..4095
  uint32_t counter = 0;            // of the first hash (HashCounter)
  uint16_t shift = 0;              // RankShift
  uint32_t superblocks = 1;
};

// Superblocks of sums on their way to elements: (field - zero) * step[code of the block].
struct DecodeArgs {
  const uint8_t* codes = nullptr;
  const float* step = nullptr;  // by code
  uint32_t zero = 0;            // contributions * K
  uint32_t superblocks = 1;
};

struct Kernels {
  // Scale codes of `superblocks` superblocks of 256 floats.
  void (*block_codes)(const float* x, size_t superblocks, uint8_t* codes);
  // The largest code of each superblock that is not kPoison; 0 where there is none.
  void (*top_codes)(const uint8_t* codes, size_t superblocks, uint8_t* tops);

  // One superblock, in place: random signs (of the hash with this counter), then the orthonormal
  // Walsh-Hadamard transform; and back. NaN comes back as 7fc00000.
  void (*rotate)(float* x, uint32_t counter);
  void (*rotate_back)(float* x, uint32_t counter);

  void (*quantize)(const QuantizeArgs& args, uint16_t* tile);
  void (*quantize_add)(const QuantizeArgs& args, uint16_t* tile);      // tile += codes
  void (*quantize_nearest)(const QuantizeArgs& args, uint16_t* tile);  // counter, shift unused

  void (*unpack)(const uint8_t* in, uint32_t width, uint16_t* tile);
  void (*unpack_add)(const uint8_t* in, uint32_t width, uint16_t* tile);
  void (*pack)(const uint16_t* tile, uint32_t width, uint8_t* out);

  // quantize, then pack.
  void (*encode)(const QuantizeArgs& args, uint32_t width, uint8_t* out);
  // unpack, quantize_add, then pack; the width may grow.
  void (*add_encode)(const QuantizeArgs& args, const uint8_t* in, uint32_t in_width,
                     uint32_t out_width, uint8_t* out);

  void (*decode)(const DecodeArgs& args, const uint16_t* tile, float* y);
  // unpack, then decode.
  void (*unpack_decode)(const DecodeArgs& args, const uint8_t* in, uint32_t width, float* y);
};

// The plain reference, on every machine.
const Kernels& ScalarKernels();
// Those of the instruction set in use (compress/simd.h). Ask once per slice.
const Kernels& BestKernels();

// Sum of two packed streams of one width and `words` 64-bit words, a multiple of the width: fields
// have room for their sums, so this is one addition of long integers. out may be a or b.
void AddPacked(const uint8_t* a, const uint8_t* b, size_t words, uint32_t width, uint8_t* out);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_KERNELS_H_
