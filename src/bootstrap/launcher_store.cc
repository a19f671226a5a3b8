// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/thread.h"
#include "bootstrap/hydra.h"
#include "bootstrap/pmi_store.h"
#include "bootstrap/pmix_store.h"
#include "bootstrap/socket.h"

namespace inccl {
namespace {

std::string_view Text(const GetEnv& get, const char* name) {
  const char* const value = get(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace

Status LauncherStore::Cancelled() {
  return RemoteError("this rank ended the creation of the communicator");
}

Status LauncherStore::TimedOut(const char* request) const {
  return TimeoutError(fmt::format("{}: no answer of the launcher in time to {}", name(), request));
}

Result<std::string> LauncherStore::Share(const std::function<std::string()>& make,
                                         const Terms& terms) {
  const MutexLock lock(&mutex_);
  if (!value_) value_ = terms.rank == 0 ? make() : std::string();
  if (!result_ && !thread_.joinable()) {
    Result<std::thread> thread =
        StartThread("inccl-store", [this, value = *value_, rank = terms.rank] {
          Result<std::string> result = InternalError("not run");
          const Status memory = CatchOutOfMemory([&] {
            result = Exchange(value, {.rank = rank, .cancelled = &stopped_});
            return Status::Ok();
          });
          const MutexLock done(&mutex_);
          result_ = memory.ok() ? std::move(result) : Result<std::string>(memory);
          changed_.NotifyAll();
        });
    if (!thread.ok()) return thread.status();  // the next call starts it
    thread_ = *std::move(thread);
  }
  while (!result_) {
    if (IsCancelled(terms)) return Cancelled();
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) return TimedOut("a barrier of all ranks, or rank 0's value");
    changed_.WaitFor(&mutex_, std::min(terms.deadline - now, bootstrap::kCancelLag));
  }
  return *result_;
}

void LauncherStore::Stop() {
  stopped_ = true;
  std::thread thread;
  {
    const MutexLock lock(&mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

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
