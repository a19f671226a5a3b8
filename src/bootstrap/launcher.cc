// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher.h"

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
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "base/thread.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr int kMostAncestors = 100;
constexpr size_t kMostBytes = 4096;  // limit for a stat file
constexpr const char* kProxyName = "hydra_pmi_proxy";

struct Process {
  std::string name;
  long parent = 0;
  std::string started;
};

// Parses /proc/PID/stat: "PID (NAME) STATE PARENT ...", where NAME may contain any character.
// Returns false if the file cannot be read.
bool ReadProcess(long pid, Process* process) {
  int error = 0;
  const Result<std::string> text =
      ReadTextFile("process", fmt::format("/proc/{}/stat", pid), kMostBytes, &error);
  if (!text.ok()) return false;
  const size_t open = text->find('('), close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  process->name = text->substr(open + 1, close - open - 1);
  std::istringstream fields(text->substr(close + 1));
  std::string skipped;
  if (!(fields >> skipped >> process->parent)) return false;
  constexpr int kBetween = 17;  // fields between the parent's id and the start time
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  return static_cast<bool>(fields >> process->started);
}

}  // namespace

std::string HydraProxy() {
  long pid = getppid();
  for (int i = 0; i < kMostAncestors && pid > 0; ++i) {
    Process process;
    if (!ReadProcess(pid, &process)) return "";
    if (process.name == kProxyName) return fmt::format("{} started {}", pid, process.started);
    pid = process.parent;
  }
  return "";
}

}  // namespace inccl::bootstrap

namespace inccl {
namespace {

constexpr int kMostRanks = 1 << 20;

using Names = std::initializer_list<const char*>;

// Reads variables and remembers the first error.
class Reader {
 public:
  Reader(const GetEnv& get, Launcher* launcher) : get_(get), launcher_(launcher) {}

  bool Has(const char* name) const { return !Text(name).empty(); }
  bool HasAll(Names names) const {
    return std::all_of(names.begin(), names.end(), [this](const char* name) { return Has(name); });
  }
  std::string_view Text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  // The first of these variables that is set, else `otherwise`; -1: one of them must be set.
  int Number(Names names, int otherwise) {
    for (const char* name : names) {
      const std::string_view text = Text(name);
      if (text.empty()) continue;
      int number = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || stop != text.data() + text.size() || number < 0 ||
          number > kMostRanks) {
        Complain(fmt::format("{}: \"{}\" is not a number in [0, {}]", name, text, kMostRanks));
        return 0;
      }
      return number;
    }
    if (otherwise < 0) Complain(fmt::format("{} is not set", *names.begin()));
    return otherwise;
  }

  // Adds the variables that are set to the job's name. Returns false if none is set.
  bool AddToJob(Names names) {
    bool any = false;
    for (const char* name : names) {
      if (!Has(name)) continue;
      AddToJob(name, Text(name));
      any = true;
    }
    return any;
  }
  void AddToJob(std::string_view name, std::string_view value) {
    launcher_->job += fmt::format("{}={}\n", name, value);
  }
  // True if the user has named the job, so the launcher need not.
  bool HasJobName() const { return Has("INCCL_JOB"); }
  void AddToSecret(Names names) {
    for (const char* name : names) {
      if (Has(name)) launcher_->secret += fmt::format("{}={}\n", name, Text(name));
    }
  }

  void Complain(const std::string& what) {
    if (status_.ok()) status_ = InvalidUsage(fmt::format("{}: {}", launcher_->kind, what));
  }
  // `here` is the number of ranks on this host according to the variable `name`.
  void NoteRanksHere(int here, const char* name) {
    if (here == launcher_->nranks) return;
    launcher_->elsewhere =
        fmt::format("{} of {} ranks are on this host ({})", here, launcher_->nranks, name);
  }

  void NoteNodesOfSlurm() {
    const int nodes = Number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}, 1);
    if (nodes <= 1) return;
    launcher_->elsewhere =
        fmt::format("the ranks are on {} hosts (SLURM_STEP_NUM_NODES, SLURM_NNODES)", nodes);
  }

  Status Finish() {
    if (launcher_->nranks < 1) Complain("the number of ranks is 0");
    if (launcher_->rank >= launcher_->nranks) {
      Complain(fmt::format("rank {} of {} ranks", launcher_->rank, launcher_->nranks));
    }
    return status_;
  }

 private:
  const GetEnv& get_;
  Launcher* const launcher_;
  Status status_;
};

void ReadOwn(Reader* r, Launcher* l) {
  l->rank = r->Number({"INCCL_RANK"}, -1);
  l->nranks = r->Number({"INCCL_SIZE"}, -1);
  if (!r->HasJobName()) {
    r->Complain(
        "INCCL_JOB is not set; ranks that no launcher has started need it: a name that the ranks "
        "of this job share and no other job of this user has");
  }
}

