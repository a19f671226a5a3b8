// SPDX-License-Identifier: Apache-2.0
//
// The vector kernels of the codec lossless for whole superblocks of 256 elements of fp32, bf16 or
// fp16. Their bytes must equal those of the scalar code in lossless/exponent_pack.cc, which the
// target "scalar" uses.
//
// Slack: `fields` must be writable (encode) or readable (decode) for kFieldSlack bytes beyond their
// end.
#ifndef INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl::lossless {

inline constexpr uint32_t kFieldSlack = 16;

// The separated elements of a superblock: exponents, and the bits of signs and mantissas that go
// into fields.
struct Exponents {
  alignas(64) uint8_t exponents[256];
  alignas(64) uint8_t rest[256];  // fp16 only
};

// The smallest exponent other than 0 (256: there is none), the largest exponent, and whether any
// bit of any element is set.
struct Extent {
  uint32_t least, most;
  bool any;
};

// exponent_pack.h explains the values; code and rest together have at most 8 bits.
struct FieldCoding {
  uint32_t width = 0, zero = 0, base = 0;
  uint32_t rest = 0;  // bits above the code
  uint32_t escape() const { return (1u << width) - 1; }
};

struct ExponentKernels {
  // `planes` holds signs and mantissas as bytes, plane by plane.
  Extent (*split)(const std::byte* elements, Exponents* out, std::byte* planes);
  void (*join)(const Exponents& in, const std::byte* planes, std::byte* elements);

  // Counts the exponents from lo to hi and 0; leaves other counts unchanged.
  void (*count)(const Exponents& in, uint32_t lo, uint32_t hi, uint16_t* counts);
  // Writes the fields and behind them the exponents without a code; returns the number of the
  // latter.
  uint32_t (*encode)(const Exponents& in, const FieldCoding& coding, std::byte* fields);
  // Decodes fields into exponents and rest. base + escape() - 1 - zero is at most 255. `escapes`
  // gets a bit for each element without a code. Returns the largest exponent of the other elements.
  uint32_t (*decode)(const std::byte* fields, const FieldCoding& coding, Exponents* out,
                     uint64_t escapes[4]);
};

// The kernels of the instruction set in use (compress/simd.h); nullptr if it has none for this
// type.
const ExponentKernels* BestExponentKernels(DataType type);

}  // namespace inccl::lossless

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
