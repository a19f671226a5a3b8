// SPDX-License-Identifier: Apache-2.0
//
// What `checksum=1` adds to a payload: its CRC-32C, behind it (docs/format.md, "Payloads").
#ifndef INCCL_COMPRESS_HBI_CHECKSUM_H_
#define INCCL_COMPRESS_HBI_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/hbi/config.h"

namespace inccl::hbi {

inline constexpr uint32_t kChecksumBytes = 4;

// What payloads are longer than the format says elsewhere.
inline uint32_t TrailerBytes(const Config& config) { return config.checksum ? kChecksumBytes : 0; }

// Writes the checksum of `bytes` bytes behind them.
void PutChecksum(std::byte* payload, uint64_t bytes);

// kInternalError unless the checksum behind `bytes` bytes is theirs. The error names `what`, the
// elements it is about and the rank that found out.
Status VerifyChecksum(const std::byte* payload, uint64_t bytes, const char* what,
                      const Range& range, int rank);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CHECKSUM_H_
