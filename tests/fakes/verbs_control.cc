// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#include "build_paths.h"
#include "fakes/verbs/fake_verbs.h"

namespace inccl::test::fake_verbs {

Control& Get() {
  static Control* const control = [] {
    constexpr const char* kPath = INCCL_BINARY_DIR "/tests/fakes/libfake_verbs.so";
    setenv("INCCL_TEST_IBVERBS", kPath, 1);
    void* const library = dlopen(kPath, RTLD_NOW | RTLD_LOCAL);
    void* const made = library == nullptr ? nullptr : dlsym(library, "inccl_fake_verbs");
    if (made == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Control* (*)()>(made)();
  }();
  return *control;
}

}  // namespace inccl::test::fake_verbs
