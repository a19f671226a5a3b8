// SPDX-License-Identifier: Apache-2.0
//
// Memory of the caller that the devices send from in place: that of ccl_mem_alloc and
// ccl_mem_alloc_device, and what the application has registered. A registration ends when memory of
// the library is freed.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_MEMORY_H_
#define INCCL_TRANSPORT_VERBS_VERBS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "memory/host_allocator.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_device.h"

namespace inccl::verbs {

// One thread uses it; OnFree and OnReplace come from any.
class CallerMemory final : public FreeObserver {
 public:
  // The devices outlive it. `gpus`: it also takes memory of GPUs, else the reason why it does not.
  CallerMemory(std::vector<const Device*> devices, Status gpus);
  ~CallerMemory() override;
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  // As the methods of Transport. Without Registration::keep, memory that is neither of
  // ccl_mem_alloc nor part of memory that is kept is refused.
  Status CanRegister(const void* data, size_t bytes, bool on_device) const;
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how);
  void Deregister(const MemoryHandle& memory);
  // Ends all registrations.
  void Clear();

  // True if the devices can read this memory, until another thread frees or replaces it.
  bool Holds(const std::byte* data, size_t bytes) const;
  // The registration that has this memory, for messages: "0x10 to 0x20"; "" if there is none (any
  // more).
  std::string RegistrationOf(const std::byte* data, size_t bytes) const;
  // Calls post(key) with the key by which a device, by its number, reads this memory. The
  // registration does not end before `post` has returned. Returns false if there is none (any
  // more).
  template <typename Post>
  bool Use(const std::byte* data, size_t bytes, size_t device, const Post& post) const {
    const MutexLock lock(&mutex_);
    const Entry* const entry = Find(data, bytes);
    if (entry == nullptr) return false;
    post(entry->regions[device]->lkey);
    return true;
  }

  void OnFree(const std::byte* begin, const std::byte* end) override;
  void OnReplace(const std::byte* begin, const std::byte* end) override;

  static constexpr size_t kMostFound = 32;  // without Registration::keep
  static constexpr size_t kMostKept = 1024;

 private:
  struct Entry {
    uint64_t memory = 0;  // MemoryHandle::memory
    const std::byte *begin = nullptr, *end = nullptr;
    std::vector<MemoryRegion> regions{};  // by device
    uint64_t used = 0;                    // the higher, the later
    int keepers = 0;
    bool replaced = false;  // the device has other pages than the process
    bool Covers(const std::byte* data, size_t bytes) const {
      return !replaced && data >= begin && data <= end && bytes <= static_cast<size_t>(end - data);
    }
  };
  Result<Entry*> Make(const Region& region, bool keep) INCCL_REQUIRES(mutex_);
  const Entry* Find(const std::byte* data, size_t bytes) const INCCL_REQUIRES(mutex_);

  const std::vector<const Device*> devices_;
  Status gpus_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ INCCL_GUARDED_BY(mutex_);
  uint64_t last_own_ INCCL_GUARDED_BY(mutex_) = 0;  // identity of memory not of ccl_mem_alloc
  uint64_t uses_ INCCL_GUARDED_BY(mutex_) = 0;
  // Calls on memory that cannot be registered do not try again and again.
  uint64_t refused_ INCCL_GUARDED_BY(mutex_) = 0;
};

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_MEMORY_H_
