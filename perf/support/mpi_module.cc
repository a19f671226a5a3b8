// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "perf/support/mpi_world.h"

namespace inccl::perf {
namespace {

constexpr const char* kFile = "libinccl_bench_mpi.so";

// RTLD_GLOBAL: MPI's own modules expect its symbols.
Result<const MpiModule*> Load() {
  std::error_code error;
  const std::filesystem::path here =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return SystemErrorErrno("/proc/self/exe", error.value());
  std::filesystem::path file = here / kFile;
  if (!std::filesystem::exists(file, error)) file = here / INCCL_PERF_MODULES / kFile;
  void* module = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) return SystemError(fmt::format("the module for MPI: {}", dlerror()));
  const void* symbol = dlsym(module, "inccl_mpi_module");
  if (symbol == nullptr) return SystemError(fmt::format("the module for MPI: {}", dlerror()));
  return static_cast<const MpiModule*>(symbol);
}

}  // namespace

bool StartedByMpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

Result<const MpiModule*> LoadMpi() {
  static const Result<const MpiModule*> loaded = Load();  // for as long as the process runs
  return loaded;
}

}  // namespace inccl::perf
