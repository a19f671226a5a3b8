// SPDX-License-Identifier: Apache-2.0
//
// Runs calls on device memory in host memory: copies their inputs to the host before, and their
// results back afterwards.
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

// Belongs to one communicator. Its memory grows to the needs of the largest call. Outgrown blocks
// are kept until the end, because freeing one waits for all work of the device, which may wait for
// this communicator.
class Staging {
 public:
  Staging(int rank, int nranks) : rank_(rank), nranks_(nranks) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Any thread calls it before such calls take their positions on a stream, because allocations may
  // wait for the stream. It allocates their memory. If it fails, the calls report the error when
  // they run.
  void Prepare(std::span<const Call> calls);

  // Copies inputs from the device and returns the calls with host buffers in place of device
  // buffers. Calls on host memory are returned unchanged.
  Result<std::vector<Call>> CopyIn(std::span<const Call> calls);
  // Copies a scalar that is in device memory into the call.
  Status CopyInScalar(Call* call);
  // Copies the results to the device buffers of `calls`.
  Status CopyOut(std::span<const Call> calls);

 private:
  // Returns the largest block, which has at least `bytes`.
  Result<std::byte*> Grow(size_t bytes);
  Status FindDevice();
  Status Reserve(size_t bytes);
  // Host memory that a call needs; 0 if its buffers are not on a device.
  struct Bytes {
    size_t send = 0, recv = 0;
    size_t total() const;
  };
  Bytes BytesOf(const Call& call) const;
  size_t BytesOf(std::span<const Call> calls) const;

  const int rank_, nranks_;
  Device* device_ = nullptr;     // of the running call
  std::byte* memory_ = nullptr;  // of the running call
  Mutex mutex_;
  Device* owner_ INCCL_GUARDED_BY(mutex_) = nullptr;  // allocated the blocks
  size_t bytes_ INCCL_GUARDED_BY(mutex_) = 0;         // of the last block
  std::vector<std::byte*> blocks_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_STAGING_H_
