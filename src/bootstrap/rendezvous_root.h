// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of one communicator meet: gathers a registration from each, checks that they
// agree, gives all of them the table, and says go when every rank has its mesh. Whatever goes wrong
// is told to every rank that is there, and to those that come later. Serves one communicator.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"

namespace inccl::bootstrap {

struct RootOptions {
  HandshakeTerms terms;
  std::vector<UniqueFd> listeners;
  bool same_uid_only = false;     // listeners are unix sockets, other users are refused
  bool any_namespace = false;     // else, with same_uid_only, other containers are, too
  Time lifetime = 240 * kSecond;  // from the first registration on
  // Not null: the ranks come at once, or never. The lifetime counts from the start, and a failure
  // is told to late ones for a moment only. True: nobody wants the communicator any more.
  std::shared_ptr<const std::atomic<bool>> abandoned = nullptr;
  Time handshake_limit = 2 * kSecond;  // for a connection to authenticate and register
  int nranks = 0;                      // how many are expected; 0: the first to come will say
  Time patience = kPatience;           // before a log line says who is missing
};

// On a thread of its own, which ends by itself: when the communicator is complete, or when all
// ranks have been told what went wrong, or at the end of the lifetime.
Status StartRoot(RootOptions options);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_
