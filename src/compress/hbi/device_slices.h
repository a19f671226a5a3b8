// SPDX-License-Identifier: Apache-2.0
//
// The work of slice.h on a slice whose elements are in device memory, by one kernel
// (compress/cuda/launch.h). The parts of the plan that the kernel reads, and payloads that it
// cannot reach in place, are copied to Scratch. The caller has checked the lengths, so errors are
// those of the device.
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

// Computes the words of FoldOwnWords into host memory, which is valid when the kernel is done.
Result<std::byte*> LaunchWords(const SliceContext& slice, const std::byte* elements,
                               DeviceWork* work);

// FoldSlice with at most one source of elements and at most cuda::kMaxSources packed ones. Sets the
// outputs' sinks to where the packed data will be: the requested memory, or Scratch with
// kChecksumBytes of room behind it.
Status LaunchFold(const SliceContext& slice, DeviceLevels* levels, std::span<const Source> sources,
                  DeviceWork* work, SliceOutputs* outputs);

// DecodeResult on the device.
Status LaunchDecode(const SliceContext& slice, DeviceLevels* levels, const uint8_t* payload,
                    std::byte* elements, DeviceWork* work);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_DEVICE_SLICES_H_
