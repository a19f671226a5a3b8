// SPDX-License-Identifier: Apache-2.0
//
// A device without hardware. A thread that touches its memory gets SIGSEGV. Its
// streams do what is put on them in order, each in a thread of its own. What it knows of waiting,
// it has from the interface alone, so it shows the order that the library makes.
#ifndef INCCL_TESTS_FAKES_FAKE_DEVICE_H_
#define INCCL_TESTS_FAKES_FAKE_DEVICE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "device/device.h"

namespace inccl::test {

class FakeDevice : public Device {
 public:
  static constexpr int kDevices = 2;  // each has half of the memory

  // The device of this process (SetDevice) as long as this lives.
  explicit FakeDevice(size_t memory_bytes);
  ~FakeDevice() override;

  std::vector<std::string> Warnings() override { return {}; }
  void CountCalls(std::atomic<uint64_t>* /*calls*/) override {}
  // Memory of a device, freed with it; and the place where the test reaches it.
  std::byte* Allocate(size_t bytes, int device = 0);
  std::byte* Reach(const void* memory) const;
  template <typename T>
  T* Reach(const T* memory) const {
    return reinterpret_cast<T*>(Reach(static_cast<const void*>(memory)));
  }

  void* MakeStream();
  // A kernel: runs when everything before it on the stream is done. NULL: the legacy stream.
  void Launch(void* stream, std::function<void()> work);
  void Synchronize(void* stream);

  // What queues hand on to the launcher of kernels; nullptr, as at first: there are none. A
  // launcher puts what its kernel does on the stream that it is given (Launch).
  void SetKernels(const cuda::Launchers* kernels) { kernels_ = kernels; }
  // Until false, what is on queues waits.
  void HoldQueues(bool hold);

  // What is to go wrong. Copies of queues fail when their turn comes, and nothing that stands on
  // the same queue behind one of them is done.
  std::atomic<int> copies_until_failure{-1};  // -1: never
  std::atomic<int> copy_delay_us{0};          // of queues
  std::atomic<bool> capturing{false};
  std::atomic<bool> registering{true};   // false: Register fails
  std::atomic<uint64_t> host_bytes{0};   // of AllocateHost, not freed
  std::atomic<uint64_t> host_blocks{0};  // of AllocateHost, ever
  std::atomic<uint64_t> registered{0};   // ranges of Register
  std::atomic<int> running{0};           // copies and kernels on queues at this moment
  std::atomic<uint64_t> copies{0};       // of queues, ever
  std::atomic<uint64_t> host_copies{0};  // of these: between the device and the host
  std::atomic<int> held{0};              // queues that wait at this moment (HoldQueues)
  std::atomic<bool> sharing{true};       // false: Share fails
  std::atomic<bool> opening{true};       // false: Open fails
  std::atomic<bool> dma_bufs{true};      // false: DmaBufOf fails
  std::atomic<uint64_t> waits{0};        // times that WaitFor was called
  std::atomic<uint64_t> shared{0};       // times that Share has succeeded
  std::atomic<uint64_t> opened{0};       // times that Open has succeeded, without those closed

  int Count() override { return kDevices; }
  int Current() override { return 1; }
  bool InUse() override { return false; }
  int DeviceOf(const void* memory) override;
  Result<uint64_t> IdOf(void* stream) override;
  Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) override;
  Result<std::byte*> AllocateHost(size_t bytes) override;
  void FreeHost(std::byte* memory) override;
  Status Copy(void* to, const void* from, size_t bytes) override;
  Result<std::unique_ptr<DeviceQueue>> NewQueue(int device) override;
  const cuda::Launchers* Kernels() override { return kernels_; }
  // Takes first what was freed, where it has the right size.
  Result<std::byte*> AllocateOn(int device, size_t bytes) override;
  // Ends the program where it is open.
  void FreeOn(int device, std::byte* memory) override;
  Status WaitFor(int device) override;
  size_t ShareGranularity() override { return 256; }
  // Of Allocate or AllocateOn; for this process alone.
  Result<DeviceShare> Share(const void* memory, size_t bytes) override;
  Result<std::byte*> Open(int device, const DeviceShare::Handle& handle) override;
  void Close(int device, std::byte* memory) override;
  Result<DmaBuf> DmaBufOf(const void* memory, size_t bytes) override;
  size_t BytesFrom(int device, const std::byte* memory) override;
  Status Register(void* memory, size_t bytes) override;
  void Unregister(void* memory) override;
  // Host pointers stay as they are; nullptr: neither of AllocateHost nor of Register.
  void* AddressOf(int device, const void* host) override;

 private:
  class FakeStream;
  class Order;
  class Queue;
  struct Range {
    size_t bytes = 0;
    int users = 0;
  };
  struct Allocation {
    uint64_t id = 0;
    size_t bytes = 0;
    bool freeable = false;  // of AllocateOn
    int opens[kDevices] = {};
  };
  // Those that hold mutex_ do.
  std::byte* Take(size_t bytes, int device, bool freeable);
  std::map<const std::byte*, Allocation>::iterator Holding(const void* memory, size_t bytes);
  FakeStream* Find(void* stream);
  std::unique_ptr<FakeStream> Remove(FakeStream* stream);
  bool Reachable(const void* host, size_t bytes);
  // Whether queues of `device` copy from and to it.
  bool IsNear(int device, const void* memory);

  const size_t bytes_;
  UniqueFd file_;
  Mapping device_view_, host_view_;
  std::mutex mutex_;
  size_t used_[kDevices] = {};
  std::vector<std::unique_ptr<FakeStream>> streams_;  // the first is the legacy one
  std::set<std::pair<std::byte*, size_t>> host_memory_;
  std::map<const std::byte*, Allocation> allocations_;  // of devices, not freed
  std::multimap<size_t, std::byte*> freed_[kDevices];   // by bytes, rounded up
  std::map<const std::byte*, Range> registered_ranges_;
  std::atomic<const cuda::Launchers*> kernels_{nullptr};
  std::mutex hold_mutex_;
  std::condition_variable hold_changed_;
  bool hold_ = false;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAKES_FAKE_DEVICE_H_
