// SPDX-License-Identifier: Apache-2.0
//
// Memory that peers on the same host can import.
#ifndef INCCL_MEMORY_REGION_H_
#define INCCL_MEMORY_REGION_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace inccl {

// Memory of callers that ranks of one host could reach: a file that they could map, or memory of a
// device.
struct Region {
  static constexpr size_t kHandleBytes = 96;
  using Handle = std::array<std::byte, kHandleBytes>;

  uint64_t generation = 0;  // of this process, never used twice; 0: no region
  std::byte* data = nullptr;
  size_t bytes = 0;
  int fd = -1;
  bool on_device = false;
  Handle handle{};        // of memory of a device: for RegionImporter to read
  bool writable = false;  // a file: peers write there, too
};

// ReachableFrom for this rank what its peers have offered of memory of devices. The processor need
// not reach it: whoever opens it has to know what it is.
class RegionImporter {
 public:
  virtual ~RegionImporter() = default;
  // nullptr: this rank cannot reach it.
  virtual std::byte* Open(const Region::Handle& handle, size_t bytes) = 0;
  virtual void Close(std::byte* data) = 0;
};

}  // namespace inccl

#endif  // INCCL_MEMORY_REGION_H_
