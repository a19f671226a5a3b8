// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host that a device reaches, for one step at a time: it is taken piece by piece and
// given back as a whole, and grows to what the largest step needed.
#ifndef INCCL_DEVICE_PINNED_BUFFER_H_
#define INCCL_DEVICE_PINNED_BUFFER_H_

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace inccl {

class PinnedBuffer {
 public:
  explicit PinnedBuffer(Device* device) : device_(device) {}
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  // Aligned to 256 bytes.
  Result<std::byte*> Take(size_t bytes);
  void GiveBack();

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  Device* const device_;
  std::vector<Block> blocks_;
  size_t block_ = 0;  // from which memory is taken
  size_t used_ = 0;   // of it
};

}  // namespace inccl

#endif  // INCCL_DEVICE_PINNED_BUFFER_H_
