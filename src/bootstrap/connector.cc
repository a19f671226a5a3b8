// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/connector.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/fault_point.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kServerLimit = 2 * kSecond;
constexpr Time kEntrancePause = 2 * kMillisecond;
constexpr Time kAcceptGrace = kSecond;  // for other threads to close descriptors
constexpr size_t kMostAcceptsAtOnce = 64;

Status Named(const LinkPlan& plan, const Status& status) {
  return {status.code(), fmt::format("peer {}: {}", plan.peer_name, status.message())};
}

}  // namespace

Connector::Connector(const ConnectTerms* terms, std::vector<Listener> listeners) : terms_(terms) {
  for (Listener& listener : listeners) {
    PendingConnections pending({.name = fmt::format("rank {}/{}:", terms->rank, terms->nranks),
                                .handshake = [terms](const Nonce&) { return &terms->handshake; },
                                .sources = terms->sources,
                                .server = static_cast<uint32_t>(terms->rank),
                                .is_unix = listener.is_unix,
                                .limit = kServerLimit});
    pending.ExpectRanks(terms->expected + 1);
    if (terms->watch) terms->watch(listener.fd.get());
    entrances_.push_back({.listener = std::move(listener), .pending = std::move(pending)});
  }
}

void Connector::Begin(const LinkPlan& plan) {
  const std::pair<int, int> key{plan.peer, plan.connection};
  entries_.try_emplace(key, terms_, plan);
}

std::vector<int> Connector::Missing() const {
  std::vector<int> missing;
  for (const auto& [key, entry] : entries_) {
    if (entry.attempt.done() || (!missing.empty() && missing.back() == key.first)) continue;
    missing.push_back(key.first);
  }
  return missing;
}

Status Connector::Failure() const {
  const auto failed = std::find_if(entries_.begin(), entries_.end(),
                                   [](const auto& entry) { return !entry.second.failure.ok(); });
  if (failed == entries_.end()) return Status::Ok();
  return Named(failed->second.attempt.plan(), failed->second.failure);
}

std::string Connector::LastFailure() const {
  for (const auto& [key, entry] : entries_) {
    const LinkAttempt& attempt = entry.attempt;
    if (attempt.done() || attempt.last_failure().empty()) continue;
    return fmt::format("; peer {}: {}", attempt.plan().peer_name, attempt.last_failure());
  }
  return "";
}

Time Connector::NextTime() const {
  Time next = kNever;
  for (const auto& [key, entry] : entries_) {
    if (!entry.ended()) next = std::min(next, entry.attempt.NextTime());
  }
  for (const Entrance& entrance : entrances_) {
    next = std::min(next, entrance.pending.NextDeadline());
    if (entrance.again_at != 0) next = std::min(next, entrance.again_at);
  }
  return next;
}

// While this rank awaits no peer, connections lie in the listener's queue: where it listens for
// long, strangers cost it nothing.
bool Connector::Accepts() const {
  if (!terms_->patient) return true;
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return !entry.second.ended() && entry.first.first > terms_->rank;
  });
}

Result<int> Connector::Poll(Time until) {
  const Time now = SystemClock().Now();
  for (auto& [key, entry] : entries_) {
    if (!entry.ended()) entry.failure = entry.attempt.Start(now);
  }
  std::vector<pollfd> fds;
  std::vector<Entry*> polled;  // by the first entries of `fds`
  for (auto& [key, entry] : entries_) {
    const pollfd awaited = entry.attempt.Awaited();
    if (entry.ended() || awaited.fd < 0) continue;
    fds.push_back(awaited);
    polled.push_back(&entry);
  }
  const bool accepts = Accepts();
  std::vector<size_t> listeners;  // indices in `fds`; the pending connections follow
  for (Entrance& entrance : entrances_) {
    listeners.push_back(fds.size());
    const bool listens = accepts && now >= entrance.again_at;
    fds.push_back(
        {.fd = listens ? entrance.listener.fd.get() : -1, .events = POLLIN, .revents = 0});
    if (listens) entrance.again_at = 0;
    entrance.pending.AppendTo(&fds);
  }
  fds.push_back({.fd = terms_->check_fd, .events = POLLIN, .revents = 0});
  const bool waits = !entries_.empty() && !Missing().empty() && Failure().ok();
  const int ready = PollUntil(fds, waits ? std::min(until, NextTime()) : 0);
  // A poll that fails (EINTR, ENOMEM) says nothing of the sockets: they count as not handled.
  int handled = ready < 0 ? 1 : 0;
  if (ready > 0) {
    if (fds.back().revents != 0) {
      if (Status status = terms_->check(Missing()); !status.ok()) {
        return Status(status.code(), status.message() + LastFailure());
      }
    }
    for (size_t i = 0; i < polled.size(); ++i) {
      if (fds[i].revents == 0) continue;
      polled[i]->failure = polled[i]->attempt.Step();
      ++handled;
    }
    for (size_t i = 0; i < entrances_.size(); ++i) {
      Entrance& entrance = entrances_[i];
      const pollfd* const first = fds.data() + listeners[i];
      handled += static_cast<int>(
          entrance.pending.Advance(first + 1, [&](const ServerHandshake& handshake, UniqueFd* fd) {
            return Promote(entrance, handshake, fd);
          }));
      if (first->revents != 0) {
        handled += AcceptFrom(&entrance);
      } else if (first->fd >= 0) {
        entrance.failing_since = 0;
      }
    }
  }
  // Last, since a hello may have come while this rank did something else.
  for (Entrance& entrance : entrances_) {
    if (ready >= 0) entrance.pending.Expire(now);
  }
  return handled;
}

