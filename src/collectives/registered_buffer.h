// SPDX-License-Identifier: Apache-2.0
//
// The part of a caller's buffer that peers may access during a call, so that they read inputs and
// write results in place.
#ifndef INCCL_COLLECTIVES_REGISTERED_BUFFER_H_
#define INCCL_COLLECTIVES_REGISTERED_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace inccl {

// The whole pages of the buffer, because only whole pages can be revoked from late peers after an
// error.
struct RegisteredBuffer {
  uint32_t region = 0;  // id of Transport::ExportRegion; 0: nothing is registered
  uint64_t offset = 0;  // of `begin` in the region
  const std::byte *begin = nullptr, *end = nullptr;

  // The address of [data, data + bytes) if all of it is registered.
  RemoteAddress At(const std::byte* data, size_t bytes) const {
    if (region == 0 || data < begin || data > end || bytes > static_cast<size_t>(end - data)) {
      return {};
    }
    return {region, offset + static_cast<uint64_t>(data - begin)};
  }
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_REGISTERED_BUFFER_H_
