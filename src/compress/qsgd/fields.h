// SPDX-License-Identifier: Apache-2.0
//
// The fields of one superblock (bit_fields.h), through vectors where there are any.
#ifndef INCCL_COMPRESS_QSGD_FIELDS_H_
#define INCCL_COMPRESS_QSGD_FIELDS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::qsgd {

// Arrays of elements have room for 256, of which the first `count` are meant. `left` bytes may be
// read from `in` on, at least what the fields fill.

// sums += fields; returns the largest field.
uint32_t AddSums(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                 uint32_t* sums);
void PackSums(const uint32_t* sums, uint32_t count, uint32_t width, std::byte* out);

// At most 8 bits.
void UnpackIndices(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                   uint8_t* indices);
void PackIndices(const uint8_t* indices, uint32_t count, uint32_t width, std::byte* out);

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_QSGD_FIELDS_H_
