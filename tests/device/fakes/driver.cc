// SPDX-License-Identifier: Apache-2.0
//
// In the place of CUDA's driver (libcuda.so.1), for libinccl_cuda.so and the benchmarks: devices
// without hardware. The processor cannot touch their memory where calls see it, streams work in
// threads of their own, contexts are as strict as CUDA's: what needs one fails without, a stream is
// of its context. There are no kernels. FAKE_CUDA_DEVICES: how many (2).
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

struct CUctx_st {
  int device = 0;
  CUstream legacy = nullptr;
};

// A stream: what was put on it, done in order.
struct CUstream_st {
  CUstream_st(CUcontext of, uint64_t number) : context(of), id(number) {
    std::thread([this] { Loop(); }).detach();
  }
  void Append(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  bool Idle() {
    const std::lock_guard lock(mutex);
    return queue.empty();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty(); });
  }
  void Loop() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      const std::function<void()> work = queue.front();  // counts as there until it is done
      lock.unlock();
      work();
      lock.lock();
      queue.pop_front();
      changed.notify_all();
    }
  }

  const CUcontext context;
  const uint64_t id;
  bool capturing = false, invalidated = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
};

namespace {

constexpr size_t kDeviceBytes = size_t{1} << 32;
constexpr int kMostDevices = 8;

thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUcontext Current() { return contexts.empty() ? nullptr : contexts.back(); }

// One device's memory: where calls see it, and where this file reaches it.
struct Arena {
  std::byte *seen = nullptr, *reached = nullptr;
  size_t used = 0;
};

struct Machine {
  Machine() {
    const char* given = std::getenv("FAKE_CUDA_DEVICES");
    count = std::min(given == nullptr ? 2 : std::atoi(given), kMostDevices);
    for (int i = 0; i < count; ++i) {
      const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
      if (ftruncate(file, kDeviceBytes) != 0) std::abort();
      const auto map = [&](int protection) {
        void* memory = mmap(nullptr, kDeviceBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (memory == MAP_FAILED) std::abort();
        return static_cast<std::byte*>(memory);
      };
      arenas[i].seen = map(PROT_NONE);
      arenas[i].reached = map(PROT_READ | PROT_WRITE);
      close(file);
      primary[i].device = i;
    }
  }

  int DeviceOf(uintptr_t address) const {
    for (int i = 0; i < count; ++i) {
      if (address - reinterpret_cast<uintptr_t>(arenas[i].seen) < kDeviceBytes) return i;
    }
    return -1;
  }
  std::byte* Reach(uintptr_t address) const {
    const int device = DeviceOf(address);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the driver's
    if (device < 0) return reinterpret_cast<std::byte*>(address);
    const Arena& arena = arenas[device];
    return arena.reached + (address - reinterpret_cast<uintptr_t>(arena.seen));
  }
  // Holds mutex.
  bool Pinned(uintptr_t address, size_t bytes) const {
    auto after = pinned.upper_bound(address);
    if (after == pinned.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second;
  }

  int count = 0;
  Arena arenas[kMostDevices];
  CUctx_st primary[kMostDevices];
  std::mutex mutex;
  std::map<CUdeviceptr, int> pieces;   // of cuMemAlloc
  std::map<uintptr_t, size_t> pinned;  // of cuMemHostAlloc and cuMemHostRegister
  std::set<uintptr_t> registered;      // of the latter
  std::set<CUstream> streams;
  uint64_t next_id = 1;
  std::set<CUstream> captures;  // in the mode global
};

Machine& Fake() {
  static auto* const machine = new Machine;
  return *machine;
}

// The stream of a handle, in the thread's context.
CUresult Find(CUstream handle, CUstream* found) {
  CUcontext const context = Current();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  if (handle == nullptr) {
    if (context->legacy == nullptr) context->legacy = new CUstream_st(context, m.next_id++);
    *found = context->legacy;
    return CUDA_SUCCESS;
  }
  if (m.streams.count(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  *found = handle;
  return CUDA_SUCCESS;
}

// What a capture that somebody makes in the mode global does not allow.
CUresult Unsafe() {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  if (m.captures.empty() || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (CUstream stream : m.captures) stream->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// Something that a captured stream does not take, in this file.
CUresult ForWork(CUstream handle, CUstream* found) {
  const CUresult result = Find(handle, found);
  if (result != CUDA_SUCCESS) return result;
  if ((*found)->capturing) {
    (*found)->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return (*found)->context == Current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult WordOf(CUdeviceptr address, uint32_t** word) {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  if (address % 4 != 0 || (m.DeviceOf(address) < 0 && !m.Pinned(address, 4))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *word = reinterpret_cast<uint32_t*>(m.Reach(address));
  return CUDA_SUCCESS;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

FAKE cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Fake().count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

FAKE cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the fake driver";
  return CUDA_SUCCESS;
}

FAKE cuDeviceGetCount(int* count) {
  *count = Fake().count;
  return CUDA_SUCCESS;
}

FAKE cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return number >= 0 && number < Fake().count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE cuDeviceGetName(char* name, int bytes, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(bytes), "Fake %d", device);
  return CUDA_SUCCESS;
}

FAKE cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = &Fake().primary[device];
  return CUDA_SUCCESS;
}

FAKE cuCtxSetCurrent(CUcontext context) {
  if (!contexts.empty()) contexts.pop_back();
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

FAKE cuCtxGetCurrent(CUcontext* context) {
  *context = Current();
  return CUDA_SUCCESS;
}

FAKE cuCtxGetDevice(CUdevice* device) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = Current()->device;
  return CUDA_SUCCESS;
}

FAKE cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

FAKE cuCtxPopCurrent(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

FAKE cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const int device = m.DeviceOf(address);
  if (device < 0 && !m.Pinned(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<unsigned*>(value) = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  } else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    *static_cast<int*>(value) = std::max(device, 0);
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- memory

FAKE cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  Arena& arena = m.arenas[Current()->device];
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kDeviceBytes - arena.used) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = reinterpret_cast<CUdeviceptr>(arena.seen + arena.used);
  arena.used += (bytes + 511) / 512 * 512;
  m.pieces[*memory] = Current()->device;
  return CUDA_SUCCESS;
}

FAKE cuMemFree(CUdeviceptr memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(Fake().mutex);
  return Fake().pieces.erase(memory) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(Fake().mutex);
  Fake().pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return CUDA_SUCCESS;
}

FAKE cuMemFreeHost(void* memory) {
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(Fake().mutex);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if (Fake().registered.count(address) > 0 || Fake().pinned.erase(address) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::free(memory);
  return CUDA_SUCCESS;
}

FAKE cuMemHostRegister(void* memory, size_t bytes, unsigned /*flags*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address % 4096 != 0 || bytes % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(Fake().mutex);
  if (Fake().Pinned(address, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Fake().pinned[address] = bytes;
  Fake().registered.insert(address);
  return CUDA_SUCCESS;
}

FAKE cuMemHostUnregister(void* memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(Fake().mutex);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (Fake().registered.erase(address) == 0) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  Fake().pinned.erase(address);
  return CUDA_SUCCESS;
}

FAKE cuMemHostGetDevicePointer(CUdeviceptr* device, void* memory, unsigned /*flags*/) {
  const std::lock_guard lock(Fake().mutex);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (!Fake().Pinned(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  *device = address;
  return CUDA_SUCCESS;
}

// As CUDA does: what is not pinned is copied before the call returns.
FAKE cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  Machine& m = Fake();
  bool wait = false;
  {
    const std::lock_guard lock(m.mutex);
    for (const CUdeviceptr end : {to, from}) {
      wait |= m.DeviceOf(end) < 0 && !m.Pinned(end, bytes);
    }
  }
  stream->Append([to = m.Reach(to), from = m.Reach(from), bytes] { std::memcpy(to, from, bytes); });
  if (wait) stream->Wait();
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- streams

FAKE cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int /*priority*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  *stream = new CUstream_st(Current(), m.next_id++);
  m.streams.insert(*stream);
  return CUDA_SUCCESS;
}

FAKE cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

// It is never used again, and does what it has.
FAKE cuStreamDestroy(CUstream stream) {
  const std::lock_guard lock(Fake().mutex);
  return Fake().streams.erase(stream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE cuStreamQuery(CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult result = Find(handle, &stream); result != CUDA_SUCCESS) return result;
  return stream->Idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE cuStreamSynchronize(CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  stream->Wait();
  return CUDA_SUCCESS;
}

// NOLINTNEXTLINE(google-runtime-int): the driver's type
FAKE cuStreamGetId(CUstream handle, unsigned long long* id) {
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result == CUDA_SUCCESS) *id = stream->id;
  return result;
}

FAKE cuStreamGetCtx(CUstream handle, CUcontext* context) {
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result == CUDA_SUCCESS) *context = stream->context;
  return result;
}

FAKE cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value,
                          unsigned /*flags*/) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  uint32_t* word = nullptr;
  if (const CUresult result = WordOf(address, &word); result != CUDA_SUCCESS) return result;
  stream->Append([word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

FAKE cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  uint32_t* word = nullptr;
  if (const CUresult result = WordOf(address, &word); result != CUDA_SUCCESS) return result;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  stream->Append([word, value] {
    const std::atomic_ref seen(*word);
    while (static_cast<int32_t>(seen.load(std::memory_order_acquire) - value) < 0) usleep(20);
  });
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- captures

FAKE cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

FAKE cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(Fake().mutex);
  if (Fake().streams.count(stream) == 0 || stream->capturing) return CUDA_ERROR_INVALID_VALUE;
  stream->capturing = true;
  stream->invalidated = false;
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) Fake().captures.insert(stream);
  return CUDA_SUCCESS;
}

FAKE cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const std::lock_guard lock(Fake().mutex);
  *graph = nullptr;
  if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capturing = false;
  Fake().captures.erase(stream);
  return stream->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

FAKE cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  {
    const std::lock_guard lock(Fake().mutex);
    // Work on the legacy stream would be part of every capture.
    if (handle == nullptr && !Fake().captures.empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
