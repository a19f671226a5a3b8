// SPDX-License-Identifier: Apache-2.0
//
// Calls on memory of a device, run on memory of the host: what they read is copied there before,
// what they have written back afterwards.
#ifndef INCCL_COMMUNICATOR_STAGING_H_
#define INCCL_COMMUNICATOR_STAGING_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "collectives/call.h"
#include "device/device.h"

namespace inccl {

// One communicator's; its memory grows to what the largest call needed. What it has outgrown is
// kept until the end: giving it back waits for all that the device does, of which some may wait for
// this communicator.
class Staging {
 public:
  Staging(int rank, int nranks) : rank_(rank), nranks_(nranks) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // From any thread, before such calls take their place on a stream, which allocations may wait
  // for: takes what they will need. An error is the calls' own, when they run.
  void Prepare(std::span<const Call> calls);

  // The calls with the host's memory in place of the device's, which holds their inputs. Calls on
  // memory of the host stay as they are.
  Result<std::vector<Call>> CopyIn(std::span<const Call> calls);
  // Reads a factor in memory of a device now.
  Status CopyInScalar(Call* call);
  // Copies the results of such calls to where `calls` want them.
  Status CopyOut(std::span<const Call> calls);

 private:
  // The largest block, with at least so many bytes.
  Result<std::byte*> Grow(size_t bytes);
  Status Reserve(size_t bytes);
  // Of the host's memory that a call takes; 0 if it is not on a device.
  struct Bytes {
    size_t send = 0, recv = 0;
    size_t total() const;
  };
  Bytes BytesOf(const Call& call) const;
  size_t BytesOf(std::span<const Call> calls) const;

  const int rank_, nranks_;
  Device* device_ = nullptr;     // of the call that is running
  std::byte* memory_ = nullptr;  // likewise
  Mutex mutex_;
  Device* owner_ INCCL_GUARDED_BY(mutex_) = nullptr;  // whose memory the blocks are
  size_t bytes_ INCCL_GUARDED_BY(mutex_) = 0;         // of the last block
  std::vector<std::byte*> blocks_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_STAGING_H_
