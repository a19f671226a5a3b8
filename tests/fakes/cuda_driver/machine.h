// SPDX-License-Identifier: Apache-2.0
//
// The devices, contexts and streams of the fake driver (driver.cc, streams.cc).
#ifndef INCCL_TESTS_FAKES_CUDA_DRIVER_MACHINE_H_
#define INCCL_TESTS_FAKES_CUDA_DRIVER_MACHINE_H_

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

struct CUctx_st {
  int device = 0;
  CUstream legacy = nullptr;
  std::set<CUcontext> peers;        // of cuCtxEnablePeerAccess
  std::atomic<bool> loaded{false};  // its kernel has been launched
  std::mutex loading;  // held by what loads code or frees, taken by other calls for a moment
};

// A stream: what was put on it, done in order.
struct CUstream_st {
  CUstream_st(CUcontext of, uint64_t number) : context(of), id(number) {
    std::thread([this] { Loop(); }).detach();
  }
  void Append(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    if (!collects) begun = queue.size();
    changed.notify_all();
  }
  void Begin() {
    const std::lock_guard lock(mutex);
    begun = queue.size();
    changed.notify_all();
  }
  bool Idle() {
    const std::lock_guard lock(mutex);
    return queue.empty();
  }
  size_t Length() {
    const std::lock_guard lock(mutex);
    return queue.size();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    begun = queue.size();
    changed.notify_all();
    changed.wait(lock, [&] { return queue.empty(); });
  }
  void Loop() {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return begun > 0; });
      const std::function<void()> work = queue.front();  // counts as there until it is done
      lock.unlock();
      work();
      lock.lock();
      queue.pop_front();
      --begun;
      changed.notify_all();
    }
  }

  const CUcontext context;
  const uint64_t id;
  bool capturing = false, invalidated = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  size_t begun = 0;  // of the queue's front; the others wait for Begin
  static inline std::atomic<bool> collects{false};
};

namespace inccl::test {

inline constexpr size_t kDeviceBytes = size_t{1} << 32;
inline constexpr int kMostDevices = 8;

inline thread_local std::vector<CUcontext> contexts;
inline thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

inline CUcontext Current() { return contexts.empty() ? nullptr : contexts.back(); }

inline constexpr size_t kUnit = 512;  // of allocations

// What processes know of each other's allocations, by their beginning: in the file of the device's
// memory, behind it.
struct Notice {
  std::atomic<uint32_t> id;      // 0: there is none
  std::atomic<uint32_t> opened;  // by others
};
inline constexpr size_t kNoticeBytes = kDeviceBytes / kUnit * sizeof(Notice);

// One device's memory: where calls see it, and where this file reaches it.
struct Arena {
  Notice* NoticeOf(CUdeviceptr memory) const {
    return notices + (memory - reinterpret_cast<uintptr_t>(seen)) / kUnit;
  }
  int file = -1;
  std::byte *seen = nullptr, *reached = nullptr;
  Notice* notices = nullptr;
  size_t used = 0;
  std::multimap<size_t, CUdeviceptr> freed;  // by size, to be given out again
};

// Of cuMemAlloc.
struct Piece {
  int device = 0;
  size_t bytes = 0;
  uint32_t id = 0;
  bool shareable = true;
};

// Memory of another process (ipc.cc).
struct Foreign {
  std::byte *seen = nullptr, *reached = nullptr;  // whole pages
  size_t mapped = 0;
  CUcontext context = nullptr;  // in which it was opened
  int device = 0;
  Notice* notice = nullptr;  // alone in its mapping, which begins here:
  void* notice_page = nullptr;
  uint64_t exporter = 0;  // the process, and its number of the piece
  uint32_t id = 0;
};

struct Machine {
  Machine() {
    const char* given = std::getenv("FAKE_CUDA_DEVICES");
    count = std::min(given == nullptr ? 2 : std::atoi(given), kMostDevices);
    for (int i = 0; i < count; ++i) {
      const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
      if (ftruncate(file, kDeviceBytes + kNoticeBytes) != 0) std::abort();
      const auto map = [&](int protection, size_t bytes, size_t from) {
        void* memory = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file,
                            static_cast<off_t>(from));
        if (memory == MAP_FAILED) std::abort();
        return static_cast<std::byte*>(memory);
      };
      arenas[i].seen = map(PROT_NONE, kDeviceBytes, 0);
      arenas[i].reached = map(PROT_READ | PROT_WRITE, kDeviceBytes, 0);
      arenas[i].notices =
          reinterpret_cast<Notice*>(map(PROT_READ | PROT_WRITE, kNoticeBytes, kDeviceBytes));
      arenas[i].file = file;
      primary[i].device = i;
    }
  }

