// SPDX-License-Identifier: Apache-2.0
#include "api/handles.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "api/submit.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "bootstrap/bootstrap.h"
#include "device/runtime.h"

namespace inccl {
namespace {

// Stores the Status and not its text, because copying a Status needs no memory.
PerThread<Status> last_errors;
thread_local bool last_error_lost = false;  // there was no memory to store it

// Reuses the oldest returned object once more than kRest have been returned. Give needs no memory.
template <typename T>
class Pool {
 public:
  T* Take() {
    const MutexLock lock(&mutex_);
    if (free_ <= kRest) {
      all_.push_back(std::make_unique<Node>());
      return all_.back().get();
    }
    Node* const node = first_;
    first_ = node->next;
    --free_;
    return node;
  }
  void Give(T* object) {
    const MutexLock lock(&mutex_);
    auto* const node = static_cast<Node*>(object);
    node->next = nullptr;
    (free_ == 0 ? first_ : last_->next) = node;
    last_ = node;
    ++free_;
  }

 private:
  static constexpr size_t kRest = 256;
  struct Node : T {
    Node* next = nullptr;  // the next free node; the list starts with the oldest
  };
  Mutex mutex_;
  std::deque<std::unique_ptr<Node>> all_ INCCL_GUARDED_BY(mutex_);
  size_t free_ INCCL_GUARDED_BY(mutex_) = 0;
  Node* first_ INCCL_GUARDED_BY(mutex_) = nullptr;
  Node* last_ INCCL_GUARDED_BY(mutex_) = nullptr;
};

// Never destroyed, because destructors of static objects may use handles.
Pool<ccl_comm>& Comms() {
  static NoDestructor<Pool<ccl_comm>> pool;
  return *pool;
}

Pool<ccl_codec>& Codecs() {
  static NoDestructor<Pool<ccl_codec>> pool;
  return *pool;
}

Pool<ccl_residual>& Residuals() {
  static NoDestructor<Pool<ccl_residual>> pool;
  return *pool;
}

Pool<ccl_reducer>& Reducers() {
  static NoDestructor<Pool<ccl_reducer>> pool;
  return *pool;
}

Pool<ccl_reducer_state>& ReducerStates() {
  static NoDestructor<Pool<ccl_reducer_state>> pool;
  return *pool;
}

// A handle that is valid from now on.
template <typename T>
T* TakeValid(Pool<T>* pool) {
  T* const handle = pool->Take();
  handle->magic.store(T::kMagic);
  return handle;
}

template <typename T>
void Invalidate(T* handle, Pool<T>* pool) {
  handle->magic.store(0);
  handle->Clear();
  pool->Give(handle);
}

// `name`: of the argument; `what`: what it must be.
template <typename T>
Status CheckHandle(const T* handle, const char* name, const char* what) {
  if (handle == nullptr) return InvalidArgument(fmt::format("{}: NULL", name));
  if (handle->magic.load() == T::kMagic) return Status::Ok();
  return InvalidArgument(fmt::format("{}: not {}, or destroyed", name, what));
}

std::atomic<uint64_t> fork_generation{0};
std::atomic<int> latest_ranks{2};

Status NoCommunicator() { return InvalidArgument("comm: not a communicator, or destroyed"); }

Status OfParent() {
  return InvalidUsage(
      "comm: made before fork(); a child process cannot use its parent's communicators");
}

Status CreateNow(ccl_comm_t* comm, const InitOptions& options, const Creation& creation) {
  InitOptions own = options;
  Result<std::shared_ptr<Communicator>> made = creation(nullptr);
  if (!made.ok()) return made.status();
  ccl_comm_t handle = NewComm();
  handle->options = std::move(own);
  Publish(handle, std::move(made));
  *comm = handle;
  return Status::Ok();
}

Status CreateInBackground(ccl_comm_t* comm, const InitOptions& options, Creation creation) {
  Status in_progress(Code::kInProgress, "the communicator is being created");
  ccl_comm_t handle = NewComm();
  Status started = CatchOutOfMemory([&]() -> Status {
    handle->options = options;
    handle->state.store(ccl_comm::State::kCreating);
    Result<std::thread> thread =
        StartThread("inccl-init", [handle, creation = std::move(creation)] {
          try {
            Publish(handle, creation(&handle->cancelled));
          } catch (const std::exception& e) {
            Publish(handle, CatchOutOfMemory([&] {
                      return SystemError(fmt::format("creation of a communicator: {}", e.what()));
                    }));
          }
        });
    if (!thread.ok()) return thread.status();
    handle->background = *std::move(thread);
    return Status::Ok();
  });
  if (!started.ok()) {
    (void)TakeForFree(handle);
    FreeComm(handle);
    return started;
  }
  *comm = handle;
  return in_progress;
}

}  // namespace

void Publish(ccl_comm_t comm, Result<std::shared_ptr<Communicator>> made) {
  if (made.ok()) {
    latest_ranks.store((*made)->nranks(), std::memory_order_relaxed);
    comm->impl = *std::move(made);
    comm->state.store(ccl_comm::State::kReady);
  } else {
    comm->creation_error = made.status();
    comm->state.store(ccl_comm::State::kFailed);
  }
}

int LatestRanks() { return latest_ranks.load(std::memory_order_relaxed); }

uint64_t ForkGeneration() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  return fork_generation.load(std::memory_order_relaxed);
}