int Connector::AcceptFrom(Entrance* entrance) {
  const size_t most = std::max(kMostAcceptsAtOnce, entries_.size());
  for (size_t i = 0; i < most; ++i) {
    SocketAddress address;
    int error = 0;
    UniqueFd fd = Accept(entrance->listener.fd.get(), &address, &error);
    if (error != 0 && error != EAGAIN) {
      const Time now = SystemClock().Now();
      if (entrance->failing_since == 0) entrance->failing_since = now;
      if (terms_->patient && now - entrance->failing_since > kAcceptGrace) {
        FailAwaited(*entrance, error);
      }
      entrance->again_at = now + kEntrancePause;
      return static_cast<int>(i);
    }
    entrance->failing_since = 0;
    if (error == EAGAIN) return static_cast<int>(i);
    FAULT_POINT("mesh.after_accept");
    if (terms_->watch) terms_->watch(fd.get());
    entrance->pending.Add(std::move(fd), address);
  }
  return static_cast<int>(most);
}

// Other threads have not closed descriptors in time, so no peer can come in.
void Connector::FailAwaited(const Entrance& entrance, int error) {
  for (auto& [key, entry] : entries_) {
    const LinkAttempt& attempt = entry.attempt;
    if (entry.ended() || attempt.is_unix() != entrance.listener.is_unix) continue;
    if (attempt.plan().peer > terms_->rank) entry.failure = SystemErrorErrno("accept", error);
  }
}

// Takes over the connection of a peer, or returns why not.
std::string Connector::Promote(const Entrance& entrance, const ServerHandshake& handshake,
                               UniqueFd* fd) {
  constexpr const char* kNotAwaited = "no such rank is awaited";
  const std::pair<int, int> key{static_cast<int>(handshake.rank()), handshake.connection()};
  auto found = entries_.find(key);
  const bool unasked = found == entries_.end();
  if (unasked) {
    if (!terms_->expects) return kNotAwaited;
    std::optional<LinkPlan> plan = terms_->expects(key.first, key.second);
    if (!plan.has_value()) return kNotAwaited;
    found = entries_.try_emplace(key, terms_, *std::move(plan)).first;
  }
  if (!found->second.failure.ok()) return kNotAwaited;
  std::string why = found->second.attempt.Accept(handshake, entrance.listener.is_unix, fd);
  if (unasked && !why.empty()) entries_.erase(found);
  return why;
}

std::vector<Connector::Ended> Connector::TakeEnded() {
  std::vector<Ended> ended;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    if (!entry.ended()) {
      ++at;
      continue;
    }
    if (entry.failure.ok()) {
      ended.push_back({entry.attempt.plan(), entry.attempt.TakeLink()});
    } else {
      ended.push_back({entry.attempt.plan(), entry.failure});
    }
    at = entries_.erase(at);
  }
  return ended;
}

void Connector::MoveTo(std::vector<UniqueFd>* open) {
  for (auto& [key, entry] : entries_) open->push_back(entry.attempt.TakeFd());
  for (Entrance& entrance : entrances_) {
    open->push_back(std::move(entrance.listener.fd));
    entrance.pending.MoveTo(open);
  }
}

}  // namespace inccl::bootstrap
