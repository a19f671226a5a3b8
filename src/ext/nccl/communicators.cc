// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/communicators.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ext/nccl/collectives.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/policy.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {
namespace {

struct Node {
  Comm comm;
  Comm* slot;  // of a node that waits for the end of a group
  bool revoked, finalized;
  char name[kNameBytes];
  Node* next;
  pthread_t leaving;  // a thread at the end of the process
};

constexpr size_t kLists = 256;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Node* lists[kLists];

pid_t owner = 0;  // the process that has made the communicators; with the mutex

__attribute__((tls_model("initial-exec"))) thread_local Node* waiting = nullptr;

// The pointer to the node of `comm`, or to the end of its list. The caller holds the mutex.
Node** Find(Comm comm) {
  Node** at = &lists[reinterpret_cast<uintptr_t>(comm) / 64 % kLists];
  while (*at != nullptr && (*at)->comm != comm) at = &(*at)->next;
  return at;
}

// Without memory, a communicator has no name, and calls after a revocation return the error of
// libinccl.
Node* NewNode(Comm comm) {
  auto* const node = static_cast<Node*>(calloc(1, sizeof(Node)));
  if (node != nullptr) node->comm = comm;
  return node;
}

void Add(Node* node) {
  Forget(node->comm);
  pthread_mutex_lock(&mutex);
  *Find(node->comm) = node;
  if (owner == 0) (void)atexit(LeaveAtExit);
  owner = getpid();
  pthread_mutex_unlock(&mutex);
  TellPolicy(node->comm, node->name);
}

// For a rank that makes no more calls. A communicator whose rank still is in a call cannot leave in
// order: then the end of the process tells its peers.
constexpr time_t kLeaveSeconds = 1;

void* Leave(void* node) {
  const Library* const library = FindLibrary();
  (void)library->comm_destroy(static_cast<Node*>(node)->comm);
  return nullptr;
}

// Takes all communicators out of the lists. Those that have failed, or are not made yet, stay.
Node* TakeLeaving() {
  const Library* const library = FindLibrary();
  Node* leaving = nullptr;
  for (Node*& list : lists) {
    while (list != nullptr) {
      Node* const node = list;
      list = node->next;
      ccl_result_t state = CCL_SUCCESS;
      if (library->comm_get_async_error(node->comm, &state) != CCL_SUCCESS) continue;
      if (state != CCL_SUCCESS && !(state == CCL_IN_PROGRESS && node->finalized)) continue;
      node->next = leaving;
      leaving = node;
    }
  }
  return leaving;
}

}  // namespace

void LeaveAtExit() {
  if (getpid() != owner) return;  // the child of a fork
  timespec limit{};
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += kLeaveSeconds;
  if (pthread_mutex_timedlock(&mutex, &limit) != 0) return;
  Node* leaving = TakeLeaving();
  pthread_mutex_unlock(&mutex);
  Node* started = nullptr;
  while (leaving != nullptr) {
    Node* const node = leaving;
    leaving = node->next;
    if (pthread_create(&node->leaving, nullptr, Leave, node) != 0) continue;
    node->next = started;
    started = node;
  }
  for (; started != nullptr; started = started->next) {
    if (started->finalized) {
      (void)pthread_join(started->leaving, nullptr);
    } else {
      (void)pthread_timedjoin_np(started->leaving, nullptr, &limit);
    }
  }
}

void Finalized(Comm comm) {
  pthread_mutex_lock(&mutex);
  if (Node* const node = *Find(comm); node != nullptr) node->finalized = true;
  pthread_mutex_unlock(&mutex);
}

void Created(Comm* slot, const char* name) {
  const bool exists = !InGroup() || *slot != nullptr;
  Node* const node = NewNode(exists ? *slot : nullptr);
  if (node == nullptr) return;
  snprintf(node->name, sizeof node->name, "%s", name);
  if (exists) {
    Add(node);
    return;
  }
  node->slot = slot;
  node->next = waiting;
  waiting = node;
}

void GroupEnded(bool success) {
  while (waiting != nullptr) {
    Node* const node = waiting;
    waiting = node->next;
    node->next = nullptr;
    if (success) node->comm = *node->slot;
    // NULL: a split without a colour.
    if (node->comm != nullptr) {
      Add(node);
    } else {
      free(node);
    }
  }
}

void Revoked(Comm comm) {
  pthread_mutex_lock(&mutex);
  Node** const at = Find(comm);
  if (*at == nullptr) *at = NewNode(comm);
  if (*at != nullptr) (*at)->revoked = true;
  pthread_mutex_unlock(&mutex);
}