ccl_result_t Return(const Status& status) {
  if (!status.ok() && status.code() != Code::kInProgress) {
    Status* const last = last_errors.Get();
    last_error_lost = last == nullptr;
    if (last != nullptr) *last = status;
  }
  return static_cast<ccl_result_t>(status.code());
}

const std::string& LastError(ccl_comm_t comm) {
  Status* const last = last_errors.Get();
  if (last == nullptr || last_error_lost) return OutOfMemory().message();
  if (comm == nullptr) return last->message();
  const Lease lease(comm, Need::kHandle);
  if (!lease.ok()) return last->message();
  const ccl_comm::State state = comm->state.load();
  Status sticky;
  if (state == ccl_comm::State::kFailed) sticky = comm->creation_error;
  // While it creates the communicator, the background thread owns `impl`.
  if (state != ccl_comm::State::kCreating && comm->impl != nullptr) sticky = comm->impl->error();
  if (!sticky.ok()) *last = sticky;
  return last->message();
}

Lease::Lease(ccl_comm_t comm, Need need) : comm_(comm) {
  if (comm == nullptr) {
    status_ = InvalidArgument("comm: NULL");
    return;
  }
  comm->users.fetch_add(1);
  counted_ = true;
  // Check must not throw: without a constructed Lease nothing would decrement `users`.
  status_ = CatchOutOfMemory([&] { return Check(need); });
}

Lease::~Lease() {
  if (counted_) comm_->users.fetch_sub(1);
}

Status Lease::Check(Need need) const {
  if (comm_->magic.load() != ccl_comm::kMagic) return NoCommunicator();
  if (comm_->fork_generation != ForkGeneration()) return OfParent();
  if (need == Need::kHandle) return Status::Ok();
  const ccl_comm::State state = comm_->state.load(std::memory_order_acquire);
  if (state == ccl_comm::State::kReady) return Status::Ok();
  if (state == ccl_comm::State::kCreating) {
    return InvalidArgument(
        "comm: is still being created; wait while ccl_comm_get_async_error says CCL_IN_PROGRESS");
  }
  if (state == ccl_comm::State::kFailed) return comm_->creation_error;
  if (need == Need::kExists) return Status::Ok();
  if (state == ccl_comm::State::kDividing) {
    return InvalidArgument(
        "comm: a split or shrink is in progress; wait while ccl_comm_get_async_error says "
        "CCL_IN_PROGRESS");
  }
  return InvalidUsage(fmt::format("comm: {} has been finalized", comm_->impl->rank_name()));
}

Status TakeForFree(ccl_comm_t comm) {
  if (comm == nullptr) return InvalidArgument("comm: NULL");
  if (comm->magic.load() == ccl_comm::kMagic && comm->fork_generation != ForkGeneration()) {
    return OfParent();
  }
  uint64_t magic = ccl_comm::kMagic;
  if (!comm->magic.compare_exchange_strong(magic, 0)) return NoCommunicator();
  return Status::Ok();
}

Status CheckCodec(ccl_codec_t codec) { return CheckHandle(codec, "codec", "a codec"); }
Status CheckResidual(ccl_residual_t residual) {
  return CheckHandle(residual, "residual", "a residual");
}
Status CheckReducer(ccl_reducer_t reducer) { return CheckHandle(reducer, "reducer", "a reducer"); }
Status CheckReducerState(ccl_reducer_state_t state) {
  return CheckHandle(state, "state", "the state of a reducer");
}

