// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the QSGDMaxNorm quantizers for at most 256 elements, one table per instruction
// set. All tables give the same bits; ScalarKernels() is the reference.
//
// Arrays have room for 256 elements. Kernels may read and write elements between `count` and the
// next multiple of 32; their values do not matter, except that fields there are 0.
#ifndef INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::qsgd {

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

#endif  // INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_