bool IsRevoked(Comm comm) {
  pthread_mutex_lock(&mutex);
  const Node* const node = *Find(comm);
  const bool revoked = node != nullptr && node->revoked;
  pthread_mutex_unlock(&mutex);
  return revoked;
}

void NameOf(Comm comm, char (&name)[kNameBytes]) {
  pthread_mutex_lock(&mutex);
  const Node* const node = *Find(comm);
  snprintf(name, sizeof name, "%s", node == nullptr ? "" : node->name);
  pthread_mutex_unlock(&mutex);
}

void Forget(Comm comm) {
  pthread_mutex_lock(&mutex);
  Node** const at = Find(comm);
  Node* const node = *at;
  if (node != nullptr) *at = node->next;
  pthread_mutex_unlock(&mutex);
  free(node);
}

ResultCode FromCallError(Comm comm, ccl_result_t result) {
  const ResultCode own = FromError(result);
  return result == CCL_REMOTE_ERROR && IsRevoked(comm) ? CCL_INVALID_USAGE : own;
}

ResultCode FromState(Comm comm, ccl_result_t state) {
  if (state == CCL_SUCCESS || state == CCL_IN_PROGRESS) return state;
  if (state == CCL_REMOTE_ERROR && IsRevoked(comm)) return CCL_SUCCESS;
  return FromErrorOf(comm, state);
}

}  // namespace inccl::nccl

// Creates, divides, queries and ends communicators.

namespace inccl::nccl {
namespace {

void TellVersion(const Library& library) {
  static bool told = false;
  if (DebugLevel() == Level::kNone || __atomic_exchange_n(&told, true, __ATOMIC_RELAXED)) return;
  int version = 0;
  (void)library.get_version(&version);
  char text[64];
  const int reported = ReportedVersion();
  snprintf(text, sizeof text, "INCCL version %d.%d.%d (NCCL %d.%d.%d API)", version / 10000,
           version / 100 % 100, version % 100, reported / 10000, reported / 100 % 100,
           reported % 100);
  PrintPlain(text);
}

ResultCode Init(const char* function, Comm* comm, int nranks, const UniqueId& id, int rank,
                const Config* config) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (comm != nullptr) *comm = nullptr;
  ResultCode result = CheckPolicy();
  if (result == CCL_SUCCESS) result = LookForDevices();
  OwnConfig own;
  if (result == CCL_SUCCESS) result = Convert(config, &own);
  if (result != CCL_SUCCESS) return Fail(result);
  if (rank == 0) TellVersion(*library);
  ccl_unique_id_t same;
  memcpy(&same, &id, sizeof same);
  result = From(library->comm_init_rank_config(comm, nranks, same, rank, &own.config));
  if (result != CCL_SUCCESS && result != CCL_IN_PROGRESS) return result;
  Created(comm, own.name);
  if (result == CCL_IN_PROGRESS && InGroup()) {
    ProgressesAfterGroup();
    return CCL_SUCCESS;
  }
  if (result == CCL_SUCCESS && !InGroup()) {
    Info("%s comm %p rank %d nranks %d - Init COMPLETE", function, static_cast<void*>(*comm), rank,
         nranks);
  }
  return result;
}

// After a split or shrink: without a configuration the new communicator has the name of the old
// one.
void CreatedFrom(ResultCode result, Comm parent, Comm* newcomm, const Config* config,
                 const OwnConfig& own) {
  if (result != CCL_SUCCESS && result != CCL_IN_PROGRESS) return;
  if (!InGroup() && *newcomm == nullptr) return;  // a split without a colour
  char name[kNameBytes];
  NameOf(parent, name);
  Created(newcomm, config == nullptr ? name : own.name);
}

ccl_result_t WaitUntilSettled(const Library& library, Comm comm) {
  ccl_result_t state = CCL_IN_PROGRESS;
  while (state == CCL_IN_PROGRESS) {
    const ccl_result_t result = library.comm_get_async_error(comm, &state);
    if (result != CCL_SUCCESS) return result;
    if (state == CCL_IN_PROGRESS) usleep(500);
  }
  return state;
}

// A revoked communicator of libinccl can only shrink. So its ranks, none of which is excluded,
// first make another one, and split that.
ResultCode SplitRevoked(const Library& library, Comm comm, int color, int key, Comm* newcomm,
                        const ccl_config_t* config) {
  if (InGroup()) {
    Warn("ncclCommSplit: in a group, a revoked communicator cannot be split");
    return Fail(CCL_INVALID_USAGE);
  }
  if (newcomm == nullptr) return From(library.comm_split(comm, color, key, nullptr, config));
  *newcomm = nullptr;
  Comm all = nullptr;
  ccl_result_t result = library.comm_shrink(comm, nullptr, 0, &all, config, CCL_SHRINK_ABORT);
  if (result == CCL_SUCCESS || result == CCL_IN_PROGRESS) {
    result = WaitUntilSettled(library, all);
    if (result == CCL_SUCCESS) result = library.comm_split(all, color, key, newcomm, nullptr);
    if (result == CCL_IN_PROGRESS) result = WaitUntilSettled(library, all);
  }
  const ResultCode own = result == CCL_SUCCESS ? CCL_SUCCESS : FromErrorOf(all, result);
  if (all != nullptr) (void)library.comm_destroy(all);
  return own;
}

}  // namespace
}  // namespace inccl::nccl

