// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/checksum.h"

#include <fmt/format.h>

#include <cstring>

#include "base/crc32c.h"

namespace inccl::hbi {

void PutChecksum(std::byte* payload, uint64_t bytes) {
  const uint32_t crc = Crc32c({payload, bytes});
  static_assert(sizeof crc == kChecksumBytes);
  std::memcpy(payload + bytes, &crc, sizeof crc);
}

Status VerifyChecksum(const std::byte* payload, uint64_t bytes, const char* what,
                      const Range& range, int rank) {
  uint32_t carried;
  std::memcpy(&carried, payload + bytes, sizeof carried);
  const uint32_t found = Crc32c({payload, bytes});
  if (carried == found) return Status::Ok();
  return InternalError(fmt::format(
      "hbi: checksum of a {} payload of {} bytes, elements {} to {} of segment {}, at rank {}: it "
      "carries {:08x}, its bytes have {:08x}; it was damaged on its way",
      what, bytes, range.first, range.first + range.count, range.segment, rank, carried, found));
}

}  // namespace inccl::hbi
