// SPDX-License-Identifier: Apache-2.0
//
// Memory of the application that peers access in place (docs/zero-copy.md): the registered buffers
// of the call in progress, and what the application keeps registered.
#ifndef INCCL_COMMUNICATOR_ZERO_COPY_H_
#define INCCL_COMMUNICATOR_ZERO_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "collectives/call.h"
#include "collectives/schedule.h"
#include "transport/transport.h"

namespace inccl {

// The registered buffers of the call in progress.
class ZeroCopy {
 public:
  // Calls of fewer than two slices use slots, whose memory is in the caches. `transport` outlives
  // it.
  ZeroCopy(int rank, int nranks, uint32_t slice_bytes, Transport* transport)
      : rank_(rank), nranks_(nranks), slice_bytes_(slice_bytes), transport_(transport) {}

  // A call begins without registered buffers.
  void Begin() {
    input_ = {};
    output_ = {};  // not `= input_`, which would wait for the stores above
    result_ = {};
  }
  void Begin(const Call& call, Algorithm algorithm);
  // For a call on device memory, which peers only read.
  void BeginOnDevice(const Call& call, Algorithm algorithm);
  // Called after an error. Peers that do not know of it yet can no longer access this rank's
  // buffers, or their later Release fails.
  void RevokeAccess();

  const MemoryHandle& input() const { return input_; }
  const MemoryHandle& output() const { return output_; }
  const MemoryHandle& result() const { return result_; }
  bool any() const { return (input_.region | output_.region) != 0; }

 private:
  bool Applies(const Call& call, Algorithm algorithm) const;
  // Bytes of the input that peers read; 0: none.
  size_t InputBytes(const Call& call) const;
  MemoryHandle Register(const void* data, size_t bytes, const Registration& how);

  const int rank_, nranks_;
  const uint32_t slice_bytes_;
  Transport* const transport_;
  MemoryHandle input_, output_, result_;
};

// The memory that the application has registered with a communicator (ccl_comm_register).
//
// One thread at a time uses a transport. So any thread may add and remove memory here, and the
// thread that holds the communicator's call mutex passes the changes on to the transport, between
// calls.
class Registrations {
 public:
  // `transport` outlives this object.
  Registrations(std::string rank_name, Transport* transport)
      : rank_name_(std::move(rank_name)), transport_(transport) {}

  // Any thread. Returns the handle; nullptr, after a line in the log, if the transport cannot
  // export this memory. Calls on such memory use slots.
  void* Add(const void* data, size_t bytes, bool on_device);
  // Any thread. False if there is no such handle.
  bool Remove(const void* handle);

  // Passes changes on to the transport; one load if there are none. Only the thread that holds the
  // call mutex calls it, when no call is in progress.
  void Apply() {
    if (pending_.load(std::memory_order_acquire)) ApplyChanges();
  }

 private:
  struct Entry {
    const void* data = nullptr;
    size_t bytes = 0;
    bool on_device = false;
    MemoryHandle memory = {};  // of the transport; empty until Apply, and if the transport refuses
  };
  void ApplyChanges();
  void LogRefusal(const Entry& entry, const Status& why) const;

  const std::string rank_name_;
  Transport* const transport_;
  Mutex mutex_;
  // By handle: a number as a pointer, never reused, so a handle that was removed stays unknown.
  std::map<const void*, std::unique_ptr<Entry>> entries_ INCCL_GUARDED_BY(mutex_);
  uintptr_t last_handle_ INCCL_GUARDED_BY(mutex_) = 0;
  // For Apply.
  std::vector<Entry*> added_ INCCL_GUARDED_BY(mutex_);
  std::vector<MemoryHandle> removed_ INCCL_GUARDED_BY(mutex_);
  std::atomic<bool> pending_{false};
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_ZERO_COPY_H_
