// SPDX-License-Identifier: Apache-2.0
//
// The memory that the application has registered with a communicator (ccl_comm_register).
//
// One thread at a time uses a transport. So any thread may add and remove memory here, and the
// thread that holds the communicator's call mutex passes the changes on to the transport, between
// calls.
#ifndef INCCL_COMMUNICATOR_REGISTRATIONS_H_
#define INCCL_COMMUNICATOR_REGISTRATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/transport.h"

namespace inccl {

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

#endif  // INCCL_COMMUNICATOR_REGISTRATIONS_H_