ccl_comm_t NewComm() {
  ccl_comm_t comm = Comms().Take();
  comm->fork_generation = ForkGeneration();
  Device* const device = LookForDevice();
  comm->device = device == nullptr ? -1 : device->Current();
  comm->magic.store(ccl_comm::kMagic);
  return comm;
}

namespace {

// Communicators that have been destroyed while late peers still had to take what they were sent.
// The process does not end by exit() or quick_exit() before they have it.
class Partings {
 public:
  static Partings& Get() {
    static NoDestructor<Partings> partings;  // exit() may come before the last one has ended
    return *partings;
  }

  void Add(std::shared_ptr<Communicator> communicator) {
    const MutexLock lock(&mutex_);
    static constexpr auto kWait = [] { Get().Wait(); };
    [[maybe_unused]] static const int registered = std::atexit(kWait) + std::at_quick_exit(kWait);
    // If there is no thread, the caller waits.
    Result<std::thread> thread =
        StartThread("inccl-parting", [this, leaving = std::move(communicator)]() mutable {
          leaving.reset();
          const MutexLock ended(&mutex_);
          --count_;
          changed_.NotifyAll();
        });
    if (!thread.ok()) return;
    thread->detach();
    ++count_;
    process_ = getpid();
  }

 private:
  void Wait() {
    if (process_ != getpid()) return;  // a child of fork() has none of the threads
    const MutexLock lock(&mutex_);
    while (count_ > 0) changed_.Wait(&mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  int count_ INCCL_GUARDED_BY(mutex_) = 0;
  std::atomic<pid_t> process_{0};
};

// Frees a communicator that no call uses any more; what late peers have to take yet goes on in the
// background.
void Leave(std::shared_ptr<Communicator> communicator) {
  if (communicator == nullptr || communicator.use_count() > 1) return;
  constexpr Time kPatience = kSecond / 2;
  if (communicator->failed_flag()->load() || communicator->Part(SystemClock().Now() + kPatience))
    return;
  (void)CatchOutOfMemory([&] {
    Partings::Get().Add(std::move(communicator));
    return Status::Ok();
  });
}

}  // namespace

void FreeComm(ccl_comm_t comm) {
  while (comm->users.load() > 0) std::this_thread::yield();
  if (comm->background.joinable()) comm->background.join();
  Leave(std::move(comm->impl));
  comm->Clear();
  Comms().Give(comm);
}

void AbortAndFree(ccl_comm_t comm) {
  comm->cancelled.store(true);
  if (comm->state.load() == ccl_comm::State::kCreating && comm->background.joinable()) {
    comm->background.join();
  }
  if (comm->impl != nullptr) {
    comm->impl->AbortAll(CatchOutOfMemory([&] {
      return RemoteError(fmt::format("{} aborted the communicator", comm->impl->rank_name()));
    }));
  }
  FreeComm(comm);
}

ccl_codec_t NewCodec() { return TakeValid(&Codecs()); }
void FreeCodec(ccl_codec_t codec) { Invalidate(codec, &Codecs()); }
ccl_residual_t NewResidual() { return TakeValid(&Residuals()); }
void FreeResidual(ccl_residual_t residual) { Invalidate(residual, &Residuals()); }
ccl_reducer_t NewReducer() { return TakeValid(&Reducers()); }
void FreeReducer(ccl_reducer_t reducer) { Invalidate(reducer, &Reducers()); }
ccl_reducer_state_t NewReducerState() { return TakeValid(&ReducerStates()); }
void FreeReducerState(ccl_reducer_state_t state) { Invalidate(state, &ReducerStates()); }

Status Create(ccl_comm_t* comm, const InitOptions& options, Creation creation) {
  if (!options.blocking) return CreateInBackground(comm, options, std::move(creation));
  if (Group* group = Group::Current(); group != nullptr) {
    group->Add([comm, options, creation = std::move(creation)] {
      return CreateNow(comm, options, creation);
    });
    return Status::Ok();
  }
  Status created = CreateNow(comm, options, creation);
  if (created.ok()) WarmUpCalls(*comm);
  return created;
}

}  // namespace inccl

void ccl_comm::WithdrawInvitation() {
  if (invitation) {
    inccl::WithdrawUniqueId(*invitation,
                            inccl::RemoteError("the member that made the id has ended "
                                               "its communicator, or made another id"));
  }
  invitation.reset();
}

void ccl_comm::Clear() {
  WithdrawInvitation();
  impl.reset();
  creation_error = inccl::Status::Ok();
  state.store(State::kReady);
  cancelled.store(false);
  delivered.store(true);
  options = {};
  reductions.Clear();
}
