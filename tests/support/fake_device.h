// SPDX-License-Identifier: Apache-2.0
//
// A device without hardware. The processor cannot touch its memory: whoever does dies of it. Its
// streams do what is put on them in order, each in a thread of its own. What it knows of waiting,
// it has from the interface alone, so it shows the order that the library makes.
#ifndef INCCL_TESTS_SUPPORT_FAKE_DEVICE_H_
#define INCCL_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/fd.h"
#include "device/device.h"

namespace inccl::test {

class FakeDevice final : public Device {
 public:
  static constexpr int kDevices = 2;  // each has half of the memory

  // The device of this process (SetDevice) as long as this lives.
  explicit FakeDevice(size_t memory_bytes);
  ~FakeDevice() override;

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

  // What is to go wrong.
  std::atomic<int> copies_until_failure{-1};  // -1: never
  std::atomic<bool> capturing{false};
  std::atomic<uint64_t> host_bytes{0};  // of AllocateHost, not freed

  int Count() override { return kDevices; }
  int Current() override { return 1; }
  int DeviceOf(const void* memory) override;
  Result<uint64_t> IdOf(void* stream) override;
  Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) override;
  Result<std::byte*> AllocateHost(size_t bytes) override;
  void FreeHost(std::byte* memory) override;
  Status Copy(void* to, const void* from, size_t bytes) override;

 private:
  class FakeStream;
  class Order;
  FakeStream* Find(void* stream);

  const size_t bytes_;
  UniqueFd file_;
  Mapping device_view_, host_view_;
  std::mutex mutex_;
  size_t used_[kDevices] = {};
  std::vector<std::unique_ptr<FakeStream>> streams_;  // the first is the legacy one
  std::set<std::pair<std::byte*, size_t>> host_memory_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_FAKE_DEVICE_H_
