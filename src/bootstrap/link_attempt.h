// SPDX-License-Identifier: Apache-2.0
//
// One connection to a peer while it is being made.
#ifndef INCCL_BOOTSTRAP_LINK_ATTEMPT_H_
#define INCCL_BOOTSTRAP_LINK_ATTEMPT_H_

#include <poll.h>

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/connect_peers.h"
#include "bootstrap/fd_passing.h"
#include "bootstrap/handshake.h"

namespace inccl::bootstrap {

class LinkAttempt {
 public:
  // `terms` outlives the attempt. The higher rank of the pair connects.
  LinkAttempt(const ConnectTerms* terms, LinkPlan plan);

  const LinkPlan& plan() const { return plan_; }
  bool is_unix() const { return plan_.addresses.front().is_unix(); }
  bool done() const { return state_ == State::kDone; }
  // Of a failed attempt to connect; "": none has failed.
  const std::string& last_failure() const { return last_failure_; }
  // When Start has something to do, unless the socket becomes ready before.
  Time NextTime() const;
  // What to wait for; fd -1: nothing.
  pollfd Awaited() const;

  // Does what is due now. An error ends the attempt.
  Status Start(Time now);
  // The socket is ready.
  Status Step();
  // Takes over the connection that the peer has made, or returns why not. `is_unix`: its kind.
  std::string Accept(const ServerHandshake& handshake, bool is_unix, UniqueFd* fd);

  Link TakeLink();
  UniqueFd TakeFd() { return std::move(link_.fd); }

 private:
  enum class State : uint8_t {
    kAwaited,      // the peer connects to this rank
    kPausing,      // this rank connects again at `at_`
    kConnecting,   // limited by `at_`
    kHandshaking,  // limited by `at_`
    kSwapping,     // exchanging descriptors
    kDone
  };

  const SocketAddress& target() const { return plan_.addresses[address_]; }
  void Pause(Time pause);
  Status Connect();
  // The current address has failed with this errno: goes on to the next one.
  Status NextAddress(int error);
  Status CheckOwner();
  Status StepHandshake();
  Status Authenticated();
  Status Swap();

  const ConnectTerms* terms_;
  const LinkPlan plan_;
  State state_;
  Link link_;
  Time at_ = 0;
  Time unreachable_since_ = 0;  // 0: the last attempt has reached the peer
  Time lacking_since_ = 0;      // 0: the last attempt had a socket
  Time patience_ = 0;           // how long this rank waited for the last greeting
  size_t address_ = 0;          // the address to try
  bool all_refused_ = true;     // by the addresses tried in this round
  std::string last_failure_;
  ClientHandshake handshake_;
  FdReceiver receiver_;
  bool sent_ = false, received_ = false;
  int rejections_ = 0;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_LINK_ATTEMPT_H_
