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
//           w + r bit planes of ceil(count / 8) bytes (bit_fields.h): the code of every element,
//           and the remaining r bits of sign and mantissa (fp16: 3, fp64: 5, else 0);
//           the exponent field (u8, for fp64 u16) of every element with the code 2^w - 1.
// The code of an element is 0 if z is set and its exponent field is 0, exponent - base + z if that
// is below 2^w - 1, and else 2^w - 1. With w = 0 all exponents equal the base. w is at most 6, for
// fp16 5; z is 0 if w < 2; every code below 2^w - 1 stands for an exponent of the type.
//
// The packer guesses w, z and base from a sample of 128 exponents. If the sample does not look like
// numbers of similar magnitude, or many more exponents of the superblock have no code than the
// sample had let expect, the packer counts all exponents and chooses the cheapest w, as it does at
// the end of a vector.
#ifndef INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
#define INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "compress/kernels/exponent_kernels.h"

namespace inccl {

// One thread at a time uses it.
class ExponentPacker {
 public:
  // `type` is a float type of 2 bytes or more.
  explicit ExponentPacker(DataType type);

  // Packs a superblock of at most 256 elements and returns the length, at most 1 + the elements'
  // bytes. `out` has room for that, even if the result is shorter.
  uint32_t Pack(const std::byte* elements, uint32_t count, std::byte* out);
  // Unpacks a superblock from at most `bytes` bytes. Returns its length, or 0 if the bytes are
  // invalid.
  uint32_t Unpack(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) const;

  // Packs any number of elements, superblock by superblock, into at most `room` bytes and returns
  // the length. If it is larger than `room`, or not smaller than the elements' bytes, the packer
  // has stopped somewhere, and the contents of `out` mean nothing.
  uint64_t PackAll(const std::byte* elements, uint32_t count, std::byte* out, uint64_t room);
  // Unpacks any number of elements from at most `bytes` bytes. Sets *read to the number of bytes
  // read; returns false if those behind them are invalid.
  bool UnpackAll(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements,
                 uint64_t* read) const;

 private:
  uint32_t PackOne(const lossless::ExponentKernels* kernels, const std::byte* elements,
                   uint32_t count, std::byte* out);
  uint32_t UnpackOne(const lossless::ExponentKernels* kernels, const std::byte* in, uint64_t bytes,
                     uint32_t count, std::byte* elements) const;

  DataType type_;
  std::vector<uint16_t> histograms_;  // of exponents; all zero between calls
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
