// SPDX-License-Identifier: Apache-2.0
//
// The device interface over CUDA's driver API. It pushes and pops contexts, so it never changes the
// current device of a caller's thread.
#include <cuda.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "device/cuda/driver.h"
#include "device/cuda/ipc.h"
#include "device/device.h"

namespace inccl::cuda {

// A stream of the library in a device's primary context.
class CudaQueue final : public DeviceQueue {
 public:
  // `driver` and `kernels` outlive it.
  static Result<std::unique_ptr<CudaQueue>> Create(const Driver& driver, CUcontext context,
                                                   const Launchers* kernels);
  ~CudaQueue() override;

  Status Copy(void* to, const void* from, size_t bytes) override;
  Status Run(const Launch& launch) override;
  Result<uint64_t> Mark() override;
  Result<bool> Reached(uint64_t mark) override;

 private:
  CudaQueue(const Driver& driver, CUcontext context, const Launchers* kernels)
      : driver_(driver), context_(context), kernels_(kernels) {}

  const Driver& driver_;
  const CUcontext context_;
  const Launchers* const kernels_;
  CUstream stream_ = nullptr;
  // In pinned host memory, written by the device: the low 32 bits of the last mark that it reached.
  std::atomic<uint32_t>* passed_ = nullptr;
  uint64_t marks_ = 0;
  uint32_t looks_ = 0;
};

namespace {

// The word does not show errors, only the driver does. Asking it costs a microsecond, so Reached
// asks once in this many calls.
constexpr uint32_t kLooksPerQuestion = 256;

}  // namespace

Result<std::unique_ptr<CudaQueue>> CudaQueue::Create(const Driver& driver, CUcontext context,
                                                     const Launchers* kernels) {
  const Within within(driver, context);
  if (!within.status().ok()) return within.status();
  std::unique_ptr<CudaQueue> queue(new CudaQueue(driver, context, kernels));
  void* word = nullptr;
  Status status =
      driver.Check(driver.host_alloc(&word, sizeof *queue->passed_,
                                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   "cuMemHostAlloc");
  if (!status.ok()) return status;
  queue->passed_ = new (word) std::atomic<uint32_t>(0);
  // Out-of-range priorities are clamped: the lowest number is the highest priority.
  constexpr int kHighest = -5;
  status = driver.Check(driver.stream_create(&queue->stream_, CU_STREAM_NON_BLOCKING, kHighest),
                        "cuStreamCreateWithPriority");
  if (!status.ok()) return status;
  return queue;
}

CudaQueue::~CudaQueue() {
  const Within within(driver_, context_);
  if (!within.status().ok()) return;
  if (stream_ != nullptr) {
    driver_.stream_synchronize(stream_);
    driver_.stream_destroy(stream_);
  }
  if (passed_ != nullptr) driver_.host_free(passed_);
}

Status CudaQueue::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  return driver_.Check(driver_.copy(Address(to), Address(from), bytes, stream_), "cuMemcpyAsync");
}

Status CudaQueue::Run(const Launch& launch) {
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  const int error = launch(*kernels_, stream_);
  if (error == 0) return Status::Ok();
  return {Code::kUnhandledCudaError,
          fmt::format("a kernel could not be launched: CUDA error {}", error)};
}

Result<uint64_t> CudaQueue::Mark() {
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  Status status = driver_.Check(
      driver_.stream_write(stream_, Address(passed_), static_cast<uint32_t>(marks_ + 1),
                           CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue32");
  if (!status.ok()) return status;
  return ++marks_;
}

Result<bool> CudaQueue::Reached(uint64_t mark) {
  const uint32_t passed = passed_->load(std::memory_order_acquire);
  if (static_cast<int32_t>(passed - static_cast<uint32_t>(mark)) >= 0) return true;
  if (++looks_ % kLooksPerQuestion != 0) return false;
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  const CUresult result = driver_.stream_query(stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (Status status = driver_.Check(result, "cuStreamQuery"); !status.ok()) return status;
  return true;
}

}  // namespace inccl::cuda

// Defined in this library by src/compress/cuda. The device layer only passes the pointer on.
extern "C" const inccl::cuda::Launchers* inccl_cuda_launchers();

namespace inccl::cuda {
namespace {

// A graph would repeat a wait for one particular call of the host, so calls cannot be captured.
Status CheckCapture(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.stream_capturing(stream, &capture);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return InvalidArgument(
        "stream: NULL, the legacy stream, must not be used while another is being captured");
  }
  if (result != CUDA_SUCCESS) return driver.Check(result, "cuStreamIsCapturing");
  if (capture == CU_STREAM_CAPTURE_STATUS_NONE) return Status::Ok();
  return InvalidArgument("stream: is being captured into a graph, which this version cannot");
}

// The words lie in pinned host memory: the stream writes one and waits for the other, without a
// kernel or a host callback.
class Order final : public DeviceOrder {
 public:
  struct Words {
    alignas(64) std::atomic<uint32_t> reached{0};
    alignas(64) std::atomic<uint32_t> finished{0};
  };
  Order(const Driver& driver, CUcontext context, CUstream stream, Words* words)
      : driver_(driver), context_(context), stream_(stream), words_(words) {}

  Status Check() override {
    const Within within(driver_, context_);
    return within.status().ok() ? CheckCapture(driver_, stream_) : within.status();
  }
  Status Append(uint32_t place) override {
    const Within within(driver_, context_);
    if (!within.status().ok()) return within.status();
    Status status = CheckCapture(driver_, stream_);
    if (!status.ok()) return status;
    if (!broken_.ok()) return broken_;
    status = driver_.Check(driver_.stream_write(stream_, Address(&words_->reached), place + 1,
                                                CU_STREAM_WRITE_VALUE_DEFAULT),
                           "cuStreamWriteValue32");
    if (!status.ok()) return status;
    // If only the wait fails, the word shows this place as reached, also to a later call that gets
    // the same place; so the order takes no more calls.
    broken_ = driver_.Check(driver_.stream_wait(stream_, Address(&words_->finished), place + 1,
                                                CU_STREAM_WAIT_VALUE_GEQ),
                            "cuStreamWaitValue32");
    // Drivers that collect what is put on streams (WSL) begin when one is asked for.
    if (broken_.ok()) driver_.stream_query(stream_);
    return broken_;
  }
  bool Reached(uint32_t place) const override {
    const uint32_t reached = words_->reached.load(std::memory_order_acquire);
    return static_cast<int32_t>(reached - place - 1) >= 0;
  }
  void Finish(uint32_t place) override {
    words_->finished.store(place + 1, std::memory_order_release);
  }

 private:
  const Driver& driver_;
  const CUcontext context_;
  const CUstream stream_;
  Words* const words_;  // never freed, since the stream may reach its wait at any time
  Status broken_;       // result of every later Append
};

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> Create(bool start, bool* later) {
    Result<Driver> driver = Driver::Load();
    if (!driver.ok()) return driver.status();
    CUcontext context = nullptr;
    *later = !start && driver->context(&context) == CUDA_ERROR_NOT_INITIALIZED;
    if (*later) return SystemError("this process has not started CUDA");
    std::unique_ptr<CudaDevice> device(new CudaDevice(*driver));
    Status status = driver->Check(driver->init(0), "cuInit");
    if (status.ok()) {
      status = driver->Check(driver->device_count(&device->count_), "cuDeviceGetCount");
    }
    if (!status.ok()) return status;
    {
      const MutexLock lock(&device->mutex_);
      device->places_.resize(static_cast<size_t>(device->count_));
    }
    device->ranges_.SetDevices(device->count_);
    device->ipc_.SetDevices(device->count_);
    return device;
  }

  std::vector<std::string> Warnings() override {
    std::vector<std::string> found;
    CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
    if (driver_.loading_mode != nullptr && driver_.loading_mode(&mode) == CUDA_SUCCESS &&
        mode == CU_MODULE_LAZY_LOADING) {
      found.emplace_back(
          "kernels are loaded lazily: the first launch of one while a call waits on a stream can "
          "hang; CUDA_MODULE_LOADING=EAGER, set before CUDA starts, prevents that");
    }
    // NOLINTNEXTLINE(concurrency-mt-unsafe): read once, when a device is first looked for
    const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections != nullptr && std::strcmp(connections, "1") == 0) {
      found.emplace_back(
          "CUDA_DEVICE_MAX_CONNECTIONS=1 lets streams wait for each other: calls can hang; use 32");
    }
    return found;
  }
  void CountCalls(std::atomic<uint64_t>* calls) override { Counted::calls = calls; }
  int Count() override { return count_; }

  int Current() override {
    CUcontext context = nullptr;
    CUdevice device = 0;  // default of a thread that has chosen no device
    if (driver_.context(&context) == CUDA_SUCCESS && context != nullptr) {
      driver_.context_device(&device);
    }
    return device;
  }

  bool InUse() override {
    CUcontext context = nullptr;
    return driver_.context(&context) == CUDA_SUCCESS && context != nullptr;
  }

  // Counts managed memory as device memory, because streams use it in their order.
  int DeviceOf(const void* memory) override {
    const Counted counted;
    unsigned type = 0;
    if (driver_.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Address(memory)) !=
            CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE) {
      return -1;
    }
    int number = 0;
    if (driver_.pointer_attribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Address(memory)) !=
        CUDA_SUCCESS) {
      return -1;
    }
    return number;
  }

