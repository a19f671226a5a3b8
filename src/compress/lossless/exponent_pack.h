// SPDX-License-Identifier: Apache-2.0
//
// Floats without loss in fewer bytes: most exponents of a superblock lie in a small range and take
// a few bits there; signs and mantissas are noise and stay as they are.
//
// A superblock of `count` elements (256, at the end of a vector fewer) is a control byte and
//   0xFF    the elements as they are
//   0xFE    nothing: all bits of all elements are zero
//   else    a width w of bits 0 to 3, a flag z in bit 4; then
//           the base exponent (u16);
//           sign and mantissa, the low 8 bits of all elements, then the next 8 bits of all, ..., as
//           far as whole bytes go;
//           `count` fields of w + r bits as one little-endian bit string: a code of w bits, above
//           it the r bits of sign and mantissa that are left (fp16: 3, fp64: 5, else 0); of every
//           element with the code 2^w - 1 its exponent field (u8, of fp64 u16).
// The code of an element is 0 if z is set and its exponent field is 0, exponent - base + z below
// 2^w - 1, and else 2^w - 1; with w = 0 all exponents are the base.
#ifndef INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
#define INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace inccl {

// Used by one thread at a time.
class ExponentPacker {
 public:
  // A float type of 2 bytes or more.
  explicit ExponentPacker(DataType type);

  // `out` of Pack is writable for this many bytes more than are written for good.
  static constexpr uint32_t kSlack = 16;

  // Writes a superblock of at most 256 elements, never more than 1 + its elements' bytes, which
  // `out` has room for, and kSlack. Returns the length.
  uint32_t Pack(const std::byte* elements, uint32_t count, std::byte* out);
  // Reads one from at most `bytes` bytes. Returns its length; 0 if the bytes hold none.
  uint32_t Unpack(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) const;

 private:
  DataType type_;
  std::vector<uint16_t> histograms_;  // of exponents; zero between calls
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
