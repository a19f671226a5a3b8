// SPDX-License-Identifier: Apache-2.0
//
// Lossless packing of floats: most exponents of a superblock lie in a small range, so a few bits
// code them; signs and mantissas are incompressible and stay unchanged.
//
// A superblock of `count` elements (256, fewer at the end of a vector) starts with a control byte:
//   0xFF    the elements follow unchanged
//   0xFE    nothing follows: all bits of all elements are zero
//   else    bits 0 to 3 are a width w, bit 4 a flag z; then follow
//           the base exponent (u16);
//           sign and mantissa: the low 8 bits of all elements, then the next 8 bits of all, ..., as
//           far as there are whole bytes;
//           `count` fields of w + r bits as one little-endian bit string: a code of w bits, above
//           it the remaining r bits of sign and mantissa (fp16: 3, fp64: 5, else 0);
//           the exponent field (u8, for fp64 u16) of every element with the code 2^w - 1.
// The code of an element is 0 if z is set and its exponent field is 0, exponent - base + z if that
// is below 2^w - 1, and else 2^w - 1. With w = 0 all exponents equal the base.
#ifndef INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
#define INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace inccl {

// One thread at a time uses it.
class ExponentPacker {
 public:
  // `type` is a float type of 2 bytes or more.
  explicit ExponentPacker(DataType type);

  // Pack may write garbage to this many bytes behind its result, so `out` needs that room.
  static constexpr uint32_t kSlack = 16;

  // Packs a superblock of at most 256 elements and returns the length, at most 1 + the elements'
  // bytes. `out` has room for that and kSlack.
  uint32_t Pack(const std::byte* elements, uint32_t count, std::byte* out);
  // Unpacks a superblock from at most `bytes` bytes. Returns its length, or 0 if the bytes are
  // invalid.
  uint32_t Unpack(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) const;

 private:
  DataType type_;
  std::vector<uint16_t> histograms_;  // of exponents; all zero between calls
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
