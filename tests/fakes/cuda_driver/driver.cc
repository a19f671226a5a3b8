// SPDX-License-Identifier: Apache-2.0
//
// In the place of CUDA's driver (libcuda.so.1), for libinccl_cuda.so and the benchmarks: devices
// without hardware. The processor cannot touch their memory where calls see it, streams work in
// threads of their own, contexts are as strict as CUDA's: what needs one fails without, a stream is
// of its context. Kernels do nothing. FAKE_CUDA_DEVICES: how many (2).
// FAKE_CUDA_ALLOCATIONS_WAIT: allocations wait for streams, and one that does in vain is the end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "fakes/cuda_driver/machine.h"

// NOLINTNEXTLINE(google-build-using-namespace): of this file's other half
using namespace inccl::test;

namespace {

bool IsWritable(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const uintptr_t begin = std::stoull(line, nullptr, 16);
    const size_t dash = line.find('-'), blank = line.find(' ');
    const uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (address >= begin && address < end) return line[blank + 2] == 'w';
  }
  return false;
}

}  // namespace

FAKE cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Fake().started = true;
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
  ++Fake().retained[device];
  return CUDA_SUCCESS;
}

FAKE cuCtxSetCurrent(CUcontext context) {
  if (!contexts.empty()) contexts.pop_back();
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

FAKE cuCtxGetCurrent(CUcontext* context) {
  if (!Fake().started) return CUDA_ERROR_NOT_INITIALIZED;
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
  } else if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) {
    const auto piece = m.PieceAt(address);
    if (piece == m.pieces.end()) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<unsigned long long*>(value) = piece->second.id;  // NOLINT(google-runtime-int)
  } else if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
    const auto piece = m.PieceAt(address);
    *static_cast<int*>(value) = piece != m.pieces.end() && piece->second.shareable ? 1 : 0;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

FAKE cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  const char* const given = std::getenv("CUDA_MODULE_LOADING");
  const bool eager = given != nullptr && std::strcmp(given, "EAGER") == 0;
  *mode = eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- memory

FAKE cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  WaitForContext();
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  Arena& arena = m.arenas[Current()->device];
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t size = (bytes + kUnit - 1) / kUnit * kUnit;
  if (const auto freed = arena.freed.find(size); freed != arena.freed.end()) {
    *memory = freed->second;
    arena.freed.erase(freed);
  } else {
    if (size > kDeviceBytes - arena.used) return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = reinterpret_cast<CUdeviceptr>(arena.seen + arena.used);
    arena.used += size;
  }
  const Piece piece{Current()->device, bytes, m.next_piece++, m.shareable};
  m.pieces[*memory] = piece;
  arena.NoticeOf(*memory)->id = piece.id;
  return CUDA_SUCCESS;
}

// CUDA does not say what happens to memory that others have open: here it ends the program.
FAKE cuMemFree(CUdeviceptr memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  WaitForContext();
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const auto found = m.pieces.find(memory);
  if (found == m.pieces.end()) return CUDA_ERROR_INVALID_VALUE;
  Arena& arena = m.arenas[found->second.device];
  Notice* const notice = arena.NoticeOf(memory);
  if (notice->opened > 0) {
    ++m.opened_were_freed;
    if (!m.opened_may_be_freed) {
      std::fprintf(stderr, "fake driver: memory is freed that another process has open\n");
      std::abort();
    }
  }
  notice->id = 0;
  arena.freed.emplace((found->second.bytes + kUnit - 1) / kUnit * kUnit, memory);
  m.pieces.erase(found);
  return CUDA_SUCCESS;
}

FAKE cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  HoldIfAsked("cuMemHostAlloc");
  WaitForContext();
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(Fake().mutex);
  Fake().pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return CUDA_SUCCESS;
}

FAKE cuMemFreeHost(void* memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  WaitForContext();
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

// What is mapped for reading is not taken, with the flag for it or without: as on some devices.
FAKE cuMemHostRegister(void* memory, size_t bytes, unsigned flags) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  WaitForContext();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address % 4096 != 0 || bytes % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsWritable(address)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(Fake().mutex);
  if (Fake().Pinned(address, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Fake().pinned[address] = bytes;
  Fake().registered.insert(address);
  return CUDA_SUCCESS;
}

FAKE cuMemHostUnregister(void* memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  WaitForContext();
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
  HoldIfAsked("cuMemcpyAsync");
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  Machine& m = Fake();
  bool wait = false;
  std::byte *target = nullptr, *source = nullptr;
  {
    const std::lock_guard lock(m.mutex);
    for (const CUdeviceptr end : {to, from}) {
      wait |= m.DeviceOf(end) < 0 && !m.Pinned(end, bytes);
    }
    target = m.Reach(to);
    source = m.Reach(from);
  }
  stream->Append([target, source, bytes] { std::memcpy(target, source, bytes); });
  if (wait) stream->Wait();
  return CUDA_SUCCESS;
}
