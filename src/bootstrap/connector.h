// SPDX-License-Identifier: Apache-2.0
//
// Makes connections with peers: those that this rank begins and those that it accepts. Only Poll
// waits, and only as long as its caller says. One thread at a time.
#ifndef INCCL_BOOTSTRAP_CONNECTOR_H_
#define INCCL_BOOTSTRAP_CONNECTOR_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/connect_peers.h"
#include "bootstrap/link_attempt.h"
#include "bootstrap/pending_connections.h"

namespace inccl::bootstrap {

class Connector {
 public:
  // A connection that is made, or the reason why it cannot be.
  struct Ended {
    LinkPlan plan;
    Result<Link> link;
  };

  // `terms` outlives it.
  Connector(const ConnectTerms* terms, std::vector<Listener> listeners);

  // Makes this connection: connects to a lower rank, awaits a higher one.
  void Begin(const LinkPlan& plan);
  // The peers that lack a connection which has begun, each once.
  std::vector<int> Missing() const;
  // Why the first connection that has failed cannot be made; it names the peer.
  Status Failure() const;
  // "; peer P: A: E" of an address that could not be connected to, or "".
  std::string LastFailure() const;
  // When Poll has something to do, unless a socket becomes ready before.
  Time NextTime() const;
  // Does what is due, waits for the sockets until `until` at most, and handles those that are
  // ready. Returns 0 only if poll has found none; an error is that of ConnectTerms::check.
  Result<int> Poll(Time until);
  // The connections that have ended since the last call.
  std::vector<Ended> TakeEnded();
  void MoveTo(std::vector<UniqueFd>* open);

 private:
  struct Entrance {
    Listener listener;
    PendingConnections pending;
    Time again_at = 0;       // not before then: the process lacked descriptors
    Time failing_since = 0;  // 0: it does not
  };
  struct Entry {
    explicit Entry(const ConnectTerms* terms, LinkPlan plan) : attempt(terms, std::move(plan)) {}
    bool ended() const { return !failure.ok() || attempt.done(); }

    LinkAttempt attempt;
    Status failure;
  };

  bool Accepts() const;
  int AcceptFrom(Entrance* entrance);
  void FailAwaited(const Entrance& entrance, int error);
  std::string Promote(const Entrance& entrance, const ServerHandshake& handshake, UniqueFd* fd);

  const ConnectTerms* const terms_;
  std::map<std::pair<int, int>, Entry> entries_;  // by peer and number
  std::vector<Entrance> entrances_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_CONNECTOR_H_
