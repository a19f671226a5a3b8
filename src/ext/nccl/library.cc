// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/nccl/log.h"
#include "ext/nccl/policy.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {

constinit const Library* opened_library = nullptr;

namespace {

constexpr const char* kName = "libinccl.so.0";
constexpr int kVersionsPerMinor = 100;

pthread_once_t once = PTHREAD_ONCE_INIT;
Library functions;

void* OpenAt(const char* directory, int length, const char* below) {
  char path[4096];
  const int bytes = snprintf(path, sizeof path, "%.*s%s%s", length, directory, below, kName);
  if (bytes < 0 || static_cast<size_t>(bytes) >= sizeof path) return nullptr;
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void* OpenBeside() {
  Dl_info self{};
  if (dladdr(&functions, &self) == 0 || self.dli_fname == nullptr) return nullptr;
  const char* const slash = strrchr(self.dli_fname, '/');
  if (slash == nullptr) return nullptr;
  const int length = static_cast<int>(slash - self.dli_fname + 1);
  void* const library = OpenAt(self.dli_fname, length, "");
  return library != nullptr ? library : OpenAt(self.dli_fname, length, "../");
}

void* OpenAny() {
  const char* const given = secure_getenv("INCCL_LIBRARY");
  if (given != nullptr && given[0] != '\0') return dlopen(given, RTLD_NOW | RTLD_LOCAL);
  void* const library = OpenBeside();
  return library != nullptr ? library : dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

// This library tells its version itself.
void PrintLibraryLine(const char* level, const char* text) {
  if (strcmp(level, "VERSION") != 0) PrintLine(level, text);
}

bool Resolve(void* library) {
#define INCCL_NCCL_RESOLVE(name)                                                             \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, "ccl_" #name)); \
  if (functions.name == nullptr) return false;
  INCCL_NCCL_FUNCTIONS(INCCL_NCCL_RESOLVE)
#undef INCCL_NCCL_RESOLVE
  int version = 0;
  // The ABI is that of the minor version.
  return functions.get_version(&version) == CCL_SUCCESS &&
         version / kVersionsPerMinor == CCL_VERSION_CODE / kVersionsPerMinor;
}

void Open() {
  void* const library = OpenAny();
  if (library == nullptr) {
    const char* const why = dlerror();
    Warn("libinccl cannot be opened (INCCL_LIBRARY names it): %s", why == nullptr ? "" : why);
    return;
  }
  if (!Resolve(library)) {
    Warn("libinccl is of another version than this libnccl.so.2, %d.%d", CCL_MAJOR, CCL_MINOR);
    return;
  }
  (void)functions.set_log_function(PrintLibraryLine);
  PassVariables(functions);
  ReadPolicy(&functions);
  __atomic_store_n(&opened_library, &functions, __ATOMIC_RELEASE);
}

}  // namespace

const Library* OpenLibrary() {
  pthread_once(&once, Open);
  return __atomic_load_n(&opened_library, __ATOMIC_ACQUIRE);
}

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

namespace inccl::nccl {
namespace {

int ReadVersion() {
  const char* const text = secure_getenv("INCCL_NCCL_VERSION");
  if (text == nullptr || text[0] == '\0') return kDefaultVersion;
  int major = 0, minor = 0, patch = 0, end = 0;
  if (sscanf(text, "%d.%d.%d%n", &major, &minor, &patch, &end) == 3 && text[end] == '\0' &&
      major == 2 && minor >= 9 && minor < 100 && patch >= 0 && patch < 100) {
    return major * 10000 + minor * 100 + patch;
  }
  end = 0;
  if (sscanf(text, "%d%n", &major, &end) == 1 && text[end] == '\0' && major >= 20900 &&
      major < 30000) {
    return major;
  }
  Warn("INCCL_NCCL_VERSION: %s is not of the form 2.30.7 or 23007", text);
  return kDefaultVersion;
}

}  // namespace

int ReportedVersion() {
  static int known = 0;  // two threads may both find it out
  int version = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (version == 0) {
    version = ReadVersion();
    __atomic_store_n(&known, version, __ATOMIC_RELAXED);
  }
  return version;
}

}  // namespace inccl::nccl

INCCL_NCCL_EXPORT(int, GetVersion, (int* version)) {
  if (version == nullptr) {
    inccl::nccl::Warn("ncclGetVersion: version is NULL");
    return CCL_INVALID_ARGUMENT;
  }
  *version = inccl::nccl::ReportedVersion();
  return CCL_SUCCESS;
}
