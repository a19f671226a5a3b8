// SPDX-License-Identifier: Apache-2.0
//
// The part of a caller's buffer that peers may reach during a call, so that they read inputs and
// write results where these lie.
#ifndef INCCL_COLLECTIVES_REGISTERED_BUFFER_H_
#define INCCL_COLLECTIVES_REGISTERED_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace inccl {

// Whole pages of the buffer: those that can be taken away from late peers after an error.
struct RegisteredBuffer {
  uint32_t region = 0;  // of Transport::ExportRegion; 0: nothing is registered
  uint64_t offset = 0;  // of `begin` in the region
  const std::byte *begin = nullptr, *end = nullptr;

  // Where [data, data + bytes) lies, if all of it is registered.
  RemoteAddress At(const std::byte* data, size_t bytes) const {
    if (region == 0 || data < begin || data > end || bytes > static_cast<size_t>(end - data)) {
      return {};
    }
    return {region, offset + static_cast<uint64_t>(data - begin)};
  }
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_REGISTERED_BUFFER_H_
