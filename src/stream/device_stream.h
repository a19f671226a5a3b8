// SPDX-License-Identifier: Apache-2.0
//
// A stream of a device as an order of calls: a call's order comes when the device has done what was
// put on the stream before it, and the device goes on when the call is done.
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
  // No limit of time for what the device does of its own before.
  bool WaitFor(uint64_t position, const GiveUp& give_up) override;

 protected:
  Result<uint64_t> EnqueueNext() override;
  // The error is its communicator's to keep: the device knows none.
  void CompletePosition(uint64_t position, const Status& status) override;

 private:
  const std::unique_ptr<DeviceOrder> order_;
  uint64_t enqueued_ = 0;  // of EnqueueNext
  Mutex mutex_;
  CompletedPositions completed_ INCCL_GUARDED_BY(mutex_);
};

// The one object of a stream of the device (NULL: its legacy stream).
Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream);

}  // namespace inccl

#endif  // INCCL_STREAM_DEVICE_STREAM_H_
