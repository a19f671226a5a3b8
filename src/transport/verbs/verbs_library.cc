// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

namespace inccl::verbs {
namespace {

constexpr const char* kName = "libibverbs.so.1";

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

Result<const Library*> LoadFrom(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return InvalidUsage(
        fmt::format("libibverbs is not installed: {}", why != nullptr ? why : name));
  }
  auto made = std::make_unique<Library>();
  Library& functions = *made;
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
  functions.reg_dmabuf_mr = Find<decltype(functions.reg_dmabuf_mr)>(library, "ibv_reg_dmabuf_mr");
  return static_cast<const Library*>(made.release());
}

}  // namespace

Result<const Library*> Load() {
  if (const char* const stand_in = secure_getenv("INCCL_TEST_IBVERBS"); stand_in != nullptr) {
    static const auto* const loaded = new Result<const Library*>(LoadFrom(stand_in));
    return *loaded;
  }
  static const auto* const loaded = new Result<const Library*>(LoadFrom(kName));
  return *loaded;
}

}  // namespace inccl::verbs
