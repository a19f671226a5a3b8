// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the codecs of compress/published, one table per instruction set for each of them.
// All tables of a codec give the same bits; ScalarKernels() is the reference.
#ifndef INCCL_COMPRESS_KERNELS_PUBLISHED_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_PUBLISHED_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::onebit {

// For one superblock.

inline constexpr size_t kSignBytes =
    32;  // of a superblock; bit i % 8 of byte i / 8 is of element i
// A block's magnitudes are added in fp32 by this many partial sums, element i to sum i % kPartials;
// then the upper half of the partial sums is added to the lower one, until one is left.
inline constexpr size_t kPartials = 32;

struct Kernels {
  // Writes the sign bits and, for each block of `block` elements (a multiple of 32 that divides
  // 256), the sum of its magnitudes.
  void (*encode)(const float* x, size_t block, uint8_t* signs, float* sums);
  // sum[i] += scale of the block, or -= where the sign bit is set. `first`: sum[i] counts as 0.
  void (*add)(const uint8_t* signs, const float* scales, size_t block, bool first, float* sum);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::onebit

namespace inccl::dither {

// For one superblock. Codes are levels with their sign, plus the number of levels s: zero is s.

// Squares are added in fp64 by this many partial sums, element i to sum i % kPartials; then the
// upper half of the partial sums is added to the lower one, until one is left.
inline constexpr size_t kPartials = 16;

struct Levels {
  uint32_t count = 1;   // s
  bool powers = false;  // level l is 2^(l - s) instead of l / s
};

struct Kernels {
  // For each block of `block` elements (a multiple of 32 that divides 256), the sum of squares.
  void (*squares)(const float* x, size_t block, double* sums);
  // Rounds |x| * factor of the block to one of the two levels around it, at random by a hash of
  // random + i. The factor is s / norm, with powers 1 / norm; what is above the top counts as it.
  void (*encode)(const float* x, uint32_t random, const Levels& levels, const float* factors,
                 size_t block, uint8_t* codes);
  // sum += level * unit of the block; the unit is norm / s, with powers the norm. `first`: sum
  // counts as 0. Returns the largest code; the sums of codes above 2 s do not matter.
  uint32_t (*add)(const uint8_t* codes, const Levels& levels, const float* units, size_t block,
                  bool first, float* sum);
  // Sets the bits of elements that are not zero.
  void (*non_zero)(const uint8_t* codes, uint32_t zero, uint64_t bits[4]);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::dither

namespace inccl::qsgd {

// For at most 256 elements.
// Arrays have room for 256 elements. Kernels may read and write elements between `count` and the
// next multiple of 32; their values do not matter, except that fields there are 0.

inline constexpr size_t kMostScales = 4;

// Selects the scale of each element.
struct ScaleChoice {
  const uint8_t* index = nullptr;  // by element; nullptr: all 0
  size_t scales = 1;               // 1..kMostScales
  const double* by_scale = nullptr;
};

// Codes: floor(x * factor + r) + levels, where r in [0, 1) is a hash of first + i for element i.
// Codes are clamped to their range; NaN becomes the lowest code.
struct CodeArgs {
  const float* x = nullptr;
  uint32_t first = 0;
  uint32_t levels = 0;
  ScaleChoice factor;
};

struct Kernels {
  void (*add_codes)(const CodeArgs& args, uint32_t count, uint32_t* sums);  // sums += codes
  // sums += fields; returns the largest field.
  uint32_t (*add_fields)(const uint16_t* fields, uint32_t count, uint32_t* sums);
  // For sums below 2^16.
  void (*narrow)(const uint32_t* sums, uint32_t count, uint16_t* fields);
  // (sum - zero) * unit, rounded to fp32.
  void (*decode)(const uint32_t* sums, uint32_t zero, const ScaleChoice& unit, uint32_t count,
                 float* y);
  // Bits of the largest |x| of any number of elements; NaN counts as larger than infinity.
  uint32_t (*largest)(const float* x, size_t count);
  // scales = min(scales, f), where f is for each element the largest index of a scale with
  // |x| * factor <= levels, or 0 if there is none. The factors ascend.
  void (*finest)(const float* x, const ScaleChoice& factor, uint32_t levels, uint32_t count,
                 uint8_t* scales);
  // Pack and unpack fields of `width` bits, 1 to 8, of 256 elements in the format of bit_fields.h.
  // They write 16 more bytes of garbage and read 16 more bytes.
  void (*pack_bytes)(const uint8_t* fields, uint32_t width, std::byte* out);
  void (*unpack_bytes)(const std::byte* in, uint32_t width, uint8_t* fields);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_KERNELS_PUBLISHED_KERNELS_H_
