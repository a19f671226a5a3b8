// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the fake device: those of CUDA, bodies and all, on emulated warps. A launch puts
// one on the stream it is given; it reads and writes the device's memory, and of the host's what
// the device reaches. Any other pointer ends the process.
#ifndef INCCL_TESTS_FAKES_FAKE_KERNELS_H_
#define INCCL_TESTS_FAKES_FAKE_KERNELS_H_

#include <atomic>
#include <cstdint>

#include "compress/cuda/launch.h"

namespace inccl::test {

// For FakeDevice::SetKernels; of the device that is CurrentDevice() at a launch.
const cuda::Launchers& FakeKernels();

// How many have been launched in this process.
struct FakeLaunches {
  std::atomic<uint64_t> side_words{0}, encode{0}, add{0}, decode{0}, fold{0};
  std::atomic<uint64_t> cast_encode{0}, cast_decode{0}, reduce{0};

  uint64_t all() const {
    return side_words + encode + add + decode + fold + cast_encode + cast_decode + reduce;
  }
};
const FakeLaunches& LaunchesSoFar();

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAKES_FAKE_KERNELS_H_
