// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/nccl/environment.h"
#include "ext/nccl/error.h"
#include "ext/nccl/log.h"
#include "ext/nccl/policy.h"

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

}  // namespace inccl::nccl
