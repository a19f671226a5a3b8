// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher_store.h"

#include <charconv>
#include <string_view>

#include "bootstrap/hydra.h"
#include "bootstrap/pmi_store.h"
#include "bootstrap/pmix_store.h"

namespace inccl {
namespace {

std::string_view Text(const GetEnv& get, const char* name) {
  const char* const value = get(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace

// Made once, and never destroyed, because threads may still use it while the process exits.
LauncherStore* FindLauncherStore(const Launcher& launcher, const GetEnv& get) {
  if (launcher.kind != "Open MPI" && launcher.kind != "PMI" && launcher.kind != "Slurm") {
    return nullptr;
  }
  if (!Text(get, "PMIX_NAMESPACE").empty() && !Text(get, "PMIX_RANK").empty()) {
    static auto* const pmix = new bootstrap::PmixStore;
    return pmix;
  }
  const std::string_view number = Text(get, "PMI_FD");
  int fd = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fd);
  if (error != std::errc() || end != number.data() + number.size() || fd < 0) return nullptr;
  static auto* const pmi = [fd] {
    auto* const store = new bootstrap::PmiStore(fd, bootstrap::HydraProxy().empty());
    store->FinalizeAtExit();
    return store;
  }();
  return pmi;
}

}  // namespace inccl
