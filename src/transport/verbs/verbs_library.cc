// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace inccl::verbs {
namespace {

constexpr const char* kName = "libibverbs.so.1";

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

Result<const Library*> LoadOnce() {
  const char* const stand_in = secure_getenv("INCCL_TEST_IBVERBS");
  const char* const name = stand_in != nullptr ? stand_in : kName;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return InvalidUsage(
        fmt::format("libibverbs is not installed: {}", why != nullptr ? why : name));
  }
  static Library functions;
#define INCCL_VERBS_FIND(function)                                                  \
  functions.function = Find<decltype(&::function)>(library, #function);             \
  if (functions.function == nullptr) {                                              \
    return SystemError(                                                             \
        fmt::format("libibverbs is too old: no {} in {}; rdma-core 32 or later is " \
                    "needed",                                                       \
                    #function, name));                                              \
  }
  INCCL_VERBS_FUNCTIONS(INCCL_VERBS_FIND)
#undef INCCL_VERBS_FIND
  return &functions;
}

}  // namespace

Result<const Library*> Load() {
  static const auto* const result = new Result<const Library*>(LoadOnce());
  return *result;
}

}  // namespace inccl::verbs
