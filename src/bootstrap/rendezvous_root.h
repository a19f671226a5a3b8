// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of one communicator. It gathers a registration from each rank, checks that they
// agree, sends all of them the table of ranks, and sends "go" when every rank has its mesh. It
// reports a failure to every rank that is connected and to those that come later.
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
#include "bootstrap/address_filter.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"

namespace inccl::bootstrap {

struct RootOptions {
  HandshakeTerms terms;
  std::vector<UniqueFd> listeners;
  AddressFilter sources;          // of TCP connections; others are refused
  bool same_uid_only = false;     // listeners are unix sockets; refuse other users
  bool any_namespace = false;     // false with same_uid_only: refuse other containers, too
  Time lifetime = 240 * kSecond;  // from the first registration on
  // If not null, the ranks come at once or never: the lifetime counts from the start, and late
  // ranks learn of a failure only for a short time. The creator sets it to true when it does not
  // want the communicator any more.
  std::shared_ptr<const std::atomic<bool>> abandoned = nullptr;
  Time handshake_limit = 2 * kSecond;  // for a connection to authenticate and register
  int nranks = 0;                      // number of ranks; 0: the first registration says it
  Time patience = kPatience;           // then a log line names the missing ranks
};

// Starts the thread of the rendezvous. It ends when the communicator is complete, when all ranks
// have received the failure, or at the end of the lifetime.
Status StartRoot(RootOptions options);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_
