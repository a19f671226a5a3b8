// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/communicators.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ext/nccl/group.h"
#include "ext/nccl/library.h"
#include "ext/nccl/policy.h"

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