  Result<uint64_t> IdOf(void* stream) override {
    Result<CUcontext> context = ContextOf(static_cast<CUstream>(stream));
    if (!context.ok()) return context.status();
    const Within within(driver_, *context);
    if (!within.status().ok()) return within.status();
    unsigned long long id = 0;  // NOLINT(google-runtime-int): the driver's type
    const CUresult result = driver_.stream_id(static_cast<CUstream>(stream), &id);
    if (result != CUDA_SUCCESS) {
      return InvalidArgument(
          fmt::format("stream: {}: {}", stream, driver_.Check(result, "cuStreamGetId").message()));
    }
    return uint64_t{id};
  }

  Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) override {
    const auto handle = static_cast<CUstream>(stream);
    Result<CUcontext> own = ContextOf(handle);
    if (!own.ok()) return own.status();
    const Within within(driver_, *own);
    if (!within.status().ok()) return within.status();
    // Check before any call that would invalidate a capture.
    if (Status status = CheckCapture(driver_, handle); !status.ok()) return status;
    Result<Order::Words*> words = NewWords();
    if (!words.ok()) return words.status();
    return std::unique_ptr<DeviceOrder>(std::make_unique<Order>(driver_, *own, handle, *words));
  }

  Result<std::byte*> AllocateHost(size_t bytes) override {
    Result<CUcontext> context = AnyContext();
    if (!context.ok()) return context.status();
    const Within within(driver_, *context);
    if (!within.status().ok()) return within.status();
    void* memory = nullptr;
    Status status = driver_.Check(
        driver_.host_alloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
    if (!status.ok()) {
      return Status(status.code(), fmt::format("{} bytes: {}", bytes, status.message()));
    }
    return static_cast<std::byte*>(memory);
  }

  void FreeHost(std::byte* memory) override {
    Result<CUcontext> context = AnyContext();
    if (!context.ok()) return;
    const Within within(driver_, *context);
    if (within.status().ok()) driver_.host_free(memory);
  }

  Status Copy(void* to, const void* from, size_t bytes) override {
    const int to_device = DeviceOf(to);
    Result<Place> place = PlaceOf(to_device >= 0 ? to_device : DeviceOf(from));
    if (!place.ok()) return place.status();
    const Within within(driver_, place->context);
    if (!within.status().ok()) return within.status();
    Status status = driver_.Check(driver_.copy(Address(to), Address(from), bytes, place->stream),
                                  "cuMemcpyAsync");
    if (!status.ok()) return status;
    return driver_.Check(driver_.stream_synchronize(place->stream), "cuStreamSynchronize");
  }

  Result<std::unique_ptr<DeviceQueue>> NewQueue(int number) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return place.status();
    Result<std::unique_ptr<CudaQueue>> queue =
        CudaQueue::Create(driver_, place->context, inccl_cuda_launchers());
    if (!queue.ok()) return queue.status();
    return std::unique_ptr<DeviceQueue>(*std::move(queue));
  }

  const Launchers* Kernels() override { return inccl_cuda_launchers(); }

  Result<std::byte*> AllocateOn(int number, size_t bytes) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return place.status();
    const Within within(driver_, place->context);
    if (!within.status().ok()) return within.status();
    CUdeviceptr memory = 0;
    Status status = driver_.Check(driver_.alloc(&memory, bytes), "cuMemAlloc");
    if (!status.ok()) {
      return Status(status.code(),
                    fmt::format("{} bytes on device {}: {}", bytes, number, status.message()));
    }
    return reinterpret_cast<std::byte*>(memory);  // NOLINT(performance-no-int-to-ptr): CUDA's type
  }

  void FreeOn(int number, std::byte* memory) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return;
    const Within within(driver_, place->context);
    if (within.status().ok()) driver_.free(Address(memory));
  }

  Status WaitFor(int number) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return place.status();
    const Within within(driver_, place->context);
    if (!within.status().ok()) return within.status();
    return driver_.Check(driver_.context_synchronize(), "cuCtxSynchronize");
  }

  // CUDA packs smaller allocations into blocks of this size, and CUDA IPC maps whole blocks.
  size_t ShareGranularity() override { return size_t{2} << 20; }
  Result<DeviceShare> Share(const void* memory, size_t bytes) override {
    return ipc_.Share(DeviceOf(memory), memory, bytes);
  }
  Result<std::byte*> Open(int number, const DeviceShare::Handle& handle) override {
    return ipc_.Open(number, handle);
  }
  size_t BytesFrom(int number, const std::byte* memory) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return 0;
    const Within within(driver_, place->context);
    CUdeviceptr begin = 0;
    size_t size = 0;
    const bool found = within.status().ok() &&
                       driver_.address_range(&begin, &size, Address(memory)) == CUDA_SUCCESS;
    return found ? size - (Address(memory) - begin) : 0;
  }
  void Close(int number, std::byte* memory) override { ipc_.Close(number, memory); }
  Result<DmaBuf> DmaBufOf(const void* memory, size_t bytes) override {
    return ipc_.DmaBufOf(DeviceOf(memory), memory, bytes);
  }

  Status Register(void* memory, size_t bytes) override {
    Result<CUcontext> context = AnyContext();
    if (!context.ok()) return context.status();
    const Within within(driver_, *context);
    if (!within.status().ok()) return within.status();
    return ranges_.Register(memory, bytes);
  }

  void Unregister(void* memory) override {
    Result<CUcontext> context = AnyContext();
    if (!context.ok()) return;
    const Within within(driver_, *context);
    if (within.status().ok()) ranges_.Unregister(memory);
  }

  void* AddressOf(int number, const void* host) override {
    Result<Place> place = PlaceOf(number);
    if (!place.ok()) return nullptr;
    const Within within(driver_, place->context);
    return within.status().ok() ? ranges_.AddressOf(number, host) : nullptr;
  }

 private:
  // Where this library works on a device: the primary context and a stream of the library.
  struct Place {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
  };

  explicit CudaDevice(const Driver& driver)
      : driver_(driver), ranges_(&driver_), ipc_(&driver_, [this](int number) -> Result<CUcontext> {
          Result<Place> place = PlaceOf(number);
          if (!place.ok()) return place.status();
          return place->context;
        }) {}

  Result<Place> PlaceOf(int number) {
    if (number < 0 || number >= count_) {
      return InternalError(fmt::format("device {} is not in [0, {})", number, count_));
    }
    const auto known = [&] {
      const MutexLock lock(&mutex_);
      return places_[static_cast<size_t>(number)];
    }();
    if (known.stream != nullptr) return known;
    // Without the mutex: a new stream may wait for kernels, and other threads' calls with them.
    Place place;
    CUdevice device = 0;
    Status status = driver_.Check(driver_.device_get(&device, number), "cuDeviceGet");
    if (status.ok()) {
      status = driver_.Check(driver_.retain(&place.context, device), "cuDevicePrimaryCtxRetain");
    }
    if (!status.ok()) return status;
    const Within within(driver_, place.context);
    if (!within.status().ok()) return within.status();
    // Out-of-range priorities are clamped: the lowest number is the highest priority.
    constexpr int kHighest = -5;
    status = driver_.Check(driver_.stream_create(&place.stream, CU_STREAM_NON_BLOCKING, kHighest),
                           "cuStreamCreateWithPriority");
    if (!status.ok()) return status;
    Place used;
    {
      const MutexLock lock(&mutex_);
      Place& first = places_[static_cast<size_t>(number)];
      if (first.stream == nullptr) first = place;
      used = first;
    }
    if (used.stream != place.stream) driver_.stream_destroy(place.stream);  // another was earlier
    return used;
  }

  // Allocates many at a time: when a new stream appears, earlier streams may wait for the call that
  // will use it, and an allocation may wait for those streams. So of two threads that find none
  // only one allocates, unless its allocation does not return: else the first one's stream could
  // wait for the second one's call, and its allocation for that stream.
  Result<Order::Words*> NewWords() {
    constexpr size_t kAtOnce = 512;
    constexpr Time kPatience = kSecond;
    const MutexLock lock(&words_mutex_);
    const Time end = SystemClock().Now() + kPatience;
    while (words_left_ == 0 && allocating_words_ && SystemClock().Now() < end) {
      words_changed_.WaitFor(&words_mutex_, kPatience);
    }
    while (words_left_ == 0) {
      allocating_words_ = true;
      Result<std::byte*> memory = [&] {
        const MutexUnlock unlocked(&words_mutex_);
        return AllocateHost(kAtOnce * sizeof(Order::Words));
      }();
      allocating_words_ = false;
      words_changed_.NotifyAll();
      if (!memory.ok()) return memory.status();
      // Those of another thread that has allocated meanwhile stay unused.
      words_ = *memory;
      words_left_ = kAtOnce;
    }
    --words_left_;
    return new (words_ + words_left_ * sizeof(Order::Words)) Order::Words;
  }

  // A context for work on host memory: the caller's, else one that the library uses already,
  // because a new context would take memory of its device.
  Result<CUcontext> AnyContext() {
    CUcontext context = nullptr;
    if (driver_.context(&context) == CUDA_SUCCESS && context != nullptr) return context;
    {
      const MutexLock lock(&mutex_);
      for (const Place& place : places_) {
        if (place.stream != nullptr) return place.context;
      }
    }
    return ContextOfCaller();
  }

  // That of a stream: the caller may have none. The legacy stream is one of the caller's context.
  Result<CUcontext> ContextOf(CUstream stream) {
    if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
      return ContextOfCaller();
    }
    CUcontext context = nullptr;
    const CUresult result = driver_.stream_context(stream, &context);
    if (result == CUDA_SUCCESS) return context;
    return InvalidArgument(fmt::format("stream: {}: {}", static_cast<void*>(stream),
                                       driver_.Check(result, "cuStreamGetCtx").message()));
  }

  // The caller's context, or that of device 0 if the thread has none.
  Result<CUcontext> ContextOfCaller() {
    CUcontext context = nullptr;
    Status status = driver_.Check(driver_.context(&context), "cuCtxGetCurrent");
    if (!status.ok()) return status;
    if (context != nullptr) return context;
    Result<Place> place = PlaceOf(0);
    if (!place.ok()) return place.status();
    return place->context;
  }

  const Driver driver_;
  int count_ = 0;
  Mutex mutex_;
  std::vector<Place> places_ INCCL_GUARDED_BY(mutex_);
  Mutex words_mutex_ INCCL_ACQUIRED_BEFORE(mutex_);
  std::byte* words_ INCCL_GUARDED_BY(words_mutex_) = nullptr;
  size_t words_left_ INCCL_GUARDED_BY(words_mutex_) = 0;
  bool allocating_words_ INCCL_GUARDED_BY(words_mutex_) = false;
  CondVar words_changed_;
  HostRanges ranges_;
  Ipc ipc_;
};

}  // namespace
}  // namespace inccl::cuda

extern "C" __attribute__((visibility("default"))) inccl::Device* inccl_device(
    uint32_t version, bool start, bool* later, char* why, size_t why_bytes) {
  *later = false;
  if (version != inccl::Device::kVersion) {
    std::snprintf(why, why_bytes, "is of another version (%u, not %u)", inccl::Device::kVersion,
                  version);
    return nullptr;
  }
  static inccl::Mutex mutex;
  static inccl::Device* device INCCL_GUARDED_BY(mutex) = nullptr;  // as long as the process
  const inccl::MutexLock lock(&mutex);
  if (device != nullptr) return device;
  inccl::Result<std::unique_ptr<inccl::cuda::CudaDevice>> made =
      inccl::cuda::CudaDevice::Create(start, later);
  if (!made.ok()) {
    std::snprintf(why, why_bytes, "%s", made.status().message().c_str());
    return nullptr;
  }
  device = made->release();
  return device;
}
