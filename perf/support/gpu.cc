// SPDX-License-Identifier: Apache-2.0
#include "perf/support/gpu.h"

#include <fmt/format.h>

#include <array>

#include "perf/support/library.h"

namespace inccl::perf {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: no order with the legacy stream

Status CudaError(const std::string& text) { return {Code::kUnhandledCudaError, text}; }

}  // namespace

struct Gpu::Driver {
  int (*init)(unsigned flags);
  int (*error_string)(int error, const char** text);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int number);
  int (*device_name)(char* name, int bytes, int device);
  int (*retain)(void** context, int device);
  int (*set_current)(void* context);
  int (*allocate)(void** memory, size_t bytes);
  int (*free)(void* memory);
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);

  Status Load() {
    Result<Library> library = Library::Load("libcuda.so.1");
    if (!library.ok()) return CudaError(library.status().message());
    library->Find("cuInit", &init);
    library->Find("cuGetErrorString", &error_string);
    library->Find("cuDeviceGetCount", &device_count);
    library->Find("cuDeviceGet", &device_get);
    library->Find("cuDeviceGetName", &device_name);
    library->Find("cuDevicePrimaryCtxRetain", &retain);
    library->Find("cuCtxSetCurrent", &set_current);
    library->Find("cuMemAlloc_v2", &allocate);
    library->Find("cuMemFree_v2", &free);
    library->Find("cuMemcpyAsync", &copy);
    library->Find("cuStreamCreate", &stream_create);
    library->Find("cuStreamDestroy_v2", &stream_destroy);
    library->Find("cuStreamSynchronize", &stream_synchronize);
    if (Status s = library->status(); !s.ok()) return CudaError(s.message());
    return {};
  }
};

Status Gpu::Check(int result, const char* call) const {
  if (result == 0) return {};
  const char* text = nullptr;
  if (driver_->error_string(result, &text) != 0 || text == nullptr) text = "unknown error";
  return CudaError(fmt::format("{}: {} ({})", call, text, result));
}

Result<std::unique_ptr<Gpu>> Gpu::Open(int rank) {
  std::unique_ptr<Gpu> gpu(new Gpu);
  gpu->driver_ = std::make_unique<Driver>();
  const Driver& driver = *gpu->driver_;
  if (Status s = gpu->driver_->Load(); !s.ok()) return s;
  if (Status s = gpu->Check(driver.init(0), "cuInit"); !s.ok()) return s;
  if (Status s = gpu->Check(driver.device_count(&gpu->count_), "cuDeviceGetCount"); !s.ok()) {
    return s;
  }
  if (gpu->count_ < 1) return CudaError("cuDeviceGetCount: there is no device");
  gpu->number_ = rank % gpu->count_;
  int device = 0;
  std::array<char, 256> name{};
  void* context = nullptr;
  Status s = gpu->Check(driver.device_get(&device, gpu->number_), "cuDeviceGet");
  if (s.ok()) s = gpu->Check(driver.device_name(name.data(), 255, device), "cuDeviceGetName");
  if (s.ok()) s = gpu->Check(driver.retain(&context, device), "cuDevicePrimaryCtxRetain");
  if (s.ok()) s = gpu->Check(driver.set_current(context), "cuCtxSetCurrent");
  if (s.ok()) s = gpu->Check(driver.stream_create(&gpu->stream_, kNonBlocking), "cuStreamCreate");
  if (!s.ok()) return s;
  gpu->name_ = name.data();
  return gpu;
}

Gpu::~Gpu() {
  if (stream_ != nullptr) driver_->stream_destroy(stream_);
}

Result<void*> Gpu::Allocate(size_t bytes) {
  void* memory = nullptr;
  Status s = Check(driver_->allocate(&memory, bytes), "cuMemAlloc");
  if (s.ok()) return memory;
  return CudaError(fmt::format("{} bytes: {}", bytes, s.message()));
}

void Gpu::Free(void* memory) { driver_->free(memory); }

Status Gpu::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return {};
  return Check(driver_->copy(to, from, bytes, stream_), "cuMemcpyAsync");
}

Status Gpu::Synchronize() {
  return Check(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
}

}  // namespace inccl::perf
