// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether this process uses a device. Until the process has loaded the driver (libcuda),
// it can have no device memory and no device streams, so calls look nothing up.
#ifndef INCCL_DEVICE_RUNTIME_H_
#define INCCL_DEVICE_RUNTIME_H_

#include <string>

#include "device/device.h"

namespace inccl {

// The device that LookForDevice has found; nullptr if none. One load.
Device* CurrentDevice();

// Loads libinccl_cuda.so (from this library's directory or the loader's search path) once the
// process has loaded a driver. Any thread. Returns CurrentDevice().
Device* LookForDevice();

// Why LookForDevice has found none, e.g. "this process has not loaded CUDA".
std::string WhyNoDevice();

// Replaces the result of LookForDevice; nullptr: no device. For tests.
void SetDevice(Device* device);

}  // namespace inccl

#endif  // INCCL_DEVICE_RUNTIME_H_