void ReadOpenMpi(Reader* r, Launcher* l) {
  l->rank = r->Number({"OMPI_COMM_WORLD_RANK"}, -1);
  l->nranks = r->Number({"OMPI_COMM_WORLD_SIZE"}, -1);
  r->NoteRanksHere(r->Number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, l->nranks),
                   "OMPI_COMM_WORLD_LOCAL_SIZE");
  // A job's number is short; its server's address distinguishes two jobs with the same number.
  if (!r->AddToJob({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMIX_SERVER_URI2"}) &&
      !r->HasJobName()) {
    r->Complain("neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid nor INCCL_JOB is set");
  }
  r->AddToSecret({"OMPI_MCA_orte_precondition_transports"});
}

void ReadPmi(Reader* r, Launcher* l) {
  l->rank = r->Number({"PMI_RANK"}, -1);
  l->nranks = r->Number({"PMI_SIZE"}, -1);
  if (r->Has("MPI_LOCALNRANKS") || r->Has("PMI_LOCAL_SIZE")) {
    r->NoteRanksHere(r->Number({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}, l->nranks),
                     "MPI_LOCALNRANKS");
  } else {
    r->NoteNodesOfSlurm();  // srun --mpi=pmi2
  }
  if (r->AddToJob({"PMI_JOBID", "PMIX_NAMESPACE", "PMI_PORT"}) || r->HasJobName()) return;
  // Hydra's proxy comes first, because Hydra may run several jobs in one Slurm allocation.
  if (const std::string proxy = bootstrap::HydraProxy(); !proxy.empty()) {
    r->AddToJob("hydra_pmi_proxy", proxy);
  } else if (r->HasAll({"SLURM_JOB_ID", "SLURM_STEP_ID"})) {
    r->AddToJob({"SLURM_JOB_ID", "SLURM_STEP_ID"});
  } else {
    r->Complain(
        "neither PMI_JOBID nor INCCL_JOB is set, and no process above this one is Hydra's proxy "
        "(hydra_pmi_proxy)");
  }
}

void ReadTorch(Reader* r, Launcher* l) {
  l->rank = r->Number({"RANK"}, -1);
  l->nranks = r->Number({"WORLD_SIZE"}, -1);
  r->NoteRanksHere(r->Number({"LOCAL_WORLD_SIZE"}, l->nranks), "LOCAL_WORLD_SIZE");
  if (!r->Has("MASTER_ADDR") || !r->Has("MASTER_PORT")) {
    if (!r->HasJobName()) r->Complain("MASTER_ADDR and MASTER_PORT, or INCCL_JOB, are not set");
  }
  r->AddToJob({"MASTER_ADDR", "MASTER_PORT"});
}

void ReadSlurm(Reader* r, Launcher* l) {
  // Each step of a Slurm job is a job of its own.
  if (!r->HasAll({"SLURM_JOB_ID", "SLURM_STEP_ID"}) && !r->HasJobName()) {
    r->Complain(
        "SLURM_JOB_ID and SLURM_STEP_ID are not set, so srun has not started this process; a batch "
        "script starts its ranks with srun (ranks that srun does not start need INCCL_RANK, "
        "INCCL_SIZE and INCCL_JOB)");
  }
  l->rank = r->Number({"SLURM_PROCID"}, -1);
  l->nranks = r->Number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, -1);
  r->NoteNodesOfSlurm();
  r->AddToJob({"SLURM_JOB_ID", "SLURM_STEP_ID"});
}

struct LauncherSource {
  const char* kind;
  Names present;  // this launcher is chosen if all of them are set
  void (*read)(Reader*, Launcher*);
};

// Launchers may start other launchers, so the most specific one comes first.
const LauncherSource kSources[] = {
    {"INCCL_RANK", {"INCCL_RANK"}, ReadOwn},
    {"INCCL_RANK", {"INCCL_SIZE"}, ReadOwn},
    {"torchrun", {"RANK", "TORCHELASTIC_RUN_ID"}, ReadTorch},
    {"Open MPI", {"OMPI_COMM_WORLD_RANK"}, ReadOpenMpi},
    {"PMI", {"PMI_RANK"}, ReadPmi},
    {"RANK and WORLD_SIZE", {"RANK", "WORLD_SIZE"}, ReadTorch},
    {"Slurm", {"SLURM_PROCID"}, ReadSlurm},
};

}  // namespace

Result<Launcher> FindLauncher(const GetEnv& get) {
  for (const LauncherSource& source : kSources) {
    Launcher launcher;
    launcher.kind = source.kind;
    Reader reader(get, &launcher);
    bool present = true;
    for (const char* name : source.present) present = present && reader.Has(name);
    if (!present) continue;
    // torchrun's agent restarts ranks under any launcher, and each restart is a job of its own.
    reader.AddToJob({"INCCL_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
    launcher.run = launcher.job;
    launcher.job = launcher.kind + "\n" + launcher.run;
    source.read(&reader, &launcher);
    if (Status status = reader.Finish(); !status.ok()) return status;
    return launcher;
  }
  return InvalidUsage(
      "no launcher found; looked for INCCL_RANK and INCCL_SIZE (and INCCL_JOB), "
      "OMPI_COMM_WORLD_RANK, PMI_RANK, RANK and WORLD_SIZE (and MASTER_ADDR, MASTER_PORT), "
      "SLURM_PROCID");
}

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
