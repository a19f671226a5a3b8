// SPDX-License-Identifier: Apache-2.0
//
// Functions of a library that is loaded while the program runs.
#ifndef INCCL_PERF_SUPPORT_LIBRARY_H_
#define INCCL_PERF_SUPPORT_LIBRARY_H_

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "base/status.h"

namespace inccl::perf {

// Stays loaded: what such libraries have begun, they do not end.
class Library {
 public:
  static Result<Library> Load(const std::string& name) {
    Library library;
    library.name_ = name;
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) return library;
    // The loader's words begin with the name.
    return SystemError(dlerror());
  }

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }

  // Of all Find so far.
  Status status() const {
    if (missing_.empty()) return {};
    return SystemError(fmt::format("{} has no {}", name_, missing_));
  }

 private:
  Library() = default;
  std::string name_, missing_;
  void* handle_ = nullptr;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_LIBRARY_H_
