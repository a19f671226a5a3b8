// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/connect_peers.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "base/fault_point.h"
#include "bootstrap/gathering.h"
#include "bootstrap/link_attempt.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kServerLimit = 2 * kSecond;
constexpr Time kPause = 2 * kMillisecond;
constexpr size_t kMostAcceptsAtOnce = 64;

class Connector {
 public:
  Connector(const ConnectTerms& terms, std::vector<Listener> listeners);

  Status Run();
  void MoveTo(std::vector<Link>* links);
  void MoveTo(std::vector<UniqueFd>* open);

 private:
  struct Entrance {
    Listener listener;
    PendingConnections pending;
  };

  std::vector<int> Missing() const;
  Status Timeout(const std::vector<int>& missing) const;
  // "; peer P: A: E" of an address that could not be connected to, or "".
  std::string LastFailure() const;
  Status Poll();
  Time NextTime() const;
  void AcceptFrom(Entrance* entrance);
  std::string Promote(const Entrance& entrance, const ServerHandshake& handshake, UniqueFd* fd);

  const ConnectTerms& terms_;
  std::vector<LinkAttempt> attempts_;  // by terms_.plans
  std::map<std::pair<int, int>, size_t> number_of_;
  std::vector<Entrance> entrances_;
};

Connector::Connector(const ConnectTerms& terms, std::vector<Listener> listeners) : terms_(terms) {
  for (const LinkPlan& plan : terms.plans) {
    number_of_[{plan.peer, plan.connection}] = attempts_.size();
    attempts_.emplace_back(&terms, &plan);
  }
  for (Listener& listener : listeners) {
    PendingConnections pending({.name = fmt::format("rank {}/{}:", terms.rank, terms.nranks),
                                .handshake = &terms.handshake,
                                .sources = terms.sources,
                                .server = static_cast<uint32_t>(terms.rank),
                                .same_uid_only = listener.is_unix,
                                .any_namespace = terms.any_namespace,
                                .limit = kServerLimit});
    pending.ExpectRanks(attempts_.size() + 1);
    entrances_.push_back({.listener = std::move(listener), .pending = std::move(pending)});
  }
}

Status Connector::Run() {
  while (true) {
    std::vector<int> missing = Missing();
    if (missing.empty()) return Status::Ok();
    if (Status status = terms_.check(missing); !status.ok()) {
      return {status.code(), status.message() + LastFailure()};
    }
    const Time now = SystemClock().Now();
    if (now >= terms_.deadline) return Timeout(missing);
    for (Entrance& entrance : entrances_) entrance.pending.Expire(now);
    for (LinkAttempt& attempt : attempts_) {
      if (Status status = attempt.Start(now); !status.ok()) return status;
    }
    if (Missing().empty()) return Status::Ok();
    if (Status status = Poll(); !status.ok()) return status;
  }
}

void Connector::MoveTo(std::vector<Link>* links) {
  for (LinkAttempt& attempt : attempts_) links->push_back(attempt.TakeLink());
}

void Connector::MoveTo(std::vector<UniqueFd>* open) {
  for (LinkAttempt& attempt : attempts_) open->push_back(attempt.TakeFd());
  for (Entrance& entrance : entrances_) {
    open->push_back(std::move(entrance.listener.fd));
    entrance.pending.MoveTo(open);
  }
}

// The peers that lack a connection, each once.
std::vector<int> Connector::Missing() const {
  std::vector<int> missing;
  for (const LinkAttempt& attempt : attempts_) {
    const int peer = attempt.plan().peer;
    if (!attempt.done() && (missing.empty() || missing.back() != peer)) missing.push_back(peer);
  }
  return missing;
}

Status Connector::Timeout(const std::vector<int>& missing) const {
  return TimeoutError(fmt::format("no connection with {} within {} ms{}", ListRanks(missing),
                                  terms_.timeout_ms, LastFailure()));
}

std::string Connector::LastFailure() const {
  const auto failed =
      std::find_if(attempts_.begin(), attempts_.end(), [](const LinkAttempt& attempt) {
        return !attempt.done() && !attempt.last_failure().empty();
      });
  if (failed == attempts_.end()) return "";
  return fmt::format("; peer {}: {}", failed->plan().peer_name, failed->last_failure());
}

Time Connector::NextTime() const {
  Time next = std::min(terms_.deadline, SystemClock().Now() + kCancelLag);
  for (const LinkAttempt& attempt : attempts_) next = std::min(next, attempt.NextTime());
  for (const Entrance& entrance : entrances_) {
    next = std::min(next, entrance.pending.NextDeadline());
  }
  return next;
}

Status Connector::Poll() {
  std::vector<pollfd> fds;
  for (const LinkAttempt& attempt : attempts_) fds.push_back(attempt.Awaited());
  std::vector<size_t> listeners;  // indices in `fds`; the pending connections follow
  for (const Entrance& entrance : entrances_) {
    listeners.push_back(fds.size());
    fds.push_back({.fd = entrance.listener.fd.get(), .events = POLLIN, .revents = 0});
    entrance.pending.AppendTo(&fds);
  }
  fds.push_back({.fd = terms_.check_fd, .events = POLLIN, .revents = 0});
  if (PollUntil(fds, NextTime()) <= 0) return Status::Ok();

  if (fds.back().revents != 0) {
    if (Status status = terms_.check(Missing()); !status.ok()) {
      return {status.code(), status.message() + LastFailure()};
    }
  }
  for (size_t i = 0; i < attempts_.size(); ++i) {
    if (fds[i].revents == 0) continue;
    if (Status status = attempts_[i].Step(); !status.ok()) return status;
  }
  for (size_t i = 0; i < entrances_.size(); ++i) {
    Entrance& entrance = entrances_[i];
    const pollfd* const first = fds.data() + listeners[i];
    entrance.pending.Advance(first + 1, [&](const ServerHandshake& handshake, UniqueFd* fd) {
      return Promote(entrance, handshake, fd);
    });
    if (first->revents != 0) AcceptFrom(&entrance);
  }
  return Status::Ok();
}

void Connector::AcceptFrom(Entrance* entrance) {
  for (size_t i = 0; i < std::max(kMostAcceptsAtOnce, attempts_.size()); ++i) {
    SocketAddress address;
    int error = 0;
    UniqueFd fd = Accept(entrance->listener.fd.get(), &address, &error);
    if (error == EAGAIN) return;
    if (error != 0) {
      // Other threads may free descriptors; do not spin until then.
      SleepUntil(SystemClock().Now() + kPause);
      return;
    }
    FAULT_POINT("mesh.after_accept");
    entrance->pending.Add(std::move(fd), address);
  }
}

// Takes over the connection of a peer that this rank waits for, or returns why not.
std::string Connector::Promote(const Entrance& entrance, const ServerHandshake& handshake,
                               UniqueFd* fd) {
  const auto found = number_of_.find({static_cast<int>(handshake.rank()), handshake.connection()});
  if (found == number_of_.end()) return "no such rank is awaited";
  return attempts_[found->second].Accept(handshake, entrance.listener.is_unix, fd);
}

}  // namespace

Status ConnectPeers(const ConnectTerms& terms, std::vector<Listener> listeners,
                    std::vector<Link>* links, std::vector<UniqueFd>* open) {
  Connector connector(terms, std::move(listeners));
  if (Status status = connector.Run(); !status.ok()) {
    connector.MoveTo(open);
    return status;
  }
  connector.MoveTo(links);
  return Status::Ok();
}

}  // namespace inccl::bootstrap
