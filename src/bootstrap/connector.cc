// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/connector.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/fault_point.h"
#include "bootstrap/gathering.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kClientLimit = 4 * kSecond;  // twice the server's; LimitFor
constexpr Time kPause = 2 * kMillisecond;
constexpr Time kUnreachablePause = 100 * kMillisecond;
constexpr Time kSocketGrace = kSecond;  // for other threads to close descriptors
constexpr int kMostRejections = 3;

// Whether the other end has closed the connection, with nothing left to read.
bool HasEnded(int fd) {
  std::byte next{};
  const ssize_t got = recv(fd, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

LinkAttempt::LinkAttempt(const ConnectTerms* terms, LinkPlan plan)
    : terms_(terms),
      plan_(std::move(plan)),
      state_(plan_.peer < terms->rank ? State::kPausing : State::kAwaited) {}

Time LinkAttempt::NextTime() const {
  const bool timed = state_ == State::kPausing || state_ == State::kConnecting ||
                     state_ == State::kHandshaking || (state_ == State::kSwapping && !sent_);
  return timed ? at_ : kNever;
}

pollfd LinkAttempt::Awaited() const {
  const bool idle =
      state_ == State::kAwaited || state_ == State::kPausing || state_ == State::kDone;
  const int events = state_ == State::kConnecting ? POLLOUT : POLLIN;
  return {.fd = idle ? -1 : link_.fd.get(),
          .events = static_cast<decltype(pollfd::events)>(events),
          .revents = 0};
}

Link LinkAttempt::TakeLink() {
  link_.fds = receiver_.Take();
  return std::move(link_);
}

Status LinkAttempt::Start(Time now) {
  if (now < NextTime()) return Status::Ok();
  switch (state_) {
    case State::kPausing: return Connect();
    case State::kConnecting:
    case State::kHandshaking: {
      // This thread may have been stopped while the peer answered in time.
      pollfd awaited = Awaited();
      if (poll(&awaited, 1, 0) > 0) {
        at_ = now + kClientLimit;
        return Step();
      }
      if (state_ == State::kConnecting) return NextAddress(ETIMEDOUT);
      Pause(kPause);
      return Status::Ok();
    }
    case State::kSwapping: return Swap();
    case State::kAwaited:
    case State::kDone: break;
  }
  return Status::Ok();
}

Status LinkAttempt::Step() {
  switch (state_) {
    case State::kConnecting: break;
    case State::kHandshaking: return StepHandshake();
    case State::kSwapping: return Swap();
    default: return Status::Ok();
  }
  if (const int error = PendingError(link_.fd.get()); error != 0) {
    if (!is_unix()) return NextAddress(error);
    // It had this connection in its backlog.
    if (error == ECONNRESET) return RemoteError("closed its socket (process died?)");
    return SystemErrorErrno("connect", error);
  }
  state_ = State::kHandshaking;
  unreachable_since_ = 0;
  if (terms_->patient) at_ = kNever;  // the peer may count this connection, and send on it
  if (is_unix()) {
    if (Status status = CheckOwner(); !status.ok()) return status;
  }
  return StartHandshake();
}

std::string LinkAttempt::Accept(const ServerHandshake& handshake, bool is_unix, UniqueFd* fd) {
  // A peer that has given up waiting for the reply connects again.
  const bool again = state_ == State::kDone && !is_unix && plan_.peer > terms_->rank;
  if ((state_ != State::kAwaited && !again) || this->is_unix() != is_unix ||
      handshake.nranks() != static_cast<uint32_t>(terms_->nranks)) {
    return "no such rank is awaited";
  }
  if (!is_unix) {
    const Result<ConnectionKeys> keys = handshake.Keys();
    if (!keys.ok()) return keys.status().message();
    link_.send_key = keys->from_server;
    link_.receive_key = keys->from_client;
  }
  // The kernel takes a reply to a peer that has given up, too. That peer connects again, perhaps
  // after this rank has stopped to listen if this connection counts.
  const Bytes reply = handshake.reply();
  if (HasEnded(fd->get()) || !WriteAll(fd->get(), reply))
    return "it closed before it authenticated";
  link_.fd = std::move(*fd);
  state_ = is_unix ? State::kSwapping : State::kDone;  // swaps at once, since `at_` is over
  return "";
}

void LinkAttempt::Pause(Time pause) {
  link_.fd.Reset();
  state_ = State::kPausing;
  at_ = SystemClock().Now() + pause;
}

Status LinkAttempt::NextAddress(int error) {
  last_failure_ =
      fmt::format("{}: {}", target().ToString(), SystemErrorErrno("connect", error).message());
  all_refused_ = all_refused_ && error == ECONNREFUSED;
  if (++address_ < plan_.addresses.size()) {
    Pause(0);
    return Status::Ok();
  }
  if (all_refused_ && is_unix()) {
    return RemoteError(
        "has no socket on this machine any more: its process died, or it runs on another virtual "
        "machine that was copied from a running one, as this one was; INCCL_HOSTID=machine:NAME, "
        "with another name on each, tells them apart");
  }
  if (all_refused_) {
    return RemoteError(fmt::format("does not listen any more (process died?); {}", last_failure_));
  }
  if (terms_->patient &&
      SystemClock().Now() - unreachable_since_ >= terms_->timeout_ms * kMillisecond) {
    return RemoteError(
        fmt::format("no connection within {} ms; {}", terms_->timeout_ms, last_failure_));
  }
  address_ = 0;
  all_refused_ = true;
  Pause(kUnreachablePause);
  return Status::Ok();
}

Status LinkAttempt::Connect() {
  int error = 0;
  const Time now = SystemClock().Now();
  if (unreachable_since_ == 0) unreachable_since_ = now;
  Result<UniqueFd> fd = bootstrap::Connect(target(), &error);
  if (!fd.ok()) return fd.status();
  if (IsLack(error)) {
    if (lacking_since_ == 0) lacking_since_ = now;
    last_failure_ = fmt::format("no socket to {}: {}", target().ToString(), SocketErrorText(error));
    if (terms_->patient && now - lacking_since_ > kSocketGrace) return SystemError(last_failure_);
    Pause(kUnreachablePause);
    return Status::Ok();
  }
  lacking_since_ = 0;
  if (error == EAGAIN) {  // the peer's backlog is full
    Pause(kPause);
    return Status::Ok();
  }
  if (error != 0 && (error == ECONNREFUSED || !is_unix())) return NextAddress(error);
  if (error != 0) return SystemErrorErrno("connect", error);
  FAULT_POINT("mesh.after_connect");
  link_.fd = *std::move(fd);
  state_ = State::kConnecting;
  at_ = now + LimitFor(kClientLimit, static_cast<size_t>(terms_->nranks));
  if (terms_->patient) {  // the handshake has a limit of its own
    at_ = std::min(now + kClientLimit, unreachable_since_ + terms_->timeout_ms * kMillisecond);
  }
  if (terms_->watch) terms_->watch(link_.fd.get());
  if (terms_->patient) ProbeWhenIdle(link_.fd.get());
  return Status::Ok();
}

Status LinkAttempt::CheckOwner() {
  const Result<PeerCredentials> owner = GetPeerCredentials(link_.fd.get());
  if (!owner.ok()) return owner.status();
  if (owner->uid != geteuid()) {
    return InvalidUsage(
        fmt::format("its socket belongs to uid {}, not to uid {}", owner->uid, geteuid()));
  }
  return Status::Ok();
}

Status LinkAttempt::StartHandshake() {
  Nonce nonce;
  if (Status status = FillRandom(nonce); !status.ok()) return status;
  handshake_.Start(&terms_->handshake,
                   {.rank = static_cast<uint32_t>(terms_->rank),
                    .nranks = static_cast<uint32_t>(terms_->nranks),
                    .server = static_cast<uint32_t>(plan_.peer),
                    .connection = plan_.connection,
                    .server_key = plan_.peer_key},
                   nonce);
  if (handshake_.fault() == HandshakeFault::kMac) {
    return InternalError("its public key is invalid");
  }
  if (handshake_.state() == ClientHandshake::State::kFailed) {
    return SystemError(Describe(handshake_.fault()));
  }
  if (!WriteAll(link_.fd.get(), handshake_.to_send())) Pause(kPause);
  return Status::Ok();
}

Status LinkAttempt::StepHandshake() {
  std::array<std::byte, kReplyBytes> buffer;
  const IoResult got = ReadSome(link_.fd.get(), std::span(buffer).first(handshake_.wanted()));
  if (got.error == EAGAIN) return Status::Ok();
  if (got.error != 0 || got.closed) {
    // A busy peer has dropped the connection, or the peer died, which the next attempt shows.
    if (got.closed && ++rejections_ == kMostRejections) {
      return RemoteError("rejects the handshake");
    }
    Pause(kPause);
    return Status::Ok();
  }
  const ClientHandshake::State state = handshake_.Feed(std::span(buffer).first(got.bytes));
  if (handshake_.fault() == HandshakeFault::kCrypto) {
    return SystemError(Describe(handshake_.fault()));
  }
  if (state == ClientHandshake::State::kFailed) {
    return InvalidUsage(fmt::format("its socket is not ours: {}", Describe(handshake_.fault())));
  }
  return state == ClientHandshake::State::kDone ? Authenticated() : Status::Ok();
}

Status LinkAttempt::Authenticated() {
  FAULT_POINT("mesh.after_handshake");
  if (is_unix()) {
    state_ = State::kSwapping;
    return Swap();
  }
  const Result<ConnectionKeys> keys = handshake_.Keys();
  if (!keys.ok()) return keys.status();
  link_.send_key = keys->from_client;
  link_.receive_key = keys->from_server;
  state_ = State::kDone;
  return Status::Ok();
}

Status LinkAttempt::Swap() {
  if (!sent_) {
    FAULT_POINT("mesh.before_swap");
    Result<bool> sent = SendFds(link_.fd.get(), terms_->share_fds);
    if (!sent.ok()) return sent.status();
    sent_ = *sent;
    at_ = SystemClock().Now() + kPause;  // time of the next attempt
  }
  if (!received_) {
    Result<bool> received = receiver_.Receive(link_.fd.get());
    if (!received.ok()) return received.status();
    received_ = *received;
  }
  if (sent_ && received_) {
    state_ = State::kDone;
    FAULT_POINT("mesh.after_swap");
  }
  return Status::Ok();
}

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

namespace {

Status Run(const ConnectTerms& terms, Connector* connector) {
  while (true) {
    if (Status status = connector->Failure(); !status.ok()) return status;
    const std::vector<int> missing = connector->Missing();
    if (missing.empty()) return Status::Ok();
    if (Status status = terms.check(missing); !status.ok()) {
      return {status.code(), status.message() + connector->LastFailure()};
    }
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) {
      return TimeoutError(fmt::format("no connection with {} within {} ms{}", ListRanks(missing),
                                      terms.timeout_ms, connector->LastFailure()));
    }
    const Result<int> polled = connector->Poll(std::min(terms.deadline, now + kCancelLag));
    if (!polled.ok()) return polled.status();
  }
}

}  // namespace

Status ConnectPeers(ConnectTerms terms, const std::vector<LinkPlan>& plans,
                    std::vector<Listener> listeners, std::vector<Link>* links,
                    std::vector<UniqueFd>* open) {
  terms.expected = plans.size();
  Connector connector(&terms, std::move(listeners));
  for (const LinkPlan& plan : plans) connector.Begin(plan);
  if (Status status = Run(terms, &connector); !status.ok()) {
    connector.MoveTo(open);
    return status;
  }
  for (Connector::Ended& ended : connector.TakeEnded()) {
    links->push_back(std::move(ended.link).value());
  }
  return Status::Ok();
}

}  // namespace inccl::bootstrap
