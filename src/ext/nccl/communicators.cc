// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/communicators.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ext/nccl/group.h"
#include "ext/nccl/policy.h"

namespace inccl::nccl {
namespace {

struct Node {
  Comm comm;
  Comm* slot;  // of a node that waits for the end of a group
  bool revoked;
  char name[kNameBytes];
  Node* next;
};

constexpr size_t kLists = 256;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Node* lists[kLists];

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
  pthread_mutex_unlock(&mutex);
  TellPolicy(node->comm, node->name);
}

}  // namespace

void Created(Comm* slot, const char* name) {
  Node* const node = NewNode(InGroup() ? nullptr : *slot);
  if (node == nullptr) return;
  snprintf(node->name, sizeof node->name, "%s", name);
  if (!InGroup()) {
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

}  // namespace inccl::nccl
