// SPDX-License-Identifier: Apache-2.0
//
// Which calls of CUDA's driver do not return while a stream waits for a value
// (cuStreamWaitValue32), and which of them hold up another thread's copy, for docs/cuda.md, "What
// can hang". The driver's interface alone, so that no lazy loading of a runtime is in the way. Exit
// status 4: no GPU.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "perf/support/output.h"

namespace {

using inccl::perf::PrintOut;

#define PROBE_TEXT(x) #x
#define PROBE_SYMBOL(name) PROBE_TEXT(name)
// A function of the driver, by the name that cuda.h has for it; nullptr: it has none.
#define DRIVER(name) (reinterpret_cast<decltype(&(name))>(dlsym(library, PROBE_SYMBOL(name))))

void* library = nullptr;
CUcontext context = nullptr;

constexpr const char* kNop =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nop() { ret; }\n";
constexpr size_t kCopied = size_t{1} << 20;
constexpr size_t kSlots = size_t{4} << 20;
constexpr auto kPatience = std::chrono::milliseconds(1500);
constexpr auto kLater = std::chrono::milliseconds(200);
constexpr unsigned kPinned = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
constexpr int kHighest = -5;

using Clock = std::chrono::steady_clock;

void Must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  PrintOut("{}: error {}\n", what, static_cast<int>(result));
  std::exit(3);
}

CUdeviceptr Address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

CUstream NewStream(int priority) {
  CUstream stream = nullptr;
  Must(DRIVER(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, priority), "a stream");
  return stream;
}

// A stream that waits until it is released.
class Blocked {
 public:
  Blocked() : stream_(NewStream(0)) {
    void* memory = nullptr;
    Must(DRIVER(cuMemHostAlloc)(&memory, sizeof(Words), kPinned), "pinned memory");
    words_ = new (memory) Words;
  }
  void Block() {
    ++turn_;
    Must(DRIVER(cuStreamWriteValue32)(stream_, Address(&words_->at), turn_, 0), "a write");
    Must(
        DRIVER(cuStreamWaitValue32)(stream_, Address(&words_->go), turn_, CU_STREAM_WAIT_VALUE_GEQ),
        "a wait");
    const auto end = Clock::now() + kPatience;
    while (words_->at != turn_) {
      if (Clock::now() > end) {
        PrintOut("the stream does not come to its wait\n");
        std::exit(3);
      }
    }
  }
  void Release() {
    words_->go = turn_;
    Must(DRIVER(cuStreamSynchronize)(stream_), "the waiting stream");
  }
  CUstream stream() const { return stream_; }

 private:
  struct Words {
    alignas(64) std::atomic<uint32_t> at{0};
    alignas(64) std::atomic<uint32_t> go{0};
  };
  const CUstream stream_;
  Words* words_ = nullptr;
  uint32_t turn_ = 0;
};

// One call in a thread of its own.
class Attempt {
 public:
  Attempt(std::function<CUresult()> call, Clock::duration later)
      : thread_([this, call = std::move(call), later] {
          std::this_thread::sleep_for(later);
          DRIVER(cuCtxSetCurrent)(context);
          const auto begin = Clock::now();
          result_ = call();
          us_ = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
          returned_ = true;
        }) {}
  bool returned() const { return returned_; }
  double us() const { return us_; }
  CUresult Join() {
    thread_.join();
    return result_;
  }

 private:
  std::atomic<bool> returned_{false};
  std::atomic<double> us_{0};
  std::atomic<CUresult> result_{CUDA_SUCCESS};
  std::thread thread_;  // after what it uses
};