using inccl::nccl::Comm;
using inccl::nccl::Config;
using inccl::nccl::Fail;
using inccl::nccl::FindLibrary;
using inccl::nccl::From;
using inccl::nccl::FromCall;
using inccl::nccl::Library;
using inccl::nccl::OwnConfig;
using inccl::nccl::ResultCode;
using inccl::nccl::UniqueId;
using inccl::nccl::Warn;

INCCL_NCCL_EXPORT(int, GetUniqueId, (UniqueId * id)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return From(library->get_unique_id(reinterpret_cast<ccl_unique_id_t*>(id)));
}

INCCL_NCCL_EXPORT(int, CommInitRank, (Comm * comm, int nranks, UniqueId id, int rank)) {
  return inccl::nccl::Init("ncclCommInitRank", comm, nranks, id, rank, nullptr);
}

INCCL_NCCL_EXPORT(int, CommInitRankConfig,
                  (Comm * comm, int nranks, UniqueId id, int rank, Config* config)) {
  return inccl::nccl::Init("ncclCommInitRankConfig", comm, nranks, id, rank, config);
}

// Several ids only spread the load of joining; the first one suffices.
INCCL_NCCL_EXPORT(int, CommInitRankScalable,
                  (Comm * comm, int nranks, int rank, int ids, UniqueId* id, Config* config)) {
  if (ids < 1 || ids > nranks || id == nullptr) {
    Warn("ncclCommInitRankScalable: %d ids for %d ranks", ids, nranks);
    return Fail(CCL_INVALID_ARGUMENT);
  }
  return inccl::nccl::Init("ncclCommInitRankScalable", comm, nranks, *id, rank, config);
}

INCCL_NCCL_EXPORT(int, CommInitAll, (Comm * comms, int count, const int* devices)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  ResultCode result = inccl::nccl::CheckPolicy();
  if (result == CCL_SUCCESS) result = inccl::nccl::LookForDevices();
  if (result != CCL_SUCCESS) return result;
  inccl::nccl::TellVersion(*library);
  constexpr int kMostDevices = 4096;
  static int first_devices[kMostDevices];
  if (!__atomic_load_n(&inccl::nccl::devices_found, __ATOMIC_RELAXED)) {
    // The ranks are on the host, whatever the caller calls its devices.
    devices = nullptr;
  } else if (devices == nullptr && count <= kMostDevices) {
    for (int i = 0; i < count; ++i) __atomic_store_n(&first_devices[i], i, __ATOMIC_RELAXED);
    devices = first_devices;
  }
  result = From(library->comm_init_all(comms, count, devices));
  for (int i = 0; result == CCL_SUCCESS && i < count; ++i) inccl::nccl::Created(&comms[i], "");
  return result;
}

INCCL_NCCL_EXPORT(int, CommSplit, (Comm comm, int color, int key, Comm* newcomm, Config* config)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  OwnConfig own;
  ResultCode result = inccl::nccl::Convert(config, &own);
  if (result != CCL_SUCCESS) return Fail(result);
  const ccl_config_t* const given = config == nullptr ? nullptr : &own.config;
  result = inccl::nccl::IsRevoked(comm)
               ? inccl::nccl::SplitRevoked(*library, comm, color, key, newcomm, given)
               : From(library->comm_split(comm, color, key, newcomm, given));
  inccl::nccl::CreatedFrom(result, comm, newcomm, config, own);
  return result;
}

