// SPDX-License-Identifier: Apache-2.0
#include "fakes/fake_device.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "device/runtime.h"
#include "memory/device_allocator.h"

namespace inccl::test {

class FakeDevice::FakeStream {
 public:
  explicit FakeStream(uint64_t id) : id_(id), thread_([this] { Loop(); }) {}
  ~FakeStream() {
    Append({});
    thread_.join();
  }
  uint64_t id() const { return id_; }
  // After this nothing is done any more of what is on a queue.
  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }
  void Append(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void Loop() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (work == nullptr) return;
      if (!failed_) work();
    }
  }

  const uint64_t id_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

class FakeDevice::Order final : public DeviceOrder {
 public:
  Order(FakeDevice* device, FakeStream* stream) : device_(device), stream_(stream) {}
  Status Check() override {
    if (device_->capturing) {
      return InvalidArgument("stream: is being captured");
    }
    return Status::Ok();
  }
  Status Append(uint32_t place) override {
    if (Status status = Check(); !status.ok()) return status;
    // What is on the stream may outlive the order.
    stream_->Append([words = words_, place] {
      const std::lock_guard lock(words->mutex);
      words->reached = place + 1;
    });
    stream_->Append([words = words_, place] {
      std::unique_lock lock(words->mutex);
      words->changed.wait(lock,
                          [&] { return static_cast<int32_t>(words->finished - place - 1) >= 0; });
    });
    return Status::Ok();
  }
  bool Reached(uint32_t place) const override {
    const std::lock_guard lock(words_->mutex);
    return static_cast<int32_t>(words_->reached - place - 1) >= 0;
  }
  void Finish(uint32_t place) override {
    const std::lock_guard lock(words_->mutex);
    words_->finished = place + 1;
    words_->changed.notify_all();
  }

 private:
  struct Words {
    std::mutex mutex;
    std::condition_variable changed;
    uint32_t reached = 0, finished = 0;
  };
  FakeDevice* const device_;
  FakeStream* const stream_;
  const std::shared_ptr<Words> words_ = std::make_shared<Words>();
};

// A stream of the device's, and words that outlive it.
class FakeDevice::Queue final : public DeviceQueue {
 public:
  Queue(FakeDevice* device, int number, FakeStream* stream)
      : device_(device), number_(number), stream_(stream) {}
  ~Queue() override { device_->Remove(stream_); }

  Status Copy(void* to, const void* from, size_t bytes) override {
    if (stream_->failed()) return Failed();
    for (const void* end : {static_cast<const void*>(to), from}) {
      const bool there = device_->DeviceOf(end) >= 0;
      if (!(there ? device_->IsNear(number_, end) : device_->Reachable(end, bytes))) std::abort();
    }
    const auto at = [this](auto* end) {
      return device_->DeviceOf(end) < 0 ? static_cast<const void*>(end) : device_->Reach(end);
    };
    const bool crosses = device_->DeviceOf(to) < 0 || device_->DeviceOf(from) < 0;
    Append([device = device_, stream = stream_, to = const_cast<void*>(at(to)), from = at(from),
            bytes, crosses] {
      if (device->copies_until_failure >= 0 && device->copies_until_failure-- == 0) {
        stream->Fail();
        return;
      }
      ++device->copies;
      if (crosses) ++device->host_copies;
      if (device->copy_delay_us > 0) usleep(static_cast<useconds_t>(device->copy_delay_us));
      std::memcpy(to, from, bytes);
    });
    return Status::Ok();
  }
  Status Run(const Launch& launch) override {
    if (stream_->failed()) return Failed();
    const int error = launch(*device_->Kernels(), stream_);
    if (error == 0) return Status::Ok();
    return {Code::kUnhandledCudaError, fmt::format("the fake device has not launched: {}", error)};
  }
  Result<uint64_t> Mark() override {
    if (stream_->failed()) return Failed();
    ++marks_;
    stream_->Append([passed = passed_, mark = marks_] { *passed = mark; });
    return marks_;
  }
  Result<bool> Reached(uint64_t mark) override {
    if (*passed_ >= mark) return true;
    if (stream_->failed()) return Failed();
    return false;
  }

 private:
  static Status Failed() {
    return {Code::kUnhandledCudaError, "the fake device does not copy any more"};
  }
  void Append(std::function<void()> work) {
    stream_->Append([device = device_, work = std::move(work)] {
      std::unique_lock lock(device->hold_mutex_);
      ++device->held;
      device->hold_changed_.wait(lock, [&] { return !device->hold_; });
      --device->held;
      lock.unlock();
      ++device->running;
      work();
      --device->running;
    });
  }

  FakeDevice* const device_;
  const int number_;
  FakeStream* const stream_;
  uint64_t marks_ = 0;
  const std::shared_ptr<std::atomic<uint64_t>> passed_ = std::make_shared<std::atomic<uint64_t>>(0);
};

FakeDevice::FakeDevice(size_t memory_bytes)
    : bytes_(memory_bytes), file_(memfd_create("fake-device", MFD_CLOEXEC)) {
  const auto map = [&](int protection) {
    void* const memory = mmap(nullptr, bytes_, protection, MAP_SHARED, file_.get(), 0);
    if (memory == MAP_FAILED) std::abort();
    return Mapping(memory, bytes_);
  };
  if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) std::abort();
  device_view_ = map(PROT_NONE);
  host_view_ = map(PROT_READ | PROT_WRITE);
  MakeStream();
  SetDevice(this);
}

