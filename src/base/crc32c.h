// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), as in RFC 3720 appendix B.4: reflected polynomial 0x82F63B78, initial value
// and final xor all ones. It detects accidental damage, not forgery.
#ifndef INCCL_BASE_CRC32C_H_
#define INCCL_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace inccl {

uint32_t Crc32c(std::span<const std::byte> bytes);

}  // namespace inccl

#endif  // INCCL_BASE_CRC32C_H_
