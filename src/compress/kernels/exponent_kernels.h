// SPDX-License-Identifier: Apache-2.0
//
// What the codec lossless does to whole superblocks of 256 elements of fp32, bf16 or fp16, in
// vectors. The bytes are those of the plain code in lossless/exponent_pack.cc, which is what the
// target "scalar" uses and what these are held to.
//
// Slack: `fields` of encode must be writable, those of decode readable, for kFieldSlack bytes more
// than they fill.
#ifndef INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl::lossless {

inline constexpr uint32_t kFieldSlack = 16;

// The elements of a superblock apart: exponents; what of signs and mantissas goes into fields.
struct Exponents {
  alignas(64) uint8_t exponents[256];
  alignas(64) uint8_t rest[256];  // fp16 only
};

// The largest exponent, the smallest one that is not 0 (256: there is none), and whether any bit
// of any element is set.
struct Extent {
  uint32_t least, most;
  bool any;
};

// exponent_pack.h has what these mean; codes and rest together have at most 8 bits.
struct FieldCoding {
  uint32_t width = 0, zero = 0, base = 0;
  uint32_t rest = 0;  // bits above the code
  uint32_t escape() const { return (1u << width) - 1; }
};

struct ExponentKernels {
  // By type; signs and mantissas as bytes, plane by plane.
  Extent (*split)(const std::byte* elements, Exponents* out, std::byte* planes);
  void (*join)(const Exponents& in, const std::byte* planes, std::byte* elements);

  // How often each exponent from lo to hi, and 0, is there; the other counts stay.
  void (*count)(const Exponents& in, uint32_t lo, uint32_t hi, uint16_t* counts);
  // Writes the fields and behind them the exponents that have no code; returns their number.
  uint32_t (*encode)(const Exponents& in, const FieldCoding& coding, std::byte* fields);
  // Fields into exponents and rest. Base + escape() - 1 - zero is at most 255. Of exponents without
  // a code, the places: a bit for each element. Returns the largest of the others.
  uint32_t (*decode)(const std::byte* fields, const FieldCoding& coding, Exponents* out,
                     uint64_t escapes[4]);
};

// Those of the instruction set in use (compress/simd.h); null: it has none, or none for this type.
const ExponentKernels* BestExponentKernels(DataType type);

}  // namespace inccl::lossless

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
