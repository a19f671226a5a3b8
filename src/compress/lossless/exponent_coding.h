// SPDX-License-Identifier: Apache-2.0
//
// The coding of a superblock's exponents (exponent_pack.h), shared by scalar and vector code.
#ifndef INCCL_COMPRESS_LOSSLESS_EXPONENT_CODING_H_
#define INCCL_COMPRESS_LOSSLESS_EXPONENT_CODING_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/types.h"
#include "compress/kernels/exponent_kernels.h"

namespace inccl::lossless {

inline constexpr uint8_t kRaw = 0xFF, kZeros = 0xFE;
inline constexpr uint32_t kHeader = 3;  // control byte and base

struct Coding {
  uint32_t width = 0, zero = 0, base = 0, escapes = 0;
  uint32_t escape() const { return (1u << width) - 1; }
  uint32_t direct() const { return width == 0 ? 1 : escape() - zero; }  // exponents with a code
};

// The cheapest coding of exponents with this histogram. All exponents are 0 or in [lo, hi].
Coding Choose(const uint16_t* histogram, uint32_t lo, uint32_t hi, uint32_t count,
              uint32_t escape_bits);

// Sets width and zero. Returns false for an invalid control byte.
bool ReadControl(uint32_t control, Coding* coding);

uint32_t PackRaw(const std::byte* elements, uint32_t bytes, std::byte* out);

// ExponentPacker's Pack and Unpack for whole superblocks. nullopt: the kernels do not support this
// width or base, and the scalar code must do it.
std::optional<uint32_t> PackWhole(const ExponentKernels& kernels, DataType type,
                                  const std::byte* elements, std::byte* out);
std::optional<uint32_t> UnpackWhole(const ExponentKernels& kernels, DataType type,
                                    const std::byte* in, uint64_t bytes, std::byte* elements);

}  // namespace inccl::lossless

#endif  // INCCL_COMPRESS_LOSSLESS_EXPONENT_CODING_H_
