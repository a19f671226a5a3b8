// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace inccl::ucx {
namespace {

constexpr const char* kUcp = "libucp.so.0";
constexpr const char* kUcs = "libucs.so.0";

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// Settings that UCX's constructor reads for the whole process. By default it writes warnings,
// handles crash signals and SIGHUP, and patches mmap and similar functions in running code.
constexpr const char* kSettings[] = {
    "UCX_LOG_LEVEL=fatal", "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_HANDLE_ERRORS=none",
    "UCX_DEBUG_SIGNO=0",   "UCX_MEM_EVENTS=n",           "UCX_MEMTYPE_CACHE=n",
    "UCX_VFS_ENABLE=n",
};

bool IsSet(const char* setting) {
  const std::string_view text(setting);
  return getenv(std::string(text.substr(0, text.find('='))).c_str()) != nullptr;
}

// Adds settings to the environment for the lifetime of this object; used once per process. Other
// threads may be reading the environment, so nothing is changed or freed: `environ` points to an
// extended copy, which is never freed, and then back to the original. If another thread changes the
// environment meanwhile, the additions stay in it.
class WithSettings {
 public:
  WithSettings() : before_(environ) {
    size_t count = 0;
    while (before_ != nullptr && before_[count] != nullptr) ++count;
    static auto* const copy = new std::vector<char*>;
    copy->assign(before_, before_ + count);
    for (const char* setting : kSettings) {
      if (!IsSet(setting)) copy->push_back(const_cast<char*>(setting));
    }
    copy->push_back(nullptr);
    during_ = copy->data();
    environ = during_;
  }
  ~WithSettings() {
    if (environ == during_) environ = before_;
  }
  WithSettings(const WithSettings&) = delete;
  WithSettings& operator=(const WithSettings&) = delete;

 private:
  char** before_;
  char** during_;
};

void* Open() {
  if (dlopen(kUcs, RTLD_NOW | RTLD_NOLOAD) != nullptr) return dlopen(kUcp, RTLD_NOW | RTLD_LOCAL);
  const WithSettings settings;
  return dlopen(kUcp, RTLD_NOW | RTLD_LOCAL);
}

Result<const Library*> LoadOnce() {
  // UCX takes modules to load, files to write and settings from UCX_ variables and from ucx.conf in
  // the home and working directory, even in a privileged process.
  if (getauxval(AT_SECURE) != 0) {
    return SystemError(
        "UCX is not used in a program that runs with another user's rights (set-user-id, file "
        "capabilities): its files and variables are that user's");
  }
  void* library = Open();
  if (library == nullptr) {
    const char* why = dlerror();
    return SystemError(fmt::format("UCX is not installed: {}", why != nullptr ? why : kUcp));
  }
  static Library functions;
#define INCCL_UCX_FIND(name)                                                                \
  functions.name = Find<decltype(&::name)>(library, #name);                                 \
  if (functions.name == nullptr) {                                                          \
    return SystemError(fmt::format("UCX is too old or too new: no {} in {}", #name, kUcp)); \
  }
  INCCL_UCX_FUNCTIONS(INCCL_UCX_FIND)
#undef INCCL_UCX_FIND
  unsigned major = 0, minor = 0, release = 0;
  functions.ucp_get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor < 10) {
    return SystemError(fmt::format("UCX {}.{}.{}: not at least 1.10", major, minor, release));
  }
  return &functions;
}

}  // namespace

Result<const Library*> Load() {
  static const auto* const result = new Result<const Library*>(LoadOnce());
  return *result;
}

}  // namespace inccl::ucx
