// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory for one step at a time. The user takes it piece by piece and returns it as a
// whole; it grows to what the largest step needed.
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
  size_t block_ = 0;  // the block from which Take allocates
  size_t used_ = 0;   // bytes used in that block
};

}  // namespace inccl

#endif  // INCCL_DEVICE_PINNED_BUFFER_H_
