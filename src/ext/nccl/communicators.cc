// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/communicators.h"

#include <pthread.h>
#include <stdlib.h>

namespace inccl::nccl {
namespace {

struct Node {
  Comm comm;
  Node* next;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Node* revoked = nullptr;

// The pointer to the node of `comm`, or to the end of the list. The caller holds the mutex.
Node** Find(Comm comm) {
  Node** at = &revoked;
  while (*at != nullptr && (*at)->comm != comm) at = &(*at)->next;
  return at;
}

}  // namespace

void Revoked(Comm comm) {
  pthread_mutex_lock(&mutex);
  Node** const at = Find(comm);
  if (*at == nullptr) {
    auto* const node = static_cast<Node*>(malloc(sizeof(Node)));
    if (node != nullptr) *node = {comm, nullptr};
    *at = node;  // without memory, later calls return the error of libinccl
  }
  pthread_mutex_unlock(&mutex);
}

bool IsRevoked(Comm comm) {
  pthread_mutex_lock(&mutex);
  const bool found = *Find(comm) != nullptr;
  pthread_mutex_unlock(&mutex);
  return found;
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
