// SPDX-License-Identifier: Apache-2.0
#include "device/runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "base/log.h"
#include "base/mutex.h"

namespace inccl {
namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kLibrary = "libinccl_cuda.so.0";

std::atomic<Device*> current{nullptr};
std::atomic<bool> unstarted{false};           // the driver has been loaded, but not started
Mutex mutex;                                  // taken before the device's and the log's
bool looked INCCL_GUARDED_BY(mutex) = false;  // and the answer stays
std::string& Reason() INCCL_REQUIRES(mutex) {
  static auto* const reason = new std::string;
  return *reason;
}

void* OpenBeside(const char* name) {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&LookForDevice), &self) != 0 &&
      self.dli_fname != nullptr) {
    const std::string path = self.dli_fname;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) {
      void* const library = dlopen((path.substr(0, slash + 1) + name).c_str(), RTLD_NOW);
      if (library != nullptr) return library;
    }
  }
  return dlopen(name, RTLD_NOW);
}

Result<Device*> Load(bool start, bool* later) {
  static void* const library = OpenBeside(kLibrary);
  if (library == nullptr) return SystemError(fmt::format("{}: {}", kLibrary, dlerror()));
  static const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
  if (entry == nullptr) return SystemError(fmt::format("{}: no {}", kLibrary, kDeviceEntry));
  std::array<char, 512> why{};
  Device* const device = entry(Device::kVersion, start, later, why.data(), why.size());
  if (device == nullptr) return SystemError(fmt::format("{}: {}", kLibrary, why.data()));
  return device;
}

}  // namespace

Device* CurrentDevice() {
  Device* const device = current.load(std::memory_order_acquire);
  return device == nullptr && unstarted.load(std::memory_order_relaxed) ? LookForDevice() : device;
}

Device* LookForDevice(bool start) {
  if (Device* const device = current.load(std::memory_order_acquire); device != nullptr) {
    return device;
  }
  const MutexLock lock(&mutex);
  if (looked) return current.load(std::memory_order_acquire);
  void* const driver = dlopen(kDriver, RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) {
    Reason() = "this process has not loaded CUDA";
    return nullptr;
  }
  dlclose(driver);
  bool later = false;
  Result<Device*> device = Load(start, &later);
  unstarted.store(later, std::memory_order_relaxed);
  looked = !later;
  if (device.ok()) {
    for (const std::string& warning : (*device)->Warnings()) {
      Log(LogLevel::kWarn, LogSubsystem::kInit, "CUDA: {}", warning);
    }
    current.store(*device, std::memory_order_release);
    return *device;
  }
  Reason() = device.status().message();
  if (later) return nullptr;
  Log(LogLevel::kWarn, LogSubsystem::kInit, "no device memory in calls: {}", Reason());
  return nullptr;
}

std::string WhyNoDevice() {
  const MutexLock lock(&mutex);
  return Reason();
}

void SetDevice(Device* device) {
  const MutexLock lock(&mutex);
  looked = true;
  unstarted.store(false, std::memory_order_relaxed);
  Reason() = "no device was set";
  current.store(device, std::memory_order_release);
}

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLeastBlock = size_t{256} << 10;

}  // namespace

PinnedBuffer::~PinnedBuffer() {
  for (const Block& block : blocks_) device_->FreeHost(block.data);
}

Result<std::byte*> PinnedBuffer::Take(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && size > blocks_[block_].bytes - used_) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    blocks_.reserve(blocks_.size() + 1);
    const size_t more = std::bit_ceil(std::max(size, kLeastBlock));
    Result<std::byte*> memory = device_->AllocateHost(more);
    if (!memory.ok()) return memory.status();
    blocks_.push_back({*memory, more});
    used_ = 0;
  }
  std::byte* const taken = blocks_[block_].data + used_;
  used_ += size;
  return taken;
}

void PinnedBuffer::GiveBack() {
  // Keeps the blocks: merging them into one would cost an allocation.
  block_ = 0;
  used_ = 0;
}

}  // namespace inccl
