// SPDX-License-Identifier: Apache-2.0
//
// What the quantizers of the family QSGDMaxNorm do to at most 256 elements, for every instruction
// set. All tables do exactly the same, bit for bit; Scalar() is the plain reference.
//
// Arrays have room for 256 elements: what lies between `count` and the next multiple of 32 may be
// read and written; there it means nothing, but that fields are 0.
#ifndef INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::qsgd {

inline constexpr size_t kMostScales = 4;

// Which of several numbers of levels an element's code counts in.
struct ScaleChoice {
  const uint8_t* index = nullptr;  // of elements; null: 0
  size_t scales = 1;               // 1..kMostScales
  const double* by_scale = nullptr;
};

// floor(x * factor + r) raised by `levels`, r uniform in [0, 1): a hash of first + place. Clamped
// to what codes can be; what is not a number becomes the lowest.
struct CodeArgs {
  const float* x = nullptr;
  const uint8_t* places = nullptr;
  uint32_t first = 0;
  uint32_t levels = 0;
  ScaleChoice factor;
};

struct Kernels {
  void (*add_codes)(const CodeArgs& args, uint32_t count, uint32_t* sums);  // sums += codes
  // sums += fields; returns the largest field.
  uint32_t (*add_fields)(const uint16_t* fields, uint32_t count, uint32_t* sums);
  // Sums below 2^16.
  void (*narrow)(const uint32_t* sums, uint32_t count, uint16_t* fields);
  // (sum - zero) * unit, rounded to fp32.
  void (*decode)(const uint32_t* sums, uint32_t zero, const ScaleChoice& unit, uint32_t count,
                 float* y);
  // Bits of the largest |x|, NaN above infinity; of any number of elements.
  uint32_t (*largest)(const float* x, size_t count);
  // Of each element the largest scale whose |x| * factor is at most `levels`; 0 if none is. The
  // factors ascend. scales = min(scales, that).
  void (*finest)(const float* x, const ScaleChoice& factor, uint32_t levels, uint32_t count,
                 uint8_t* scales);
  // Fields of `width` bits, 1 to 8, of 256 elements, as bit_fields.h has them; writes 16 bytes more
  // (without meaning), reads 16 more.
  void (*pack_bytes)(const uint8_t* fields, uint32_t width, std::byte* out);
  void (*unpack_bytes)(const std::byte* in, uint32_t width, uint8_t* fields);
};

const Kernels& ScalarKernels();
// Those of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_KERNELS_QSGD_KERNELS_H_
