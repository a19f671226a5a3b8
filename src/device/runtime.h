// SPDX-License-Identifier: Apache-2.0
//
// Whether this process uses a device. Until it does (has loaded its driver, libcuda), there can be
// no memory and no stream of it, and nothing is looked up for any call.
#ifndef INCCL_DEVICE_RUNTIME_H_
#define INCCL_DEVICE_RUNTIME_H_

#include <string>

#include "device/device.h"

namespace inccl {

// The device found by LookForDevice; nullptr: none. One load.
Device* CurrentDevice();

// Loads libinccl_cuda.so (beside this library, or where the loader searches) if the process has
// loaded a driver and this has not been done. Any thread. Returns CurrentDevice().
Device* LookForDevice();

// Why LookForDevice has found none: "this process has not loaded CUDA".
std::string WhyNoDevice();

// In the place of what LookForDevice finds; nullptr: nothing. For tests.
void SetDevice(Device* device);

}  // namespace inccl

#endif  // INCCL_DEVICE_RUNTIME_H_
