// SPDX-License-Identifier: Apache-2.0
//
// A stream of a device as an order of calls. A call runs when the device has done the work that was
// put on the stream before it, and the device continues when the call is done.
#ifndef INCCL_STREAM_DEVICE_STREAM_H_
#define INCCL_STREAM_DEVICE_STREAM_H_

#include <memory>

#include "base/mutex.h"
#include "device/device.h"
#include "stream/stream.h"

namespace inccl {

class DeviceStream final : public Stream {
 public:
  explicit DeviceStream(std::unique_ptr<DeviceOrder> order) : order_(std::move(order)) {}
  Status Check() override { return order_->Check(); }
  // There is no time limit for the device's own work before the position.
  bool WaitFor(uint64_t position, const GiveUp& give_up) override;

 protected:
  Result<uint64_t> EnqueueNext() override;
  // The device keeps no error; the communicator does.
  void CompletePosition(uint64_t position, const Status& status) override;

 private:
  const std::unique_ptr<DeviceOrder> order_;
  uint64_t enqueued_ = 0;  // positions that EnqueueNext has returned
  Mutex mutex_;
  CompletedPositions completed_ INCCL_GUARDED_BY(mutex_);
};

// Returns the one object for a stream of the device (NULL: its legacy stream).
Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream);

}  // namespace inccl

#endif  // INCCL_STREAM_DEVICE_STREAM_H_
