// SPDX-License-Identifier: Apache-2.0
//
// An open port of an RDMA device, and the memory that is registered with it.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_
#define INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "memory/host_allocator.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_wire.h"

namespace inccl::verbs {

// Loads libibverbs when it is first needed, so a library built with RDMA also works where
// libibverbs is not installed. Posting and polling need no function of it: verbs.h calls them
// through the context of the device.

#define INCCL_VERBS_FUNCTIONS(X) \
  X(ibv_get_device_list)         \
  X(ibv_free_device_list)        \
  X(ibv_get_device_name)         \
  X(ibv_open_device)             \
  X(ibv_close_device)            \
  X(ibv_query_device)            \
  X(ibv_query_port)              \
  X(_ibv_query_gid_ex)           \
  X(ibv_alloc_pd)                \
  X(ibv_dealloc_pd)              \
  X(ibv_reg_mr)                  \
  X(ibv_dereg_mr)                \
  X(ibv_create_comp_channel)     \
  X(ibv_destroy_comp_channel)    \
  X(ibv_create_cq)               \
  X(ibv_destroy_cq)              \
  X(ibv_get_cq_event)            \
  X(ibv_ack_cq_events)           \
  X(ibv_create_srq)              \
  X(ibv_destroy_srq)             \
  X(ibv_create_qp)               \
  X(ibv_modify_qp)               \
  X(ibv_destroy_qp)              \
  X(ibv_wc_status_str)

// Calls put the name in parentheses, (ibv.ibv_reg_mr)(...), because verbs.h has macros of some.
struct Library {
#define INCCL_VERBS_MEMBER(name) decltype(&::name) name{};  // NOLINT: gcc wants no parentheses
  INCCL_VERBS_FUNCTIONS(INCCL_VERBS_MEMBER)
#undef INCCL_VERBS_MEMBER
  // ibv_reg_dmabuf_mr, which verbs.h and libibverbs have from rdma-core 34 on; nullptr: they lack
  // it.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access) = nullptr;
};

// Owners. Each is released by a function of the library, which is never unloaded.
using Context = std::unique_ptr<ibv_context, int (*)(ibv_context*)>;
using ProtectionDomain = std::unique_ptr<ibv_pd, int (*)(ibv_pd*)>;
using Channel = std::unique_ptr<ibv_comp_channel, int (*)(ibv_comp_channel*)>;
using CompletionQueue = std::unique_ptr<ibv_cq, int (*)(ibv_cq*)>;
using SharedReceives = std::unique_ptr<ibv_srq, int (*)(ibv_srq*)>;
using QueuePair = std::unique_ptr<ibv_qp, int (*)(ibv_qp*)>;
using MemoryRegion = std::unique_ptr<ibv_mr, int (*)(ibv_mr*)>;

// Loads libibverbs once per process. Errors: kInvalidUsage (not installed), kSystemError (too old).
// Tests name a stand-in in INCCL_TEST_IBVERBS.
Result<const Library*> Load();

// Memory of this process that the device may read or write. The region ends before the memory.
struct RegisteredMemory {
  Mapping memory;
  MemoryRegion region{nullptr, nullptr};
  std::byte* data() const { return memory.data(); }
};

enum class Writer : uint8_t { kThisRank, kPeers };

class Device {
 public:
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // Opens the ports that a rank uses, `most` at most: of those that can be used the ones near to
  // the process, and of these the fastest of one kind of network. Errors: kInvalidUsage (no
  // device), kSystemError, which names every port and why it cannot.
  static Result<std::vector<std::unique_ptr<Device>>> Open(const VerbsPortOptions& options,
                                                           size_t most);
  // All ports, also those that cannot be used (info().why_not) and therefore serve for info()
  // alone.
  static Result<std::vector<std::unique_ptr<Device>>> All(const VerbsPortOptions& options);

  // New memory, whole pages; children of this process do not inherit it. If the limit of locked
  // memory forbids it, the kSystemError names limit, need and remedy.
  Result<RegisteredMemory> Allocate(size_t bytes, Writer writer) const;
  // Registers memory, with the same error. Writer::kThisRank: the device only reads it.
  Result<MemoryRegion> Register(void* data, size_t bytes, Writer writer) const;
  // Registers memory of a GPU, which the device only reads.
  Result<MemoryRegion> Register(const DmaBuf& buffer) const;

  // "rxe0 port 1 is DOWN", or "" while the port is active.
  std::string PortTrouble() const;

  const Library& ibv() const { return *ibv_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  const ibv_device_attr& limits() const { return limits_; }
  const VerbsPort& info() const { return info_; }
  std::string name() const;  // "rxe0:1"
  uint8_t port() const { return static_cast<uint8_t>(info_.port); }
  bool ethernet() const { return info_.ethernet; }
  uint16_t lid() const { return attributes_.lid; }
  ibv_mtu mtu() const { return attributes_.active_mtu; }
  uint8_t gid_index() const { return static_cast<uint8_t>(std::max(info_.gid_index, 0)); }
  const Gid& gid() const { return gid_; }

 private:
  Device(const Library* ibv, Context context)
      : ibv_(ibv), context_(std::move(context)), pd_(nullptr, ibv->ibv_dealloc_pd) {}
  void Inspect(const VerbsPortOptions& options);
  void ChooseGid(int wanted);

  const Library* ibv_;
  Context context_;
  ProtectionDomain pd_;
  ibv_device_attr limits_{};
  ibv_port_attr attributes_{};
  VerbsPort info_{};
  Gid gid_{};
};

// Memory of the caller that the devices send from in place: that of ccl_mem_alloc and
// ccl_mem_alloc_device, and what the application has registered. A registration ends when memory of
// the library is freed.

// One thread uses it; OnFree and OnReplace come from any.
class CallerMemory final : public Exports, public FreeObserver {
 public:
  // The devices outlive it. `gpus`: it also takes memory of GPUs, else the reason why it does not.
  CallerMemory(std::vector<const Device*> devices, Status gpus);
  ~CallerMemory() override;
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  // Without Registration::keep, memory that is neither of
  // ccl_mem_alloc nor part of memory that is kept is refused.
  Status CanRegister(const void* data, size_t bytes, bool on_device) const override;
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override;
  void Deregister(const MemoryHandle& memory) override;
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

#endif  // INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_
