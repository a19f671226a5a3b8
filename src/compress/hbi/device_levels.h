// SPDX-License-Identifier: Apache-2.0
//
// A planner's points in the form for kernels, with their tables in device memory. All states of a
// codec share one object, so that each device gets the tables once per communicator.
#ifndef INCCL_COMPRESS_HBI_DEVICE_LEVELS_H_
#define INCCL_COMPRESS_HBI_DEVICE_LEVELS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "compress/cuda/kernel_args.h"
#include "compress/device_work.h"
#include "compress/hbi/plan.h"

namespace inccl::hbi {

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

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_DEVICE_LEVELS_H_
