// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/pmix_store.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/escaped.h"
#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {

// What is used of PMIx's ABI (pmix_common.h of 3.x to 5.x).
struct PmixProcess {
  std::array<char, 256> nspace{};
  uint32_t rank = 0;
};

namespace {

constexpr int kSuccess = 0;
constexpr uint8_t kGlobalScope = 3;
constexpr uint16_t kBool = 1, kString = 3;
constexpr const char* kCollectData = "pmix.collect";

}  // namespace

struct PmixValue {
  uint16_t type = kString;
  alignas(8) union {
    bool flag;
    const char* string;
    std::array<std::byte, 64> space;  // more than any member of the union takes
  } data = {};
};

struct PmixInfo {
  std::array<char, 512> key{};
  uint32_t flags = 0;
  PmixValue value;
};
static_assert(offsetof(PmixInfo, value) == 520 && offsetof(PmixValue, data) == 8);

using ValueCallback = void (*)(int status, PmixValue* value, void* context);
using DoneCallback = void (*)(int status, void* context);

struct PmixLibrary {
  int (*init)(PmixProcess*, void*, size_t) = nullptr;
  int (*finalize)(const void*, size_t) = nullptr;
  int (*put)(uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence_nb)(const void*, size_t, const PmixInfo*, size_t, DoneCallback, void*) = nullptr;
  int (*get_nb)(const PmixProcess*, const char*, const void*, size_t, ValueCallback,
                void*) = nullptr;
  const char* (*error_string)(int) = nullptr;
};

namespace {

// PMIx starts a thread, in which handlers of the application must not run.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_{};
};

Result<const PmixLibrary*> Load() {
  void* const handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return SystemError(fmt::format("PMIx: {}", Escaped(dlerror())));
  static PmixLibrary library;
  const auto find = [handle](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    return *function != nullptr;
  };
  if (find("PMIx_Init", &library.init) && find("PMIx_Finalize", &library.finalize) &&
      find("PMIx_Put", &library.put) && find("PMIx_Commit", &library.commit) &&
      find("PMIx_Fence_nb", &library.fence_nb) && find("PMIx_Get_nb", &library.get_nb) &&
      find("PMIx_Error_string", &library.error_string)) {
    return &library;
  }
  return SystemError("PMIx: libpmix.so.2 lacks functions that this library needs");
}

// The launcher counts a process that ends without finalizing PMIx as failed. PMIx counts its users,
// so MPI_Finalize may come before or after.
const PmixLibrary* to_finalize = nullptr;
pid_t finalizing_process = 0;
void FinalizeAtExit() {
  if (getpid() == finalizing_process) (void)to_finalize->finalize(nullptr, 0);
}

// A request to PMIx, whose thread may answer after the caller has stopped waiting.
struct Pending {
  Mutex mutex;
  CondVar changed;
  bool done INCCL_GUARDED_BY(mutex) = false;
  int status INCCL_GUARDED_BY(mutex) = kSuccess;
  std::string value INCCL_GUARDED_BY(mutex);
};

void OnValue(int status, PmixValue* value, void* context) {
  const std::unique_ptr<std::shared_ptr<Pending>> owner(
      static_cast<std::shared_ptr<Pending>*>(context));
  Pending* const pending = owner->get();
  const MutexLock lock(&pending->mutex);
  pending->done = true;
  pending->status = status;
  if (status == kSuccess && value != nullptr && value->type == kString) {
    pending->value = value->data.string;
  }
  pending->changed.NotifyAll();
}

void OnDone(int status, void* context) { OnValue(status, nullptr, context); }

Status Failed(const PmixLibrary& library, const char* what, int status) {
  return RemoteError(fmt::format("PMIx: {}: {}", what, library.error_string(status)));
}

}  // namespace

Status PmixStore::Begin() {
  if (self_ != nullptr) return Status::Ok();
  Result<const PmixLibrary*> library = Load();
  if (!library.ok()) return library.status();
  const SignalsBlocked blocked;
  static PmixProcess self;
  const int status = (*library)->init(&self, nullptr, 0);
  if (status != kSuccess) return Failed(**library, "PMIx_Init", status);
  to_finalize = *library;
  finalizing_process = getpid();
  (void)std::atexit(FinalizeAtExit);
  library_ = *library;
  self_ = &self;
  return Status::Ok();
}

Status PmixStore::Put(const std::string& key, const std::string& value) {
  PmixValue wrapped;
  wrapped.data.string = value.c_str();  // which PMIx copies
  int status = library_->put(kGlobalScope, key.c_str(), &wrapped);
  if (status == kSuccess) status = library_->commit();
  return status == kSuccess ? Status::Ok() : Failed(*library_, "PMIx_Put", status);
}

// Starts a request, start(context), whose callback takes the context, and waits for its result.
template <typename Function>
Result<std::string> PmixStore::Await(const char* what, const Terms& terms, Function&& start) {
  auto pending = std::make_shared<Pending>();
  auto context = std::make_unique<std::shared_ptr<Pending>>(pending);
  if (const int status = start(context.get()); status != kSuccess) {
    return Failed(*library_, what, status);
  }
  (void)context.release();  // the callback frees it
  const MutexLock lock(&pending->mutex);
  while (!pending->done) {
    if (IsCancelled(terms)) return Cancelled();
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) return TimedOut(what);
    pending->changed.WaitFor(&pending->mutex, std::min(terms.deadline - now, kCancelLag));
  }
  if (pending->status != kSuccess) return Failed(*library_, what, pending->status);
  return pending->value;
}

Result<std::string> PmixStore::Exchange(const std::string& value, const Terms& terms) {
  if (Status status = Begin(); !status.ok()) return status;
  const std::string key = "inccl-id";
  if (terms.rank == 0) {
    if (Status status = Put(key, value); !status.ok()) return status;
  }
  PmixInfo collect;
  std::strcpy(collect.key.data(), kCollectData);
  collect.value.type = kBool;
  collect.value.data.flag = true;
  const Result<std::string> fence =
      Await("a barrier of all ranks", terms, [&](std::shared_ptr<Pending>* context) {
        return library_->fence_nb(nullptr, 0, &collect, 1, OnDone, context);
      });
  if (!fence.ok()) return fence.status();
  if (terms.rank == 0) return value;
  PmixProcess root;
  root.nspace = self_->nspace;
  return Await("rank 0's value", terms, [&](std::shared_ptr<Pending>* context) {
    return library_->get_nb(&root, key.c_str(), nullptr, 0, OnValue, context);
  });
}

}  // namespace inccl::bootstrap