INCCL_NCCL_EXPORT(int, CommShrink,
                  (Comm comm, int* excluded, int count, Comm* newcomm, Config* config, int flags)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (excluded == nullptr || count <= 0) {
    Warn("ncclCommShrink: excludeRanksList %p, excludeRanksCount %d: no rank is excluded",
         static_cast<void*>(excluded), count);
    return Fail(CCL_INVALID_ARGUMENT);
  }
  OwnConfig own;
  ResultCode result = inccl::nccl::Convert(config, &own);
  if (result != CCL_SUCCESS) return Fail(result);
  result = From(library->comm_shrink(comm, excluded, count, newcomm,
                                     config == nullptr ? nullptr : &own.config, flags));
  inccl::nccl::CreatedFrom(result, comm, newcomm, config, own);
  return result;
}

INCCL_NCCL_EXPORT(int, CommGetUniqueId, (Comm comm, UniqueId* id)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return From(library->comm_get_unique_id(comm, reinterpret_cast<ccl_unique_id_t*>(id)));
}

INCCL_NCCL_EXPORT(int, CommGrow,
                  (Comm comm, int nranks, const UniqueId* id, int rank, Comm* newcomm,
                   Config* config)) {
  if (comm == nullptr && id != nullptr) {
    return inccl::nccl::Init("ncclCommGrow", newcomm, nranks, *id, rank, config);
  }
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  OwnConfig own;
  ResultCode result = inccl::nccl::Convert(config, &own);
  if (result != CCL_SUCCESS) return Fail(result);
  result = From(library->comm_grow(comm, nranks, reinterpret_cast<const ccl_unique_id_t*>(id), rank,
                                   newcomm, config == nullptr ? nullptr : &own.config));
  inccl::nccl::CreatedFrom(result, comm, newcomm, config, own);
  return result;
}

INCCL_NCCL_EXPORT(int, CommRevoke, (Comm comm, int flags)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (flags != 0) {
    Warn("ncclCommRevoke: flags %d must be 0", flags);
    return CCL_INVALID_ARGUMENT;
  }
  const ResultCode result = From(library->comm_revoke(comm));
  if (result == CCL_SUCCESS) inccl::nccl::Revoked(comm);
  return result;
}

INCCL_NCCL_EXPORT(int, CommFinalize, (Comm comm)) {
  if (comm == nullptr) return CCL_SUCCESS;
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (inccl::nccl::IsRevoked(comm)) {
    Warn("ncclCommFinalize: the communicator has been revoked");
    return CCL_INVALID_USAGE;
  }
  const ResultCode result = From(library->comm_finalize(comm));
  if (result == CCL_SUCCESS || result == CCL_IN_PROGRESS) inccl::nccl::Finalized(comm);
  if (result != CCL_INVALID_USAGE) return result;
  // Either the communicator has failed, or this is the second call.
  ccl_result_t state = CCL_SUCCESS;
  const bool failed =
      library->comm_get_async_error(comm, &state) == CCL_SUCCESS && state == CCL_INVALID_USAGE;
  return failed ? CCL_INVALID_USAGE : CCL_INVALID_ARGUMENT;
}

INCCL_NCCL_EXPORT(int, CommDestroy, (Comm comm)) {
  if (comm == nullptr) return CCL_SUCCESS;
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  inccl::nccl::Forget(comm);
  const ResultCode result = From(library->comm_destroy(comm));
  if (result == CCL_SUCCESS) inccl::nccl::DropStatsOf(comm);
  return result;
}

INCCL_NCCL_EXPORT(int, CommAbort, (Comm comm)) {
  if (comm == nullptr) return CCL_SUCCESS;
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  inccl::nccl::Forget(comm);
  const ResultCode result = From(library->comm_abort(comm));
  if (result == CCL_SUCCESS) inccl::nccl::DropStatsOf(comm);
  return result;
}

INCCL_NCCL_EXPORT(int, CommGetAsyncError, (Comm comm, int* error)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  ccl_result_t state = CCL_SUCCESS;
  const ResultCode result =
      From(library->comm_get_async_error(comm, error == nullptr ? nullptr : &state));
  if (result == CCL_SUCCESS) *error = inccl::nccl::FromState(comm, state);
  return result;
}

INCCL_NCCL_EXPORT(int, CommCount, (const Comm comm, int* count)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return From(library->comm_count(comm, count));
}

INCCL_NCCL_EXPORT(int, CommUserRank, (const Comm comm, int* rank)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return From(library->comm_user_rank(comm, rank));
}

// Without devices 0, which a caller may pass on to a stand-in for CUDA.
INCCL_NCCL_EXPORT(int, CommCuDevice, (const Comm comm, int* device)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  const ResultCode result = From(library->comm_device(comm, device));
  if (result == CCL_SUCCESS && *device < 0) *device = 0;
  return result;
}