// `call` while the stream waits, and a moment later a copy of another thread.
void Try(Blocked* blocked, const char* name, const std::function<CUresult()>& call,
         const std::function<CUresult()>& copy) {
  blocked->Block();
  const auto end = Clock::now() + kPatience;
  Attempt first(call, Clock::duration::zero());
  Attempt second(copy, kLater);
  while (!(first.returned() && second.returned()) && Clock::now() < end) usleep(1000);
  const bool stuck = !first.returned(), held = !second.returned();
  blocked->Release();
  const CUresult result = first.Join();
  second.Join();
  PrintOut("{:<46} {:<13} {:>10}  copy of another thread: {}{}\n", name,
           stuck ? "DOES NOT" : "returns", stuck ? "" : fmt::format("{:.0f} us", first.us()),
           held ? "HELD UP" : "runs",
           result == CUDA_SUCCESS ? "" : fmt::format("  (error {})", static_cast<int>(result)));
  (void)inccl::perf::FlushOutput();
}

void DescribeDevice(CUdevice device) {
  int version = 0;
  if (DRIVER(cuDriverGetVersion) != nullptr) DRIVER(cuDriverGetVersion)(&version);
  PrintOut("driver {}", version);
  constexpr struct {
    const char* name;
    CUdevice_attribute attribute;
  } kAsked[] = {
      {"host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"read_only_register", CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED},
      {"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED},
      {"async_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
  };
  for (const auto& one : kAsked) {
    int value = 0;
    if (DRIVER(cuDeviceGetAttribute) != nullptr) {
      DRIVER(cuDeviceGetAttribute)(&value, one.attribute, device);
      PrintOut(" {}={}", one.name, value);
    }
  }
  PrintOut("\n");
}

CUfunction Load() {
  CUmodule module = nullptr;
  CUfunction nop = nullptr;
  if (DRIVER(cuModuleLoadData)(&module, kNop) != CUDA_SUCCESS) return nullptr;
  return DRIVER(cuModuleGetFunction)(&nop, module, "nop") == CUDA_SUCCESS ? nop : nullptr;
}

CUresult Launch(CUfunction nop, CUstream stream, int times) {
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < times && result == CUDA_SUCCESS; ++i) {
    result = DRIVER(cuLaunchKernel)(nop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }
  return result;
}

void TryAll(Blocked* blocked, CUdeviceptr memory, void* pinned) {
  CUstream mine = NewStream(kHighest), others = NewStream(kHighest);
  const auto copy_on = [=](CUstream stream) {
    const CUresult result = DRIVER(cuMemcpyAsync)(memory, Address(pinned), kCopied, stream);
    return result == CUDA_SUCCESS ? DRIVER(cuStreamSynchronize)(stream) : result;
  };
  const auto copy = [&] { return copy_on(others); };
  const auto attempt = [&](const char* name, const std::function<CUresult()>& call) {
    Try(blocked, name, call, copy);
  };
  std::vector<char> pageable(kCopied);
  CUstream made = nullptr;
  void* host = nullptr;
  CUdeviceptr extra = 0;
  const int file = memfd_create("slots", MFD_CLOEXEC);
  if (ftruncate(file, kSlots) != 0) std::exit(3);
  void* const slots = mmap(nullptr, kSlots, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* const peers = mmap(nullptr, kSlots, PROT_READ, MAP_SHARED, file, 0);

  attempt("copy of pinned memory", [&] { return copy_on(mine); });
  attempt("copy of pageable memory",
          [&] { return DRIVER(cuMemcpyAsync)(memory, Address(pageable.data()), kCopied, mine); });
  attempt("cuStreamCreateWithPriority", [&] {
    return DRIVER(cuStreamCreateWithPriority)(&made, CU_STREAM_NON_BLOCKING, kHighest);
  });
  attempt("cuStreamDestroy", [&] { return DRIVER(cuStreamDestroy)(made); });
  attempt("cuMemHostAlloc", [&] { return DRIVER(cuMemHostAlloc)(&host, 2 * kSlots, kPinned); });
  attempt("cuMemFreeHost", [&] { return DRIVER(cuMemFreeHost)(host); });
  attempt("cuMemAlloc", [&] { return DRIVER(cuMemAlloc)(&extra, 16 * kSlots); });
  attempt("cuMemFree", [&] { return DRIVER(cuMemFree)(extra); });
  attempt("cuMemHostRegister", [&] { return DRIVER(cuMemHostRegister)(slots, kSlots, kPinned); });
  attempt("cuMemHostUnregister", [&] { return DRIVER(cuMemHostUnregister)(slots); });
  attempt("cuMemHostRegister, mapped for reading",
          [&] { return DRIVER(cuMemHostRegister)(peers, kSlots, kPinned); });
  attempt("cuMemHostRegister, read-only flag", [&] {
    return DRIVER(cuMemHostRegister)(peers, kSlots, kPinned | CU_MEMHOSTREGISTER_READ_ONLY);
  });
  if (DRIVER(cuModuleLoadData) == nullptr || DRIVER(cuLaunchKernel) == nullptr) {
    PrintOut("this driver has no kernels\n");
  } else {
    attempt("cuModuleLoadData and its kernel's first launch", [&] {
      CUfunction const nop = Load();
      return nop == nullptr ? CUDA_ERROR_NOT_FOUND : Launch(nop, mine, 1);
    });
    CUfunction const nop = Load();
    if (nop != nullptr) {
      Must(Launch(nop, mine, 1), "a launch");
      Must(DRIVER(cuStreamSynchronize)(mine), "a kernel");
      attempt("1000 launches behind the waiting stream",
              [&] { return Launch(nop, blocked->stream(), 1000); });
      attempt("5000 launches behind it", [&] { return Launch(nop, blocked->stream(), 5000); });
    }
  }
  attempt("cuCtxSynchronize", [] { return DRIVER(cuCtxSynchronize)(); });
}

// Streams that share one of the device's queues with the one that waits.
void CountHeld(Blocked* blocked, int priority, CUdeviceptr memory, const void* pinned) {
  std::array<CUstream, 40> streams{};
  for (CUstream& stream : streams) stream = NewStream(priority);
  blocked->Block();
  for (CUstream stream : streams) {
    Must(DRIVER(cuMemcpyAsync)(memory, Address(pinned), 64, stream), "a copy");
  }
  usleep(500'000);
  int held = 0;
  for (CUstream stream : streams) {
    held += DRIVER(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY ? 1 : 0;
  }
  blocked->Release();
  PrintOut("{} of {} other streams of priority {} share a queue with the one that waits\n", held,
           streams.size(), priority);
  for (CUstream stream : streams) {
    Must(DRIVER(cuStreamSynchronize)(stream), "a stream");
    DRIVER(cuStreamDestroy)(stream);
  }
}

int Probe() {
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr || DRIVER(cuInit)(0) != CUDA_SUCCESS) {
    PrintOut("no CUDA device\n");
    return 4;
  }
  CUdevice device = 0;
  Must(DRIVER(cuDeviceGet)(&device, 0), "the device");
  Must(DRIVER(cuDevicePrimaryCtxRetain)(&context, device), "its context");
  DRIVER(cuCtxSetCurrent)(context);
  DescribeDevice(device);
  Blocked blocked;
  void* pinned = nullptr;
  CUdeviceptr memory = 0;
  Must(DRIVER(cuMemHostAlloc)(&pinned, kCopied, kPinned), "pinned memory");
  Must(DRIVER(cuMemAlloc)(&memory, kSlots), "memory");

  constexpr int kTurns = 200;
  const auto begin = Clock::now();
  for (int i = 0; i < kTurns; ++i) {
    blocked.Block();
    blocked.Release();
  }
  const std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
  PrintOut("a turn of a stream that waits for the host: {:.1f} us\n", taken.count() / kTurns);
  TryAll(&blocked, memory, pinned);
  for (const int priority : {0, kHighest}) CountHeld(&blocked, priority, memory, pinned);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] {
    if (argc == 1) return Probe();
    const bool help = std::string_view(argv[1]) == "--help";
    PrintOut(
        "usage: cuda_probe\nWhich calls of CUDA's driver do not return while a stream waits.\n");
    return help ? 0 : 1;
  });
}
