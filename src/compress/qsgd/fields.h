// SPDX-License-Identifier: Apache-2.0
//
// Packs and unpacks the fields of one superblock (bit_fields.h), with vector kernels if available.
#ifndef INCCL_COMPRESS_QSGD_FIELDS_H_
#define INCCL_COMPRESS_QSGD_FIELDS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::qsgd {

// Arrays have room for 256 elements; the first `count` are used. `left` is the number of readable
// bytes at `in`, at least those of the fields.

// sums += fields; returns the largest field.
uint32_t AddSums(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                 uint32_t* sums);
void PackSums(const uint32_t* sums, uint32_t count, uint32_t width, std::byte* out);

// `width` is at most 8.
void UnpackIndices(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                   uint8_t* indices);
void PackIndices(const uint8_t* indices, uint32_t count, uint32_t width, std::byte* out);

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_QSGD_FIELDS_H_
