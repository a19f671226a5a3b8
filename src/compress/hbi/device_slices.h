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
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "compress/cuda/kernel_args.h"
#include "compress/device_work.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

// A planner's points in the form for kernels, with their tables in device memory. All states of a
// codec share one object, so that each device gets the tables once per communicator.

// Thread-safe.
class DeviceLevels {
 public:
  explicit DeviceLevels(const Planner& planner);

  // The choices by point, for the device of `work`.
  Result<const cuda::LevelChoice*> On(DeviceWork* work);

 private:
  struct Levels {
    uint32_t k = 0, k2 = 0;
    size_t sum = 0, result = 0;  // indices of tables
  };
  using Choices = std::shared_ptr<const std::vector<cuda::LevelChoice>>;
  // The choices depend only on this address.
  Choices WithTablesAt(const LevelTable* tables);

  std::shared_ptr<const std::vector<LevelTable>> tables_;
  std::vector<Levels> levels_;  // by point
  Mutex mutex_;
  std::vector<std::pair<const LevelTable*, Choices>> choices_ INCCL_GUARDED_BY(mutex_);
};

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
