// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "ext/nccl/error.h"
#include "ext/nccl/library.h"

namespace inccl::nccl {

constinit bool devices_found = false;

namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kDeviceLibrary = "libinccl_cuda.so.0";

void* LoadedDriver() { return dlopen(kDriver, RTLD_LAZY | RTLD_NOLOAD); }

// As libinccl looks for it: beside libinccl, then in the loader's search path.
bool CanOpenDeviceLibrary(const Library& library) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(library.get_version), &info) != 0 &&
      info.dli_fname != nullptr) {
    const char* const slash = strrchr(info.dli_fname, '/');
    char path[4096];
    const int directory = slash == nullptr ? 0 : static_cast<int>(slash - info.dli_fname + 1);
    const int length =
        snprintf(path, sizeof path, "%.*s%s", directory, info.dli_fname, kDeviceLibrary);
    if (length > 0 && static_cast<size_t>(length) < sizeof path && directory > 0 &&
        dlopen(path, RTLD_NOW) != nullptr) {
      return true;
    }
  }
  return dlopen(kDeviceLibrary, RTLD_NOW) != nullptr;
}

}  // namespace

ResultCode LookForDevices() {
  if (__atomic_load_n(&devices_found, __ATOMIC_RELAXED)) return CCL_SUCCESS;
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  void* const driver = LoadedDriver();
  if (driver == nullptr) return CCL_SUCCESS;
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  // An error of the driver: it has no device, or the process has not initialized it.
  if (count == nullptr || count(&devices) != 0 || devices == 0) return CCL_SUCCESS;
  if (!CanOpenDeviceLibrary(*library)) {
    Warn("this process uses CUDA, but %s is neither beside libinccl nor in the search path: %s",
         kDeviceLibrary, dlerror());
    return CCL_UNHANDLED_CUDA_ERROR;
  }
  __atomic_store_n(&devices_found, true, __ATOMIC_RELAXED);
  return CCL_SUCCESS;
}

int CurrentDevice() {
  void* const driver = LoadedDriver();
  if (driver == nullptr) return 0;
  const auto current = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  int device = 0;
  return current != nullptr && current(&device) == 0 ? device : 0;
}

}  // namespace inccl::nccl