  // The following hold mutex.
  const Foreign* ForeignAt(uintptr_t address) const {
    for (const auto& entry : foreign) {
      const Foreign& one = entry.second;
      if (address - reinterpret_cast<uintptr_t>(one.seen) < one.mapped) return &one;
    }
    return nullptr;
  }
  int DeviceOf(uintptr_t address) const {
    for (int i = 0; i < count; ++i) {
      if (address - reinterpret_cast<uintptr_t>(arenas[i].seen) < kDeviceBytes) return i;
    }
    const Foreign* const other = ForeignAt(address);
    return other == nullptr ? -1 : other->device;
  }
  std::byte* Reach(uintptr_t address) const {
    for (int i = 0; i < count; ++i) {
      const uintptr_t offset = address - reinterpret_cast<uintptr_t>(arenas[i].seen);
      if (offset < kDeviceBytes) return arenas[i].reached + offset;
    }
    if (const Foreign* const other = ForeignAt(address); other != nullptr) {
      return other->reached + (address - reinterpret_cast<uintptr_t>(other->seen));
    }
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): the host's
  }
  // The piece of this process that has it; end: none.
  std::map<CUdeviceptr, Piece>::iterator PieceAt(uintptr_t address) {
    auto found = pieces.upper_bound(address);
    if (found == pieces.begin()) return pieces.end();
    --found;
    return address - found->first < found->second.bytes ? found : pieces.end();
  }
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
  std::map<CUdeviceptr, Piece> pieces;
  uint32_t next_piece = 1;
  std::map<CUdeviceptr, Foreign> foreign;  // by what cuIpcOpenMemHandle has given
  std::map<uintptr_t, size_t> pinned;      // of cuMemHostAlloc and cuMemHostRegister
  std::set<uintptr_t> registered;          // of the latter
  std::set<CUstream> streams;
  uint64_t next_id = 1;
  std::set<CUstream> captures;  // in the mode global

  // What tests ask for (streams.cc).
  const bool strict = std::getenv("FAKE_CUDA_ALLOCATIONS_WAIT") != nullptr;
  std::atomic<bool> allocations_wait{strict};
  std::atomic<int> waited_in_vain{0};
  std::atomic<int> failing_waits{0};
  std::atomic<bool> started{false}, launch_waits{false};
  std::atomic<int> retained[kMostDevices] = {};
  std::atomic<const char*> to_hold{nullptr};  // the next call of this name waits
  std::atomic<bool> holding{false};           // one waits
  std::atomic<bool> shareable{true}, peers_reach{true}, opened_may_be_freed{false};
  std::atomic<int> opened_were_freed{0};
};

inline Machine& Fake() {
  static auto* const machine = new Machine;
  return *machine;
}

// The stream of a handle, in the thread's context.
inline CUresult Find(CUstream handle, CUstream* found) {
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

// What a capture of any thread in the mode global does not allow.
inline CUresult Unsafe() {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  if (m.captures.empty() || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (CUstream stream : m.captures) stream->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

inline bool IsIdle(CUcontext context) {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  return (context->legacy == nullptr || context->legacy->Idle()) &&
         std::all_of(m.streams.begin(), m.streams.end(), [context](CUstream stream) {
           return stream->context != context || stream->Idle();
         });
}

inline bool IsCapturing(CUcontext context) {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  return std::any_of(m.streams.begin(), m.streams.end(), [context](CUstream stream) {
    return stream->context == context && stream->capturing;
  });
}

// Allocating, registering and freeing may wait for all that the context's streams have, as the
// worst of drivers does; not for ever here, but that is counted, or ends the program.
inline void WaitForContext() {
  Machine& m = Fake();
  if (!m.allocations_wait) return;
  constexpr auto kLongest = std::chrono::seconds(2);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!IsIdle(Current())) {
    if (std::chrono::steady_clock::now() > end) {
      ++m.waited_in_vain;
      if (m.strict) std::abort();
      return;
    }
    usleep(100);
  }
}

// Of a test's fake_cuda_hold.
inline void HoldIfAsked(const char* call) {
  Machine& m = Fake();
  const char* asked = m.to_hold;
  if (asked == nullptr || std::strcmp(asked, call) != 0) return;
  if (!m.to_hold.compare_exchange_strong(asked, nullptr)) return;
  m.holding = true;
  while (m.holding) usleep(100);
}

// Something that a captured stream does not take, in this file.
inline CUresult ForWork(CUstream handle, CUstream* found) {
  const CUresult result = Find(handle, found);
  if (result != CUDA_SUCCESS) return result;
  { const std::lock_guard wait((*found)->context->loading); }
  if ((*found)->capturing) {
    (*found)->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return (*found)->context == Current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

inline CUresult WordOf(CUdeviceptr address, uint32_t** word) {
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  if (address % 4 != 0 || (m.DeviceOf(address) < 0 && !m.Pinned(address, 4))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *word = reinterpret_cast<uint32_t*>(m.Reach(address));
  return CUDA_SUCCESS;
}

}  // namespace inccl::test

// A function of the driver, by the name that cuda.h has for it.
#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

#endif  // INCCL_TESTS_FAKES_CUDA_DRIVER_MACHINE_H_
