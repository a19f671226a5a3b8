// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether this process uses a device. Until the process has loaded the driver (libcuda),
// it can have no device memory and no device streams, so calls look nothing up.
#ifndef INCCL_DEVICE_RUNTIME_H_
#define INCCL_DEVICE_RUNTIME_H_

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"

namespace inccl {

// The device that LookForDevice has found, or finds now because the process has started a driver
// since; nullptr if none. Two loads where the process has loaded none.
Device* CurrentDevice();

// Loads libinccl_cuda.so (from this library's directory or the loader's search path) once the
// process has started a driver, or with `start` once it has loaded one. Any thread. Returns
// CurrentDevice().
Device* LookForDevice(bool start = false);

// Why LookForDevice has found none, e.g. "this process has not loaded CUDA".
std::string WhyNoDevice();

// Replaces the result of LookForDevice; nullptr: no device. For tests.
void SetDevice(Device* device);

// Pinned host memory for one step at a time. The user takes it piece by piece and returns it as a
// whole; it grows to what the largest step needed.
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

#endif  // INCCL_DEVICE_RUNTIME_H_
