// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher_store.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "base/thread.h"
#include "bootstrap/launcher.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl {
namespace {

std::string_view Text(const GetEnv& get, const char* name) {
  const char* const value = get(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace

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
    if (Status status = terms.cancelled.Check(); !status.ok()) return status;
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

namespace inccl::bootstrap {
namespace {

constexpr size_t kMostLineBytes = 4096;
constexpr Time kFinalizeLimit = kSecond;

}  // namespace

Result<std::string> PmiStore::Exchange(const std::string& value, const Terms& terms) {
  if (pid_ != 0 && !IsStillOpen()) {
    return InvalidUsage("PMI: another library has closed PMI_FD (MPI_Finalize?)");
  }
  if (kvs_.empty()) {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return SystemErrorErrno("PMI_FD", errno);
    pid_ = getpid();
    device_ = info.st_dev;
    inode_ = info.st_ino;
    if (begin_) {
      Result<Fields> begun =
          Request("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", terms);
      if (!begun.ok()) return begun.status();
    }
    Result<Fields> name = Request("cmd=get_my_kvsname", "my_kvsname", terms);
    if (!name.ok()) return name.status();
    kvs_ = (*name)["kvsname"];
  }
  const std::string key = "inccl-id";
  if (terms.rank == 0) {
    Result<Fields> put = Request(
        fmt::format("cmd=put kvsname={} key={} value={}", kvs_, key, value), "put_result", terms);
    if (!put.ok()) return put.status();
  }
  Result<Fields> barrier = Request("cmd=barrier_in", "barrier_out", terms);
  if (!barrier.ok()) return barrier.status();
  if (terms.rank == 0) return value;
  Result<Fields> got =
      Request(fmt::format("cmd=get kvsname={} key={}", kvs_, key), "get_result", terms);
  if (!got.ok()) return got.status();
  return (*got)["value"];
}

bool PmiStore::IsStillOpen() const {
  struct stat info {};
  return fstat(fd_, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

void PmiStore::FinalizeAtExit() {
  static PmiStore* store = nullptr;
  store = this;
  (void)std::atexit([] { store->Finalize(); });
}

void PmiStore::Finalize() {
  if (pid_ != getpid() || !IsStillOpen()) return;
  Stop();
  (void)CatchOutOfMemory([&] {
    return Request("cmd=finalize", "finalize_ack",
                   {.deadline = SystemClock().Now() + kFinalizeLimit})
        .status();
  });
}

Result<PmiStore::Fields> PmiStore::Request(const std::string& line, std::string_view answer,
                                           const Terms& terms) {
  const std::string text = line + "\n";
  for (size_t written = 0; written < text.size();) {
    const char* const rest = text.data() + written;
    ssize_t bytes = send(fd_, rest, text.size() - written, MSG_NOSIGNAL);
    if (bytes < 0 && errno == ENOTSOCK) bytes = write(fd_, rest, text.size() - written);
    if (bytes < 0 && errno != EINTR) return SystemErrorErrno("PMI: write to the launcher", errno);
    written += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
  }
  Result<std::string> reply = ReadLine(terms);
  if (!reply.ok()) return reply.status();
  Fields fields;
  std::istringstream words(*reply);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (fields["cmd"] == answer && (!fields.contains("rc") || fields["rc"] == "0")) return fields;
  return RemoteError(fmt::format("PMI: the launcher answers \"{}\" to \"{}\"",
                                 Escaped(reply->substr(0, reply->find(" value="))),
                                 line.substr(0, line.find(" value="))));
}

Result<std::string> PmiStore::ReadLine(const Terms& terms) {
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (Status status = terms.cancelled.Check(); !status.ok()) return status;
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) return TimedOut("a barrier of all ranks, or rank 0's value");
    if (!WaitFor(fd_, POLLIN, std::min(terms.deadline, now + kCancelLag))) continue;
    std::array<char, 1024> buffer;
    const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (bytes <= 0 || unread_.size() > kMostLineBytes) {
      return RemoteError("PMI: the launcher closed the connection");
    }
    unread_.append(buffer.data(), static_cast<size_t>(bytes));
  }
}

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
    if (Status status = terms.cancelled.Check(); !status.ok()) return status;
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
