// SPDX-License-Identifier: Apache-2.0
//
// The CRC-32C that `checksum=1` appends to a payload (docs/format.md, "Payloads").
#ifndef INCCL_COMPRESS_HBI_CHECKSUM_H_
#define INCCL_COMPRESS_HBI_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/hbi/config.h"

namespace inccl::hbi {

inline constexpr uint32_t kChecksumBytes = 4;

// The bytes that checksums add to the payload sizes of the format.
inline uint32_t TrailerBytes(const Config& config) { return config.checksum ? kChecksumBytes : 0; }

// Computes the checksum of `bytes` bytes and writes it behind them.
void PutChecksum(std::byte* payload, uint64_t bytes);

// Returns kInternalError unless the checksum behind `bytes` bytes is right. The error names `what`,
// the elements and this rank.
Status VerifyChecksum(const std::byte* payload, uint64_t bytes, const char* what,
                      const Range& range, int rank);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CHECKSUM_H_
