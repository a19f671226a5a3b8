// SPDX-License-Identifier: Apache-2.0
//
// Memory of callers that peers on the same host can import: a detail of the allocators and of the
// transports that export it.
#ifndef INCCL_MEMORY_REGION_H_
#define INCCL_MEMORY_REGION_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace inccl {

// One region: a memory file that peers map, or device memory that they open by a handle.
struct Region {
  static constexpr size_t kHandleBytes = 96;
  using Handle = std::array<std::byte, kHandleBytes>;

  uint64_t generation = 0;  // unique within the process, never reused; 0: no region
  std::byte* data = nullptr;
  size_t bytes = 0;
  int fd = -1;
  bool on_device = false;
  Handle handle{};        // of device memory; only a RegionImporter interprets it
  bool writable = false;  // peers may also write to the file
};

// The region that contains [data, data + bytes). Any thread. The Status of memory without one is
// constant, because calls on ordinary memory ask, too; WhyNoRegion gives the reason.
Result<Region> FindRegion(const void* data, size_t bytes, bool on_device);
// The same piece of ccl_mem_alloc_device with the same generation, but without a handle; an empty
// region if there is none.
Region FindOnDevice(const void* data, size_t bytes);
Status WhyNoRegion(const void* data, size_t bytes, bool on_device);

// Opens device memory that peers have exported. The address it returns need not be accessible to
// the processor.
class RegionImporter {
 public:
  virtual ~RegionImporter() = default;
  // Returns nullptr if this rank cannot reach the memory.
  virtual std::byte* Open(const Region::Handle& handle, size_t bytes) = 0;
  virtual void Close(std::byte* data) = 0;
};

}  // namespace inccl

#endif  // INCCL_MEMORY_REGION_H_