FakeDevice::~FakeDevice() {
  SetDevice(nullptr);
  streams_.clear();
  DeviceAllocator::Instance().Forget(this);
}

std::byte* FakeDevice::Reach(const void* memory) const {
  return host_view_.data() + (static_cast<const std::byte*>(memory) - device_view_.data());
}

void* FakeDevice::MakeStream() {
  static std::atomic<uint64_t> ids{0};
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<FakeStream>(ids++));
  return streams_.back().get();
}

FakeDevice::FakeStream* FakeDevice::Find(void* stream) {
  const std::lock_guard lock(mutex_);
  if (stream == nullptr) return streams_.front().get();
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& one) { return one.get() == stream; });
  return found == streams_.end() ? nullptr : found->get();
}

// Its end, which waits for what is on it, is the caller's, without the mutex.
std::unique_ptr<FakeDevice::FakeStream> FakeDevice::Remove(FakeStream* stream) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& one) { return one.get() == stream; });
  if (found == streams_.end()) std::abort();
  std::unique_ptr<FakeStream> removed = std::move(*found);
  streams_.erase(found);
  return removed;
}

void FakeDevice::HoldQueues(bool hold) {
  const std::lock_guard lock(hold_mutex_);
  hold_ = hold;
  hold_changed_.notify_all();
}

void FakeDevice::Launch(void* stream, std::function<void()> work) {
  Find(stream)->Append(std::move(work));
}

void FakeDevice::Synchronize(void* stream) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Launch(stream, [&] {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

int FakeDevice::DeviceOf(const void* memory) {
  const auto offset =
      reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(device_view_.data());
  return offset < bytes_ ? static_cast<int>(offset / (bytes_ / kDevices)) : -1;
}

Result<uint64_t> FakeDevice::IdOf(void* stream) {
  FakeStream* const found = Find(stream);
  if (found == nullptr) return InvalidArgument(fmt::format("stream: {} is none", stream));
  return found->id();
}

Result<std::unique_ptr<DeviceOrder>> FakeDevice::OrderOf(void* stream) {
  return std::unique_ptr<DeviceOrder>(std::make_unique<Order>(this, Find(stream)));
}

Result<std::byte*> FakeDevice::AllocateHost(size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
  const std::lock_guard lock(mutex_);
  host_memory_.emplace(memory, bytes);
  host_bytes += bytes;
  ++host_blocks;
  return memory;
}

void FakeDevice::FreeHost(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(host_memory_.begin(), host_memory_.end(),
                                  [&](const auto& one) { return one.first == memory; });
  if (found == host_memory_.end()) std::abort();
  host_bytes -= found->second;
  host_memory_.erase(found);
  std::free(memory);  // NOLINT: of aligned_alloc
}

Status FakeDevice::Copy(void* to, const void* from, size_t bytes) {
  if (copies_until_failure >= 0 && copies_until_failure-- == 0) {
    return Status(Code::kUnhandledCudaError, "the fake device does not copy any more");
  }
  if (DeviceOf(to) < 0 && DeviceOf(from) < 0) std::abort();
  std::memcpy(DeviceOf(to) < 0 ? to : Reach(to), DeviceOf(from) < 0 ? from : Reach(from), bytes);
  return Status::Ok();
}

Result<std::unique_ptr<DeviceQueue>> FakeDevice::NewQueue(int device) {
  if (device < 0 || device >= kDevices) std::abort();
  auto* const stream = static_cast<FakeStream*>(MakeStream());
  return std::unique_ptr<DeviceQueue>(std::make_unique<Queue>(this, device, stream));
}

Status FakeDevice::Register(void* memory, size_t bytes) {
  if (!registering) return {Code::kUnhandledCudaError, "the fake device registers nothing"};
  if (reinterpret_cast<uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0) std::abort();
  const std::lock_guard lock(mutex_);
  Range& range = registered_ranges_[static_cast<const std::byte*>(memory)];
  if (range.users++ > 0 && range.bytes != bytes) std::abort();
  range.bytes = bytes;
  ++registered;
  return Status::Ok();
}

void FakeDevice::Unregister(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = registered_ranges_.find(static_cast<const std::byte*>(memory));
  if (found == registered_ranges_.end()) std::abort();
  --registered;
  if (--found->second.users == 0) registered_ranges_.erase(found);
}

void* FakeDevice::AddressOf(int /*device*/, const void* host) {
  return Reachable(host, 1) ? const_cast<void*>(host) : nullptr;
}

bool FakeDevice::Reachable(const void* host, size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(host);
  const auto holds = [&](const std::byte* begin, size_t size) {
    return at >= begin && at < begin + size && bytes <= static_cast<size_t>(begin + size - at);
  };
  const std::lock_guard lock(mutex_);
  return std::any_of(host_memory_.begin(), host_memory_.end(),
                     [&](const auto& one) { return holds(one.first, one.second); }) ||
         std::any_of(registered_ranges_.begin(), registered_ranges_.end(),
                     [&](const auto& one) { return holds(one.first, one.second.bytes); });
}

}  // namespace inccl::test
