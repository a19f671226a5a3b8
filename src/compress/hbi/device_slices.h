// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice whose elements are in memory of a device: what slice.h does, by one kernel
// (compress/cuda/launch.h). What it reads of the plan, and payloads that it does not reach where
// they are, is copied to Scratch. Lengths have been checked; what fails is the device.
#ifndef INCCL_COMPRESS_HBI_DEVICE_SLICES_H_
#define INCCL_COMPRESS_HBI_DEVICE_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "compress/device_work.h"
#include "compress/hbi/device_levels.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

// The codes of FoldOwnCodes, in memory of the host: there when the kernel is done.
Result<std::byte*> LaunchCodes(const SliceContext& slice, const std::byte* elements,
                               DeviceWork* work);

// FoldSlice; at most one source is elements, at most cuda::kMaxSources are packed. The outputs'
// sinks become those where the packed data will be: where they were wanted, or Scratch with
// kChecksumBytes of room behind.
Status LaunchFold(const SliceContext& slice, DeviceLevels* levels, std::span<const Source> sources,
                  DeviceWork* work, SliceOutputs* outputs);

// DecodeResult.
Status LaunchDecode(const SliceContext& slice, DeviceLevels* levels, const uint8_t* payload,
                    std::byte* elements, DeviceWork* work);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_DEVICE_SLICES_H_
