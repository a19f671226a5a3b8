// SPDX-License-Identifier: Apache-2.0
//
// Calls on memory of a device, run on memory of the host: what they read is copied there before,
// what they have written back afterwards.
#ifndef INCCL_COMMUNICATOR_STAGING_H_
#define INCCL_COMMUNICATOR_STAGING_H_

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/send_recv.h"
#include "device/device.h"

namespace inccl {

// One communicator's; its memory grows to what the largest call needed. What it has outgrown is
// kept until the end: giving it back waits for all that the device does, of which some may wait for
// this communicator.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // From any thread, before such calls take their place on a stream, which allocations may wait
  // for: takes what they will need. An error is the calls' own, when they run.
  void Prepare(const Call& call, int rank, int nranks);
  void Prepare(const std::vector<SendRecvCall>& calls);

  // The call with the host's memory in place of the device's, which holds its input.
  Result<Call> CopyIn(const Call& call, int rank, int nranks);
  // A factor in memory of a device is read now.
  Status CopyInScalar(Call* call);
  // Copies the result of such a call to where `call` wants it.
  Status CopyOut(const Call& call, int rank, int nranks);
  // The same for sends and receives at once. Those on memory of the host stay as they are.
  Result<std::vector<SendRecvCall>> CopyIn(const std::vector<SendRecvCall>& calls);
  Status CopyOut(const std::vector<SendRecvCall>& calls);

 private:
  // The largest block, with at least so many bytes.
  Result<std::byte*> Grow(size_t bytes);
  Status Reserve(size_t bytes);

  Device* device_ = nullptr;     // of the call that is running
  std::byte* memory_ = nullptr;  // likewise
  Mutex mutex_;
  Device* owner_ INCCL_GUARDED_BY(mutex_) = nullptr;  // whose memory the blocks are
  size_t bytes_ INCCL_GUARDED_BY(mutex_) = 0;         // of the last block
  std::vector<std::byte*> blocks_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_STAGING_H_
