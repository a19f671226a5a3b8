// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_root.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/admission.h"
#include "bootstrap/frame.h"
#include "bootstrap/gathering.h"
#include "bootstrap/messages.h"
#include "bootstrap/namespaces.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr uint32_t kMaxFromRank = 128 * 1024;      // body of a frame that a rank sends
constexpr int kMostAcceptsAtOnce = 16;             // then it serves existing connections
constexpr Time kAcceptPause = 50 * kMillisecond;   // after running out of descriptors
constexpr Time kClosingLimit = kSecond;            // to flush an answer and see the other end close
constexpr Time kLateLimit = 2 * kSecond;           // for late ranks, with RootOptions::abandoned
constexpr Time kLookInterval = 50 * kMillisecond;  // between looks at RootOptions::abandoned
constexpr size_t kLikelyRanks = 64;                // while the number of ranks is unknown
constexpr int kMostPollFailures = 100;             // then the root ends, which every rank sees

// A connection that has not authenticated yet.
struct Pending {
  UniqueFd fd;
  Source source;
  ServerHandshake handshake;
  Time deadline = 0;
};

// A connection that has proven that it knows the secret.
struct Session {
  enum class State : uint8_t { kRegistering, kJoined, kDone, kClosing };

  UniqueFd fd;
  State state = State::kRegistering;
  Time deadline = 0;  // while registering or closing
  uint32_t rank = 0;  // from the handshake
  uint32_t pid = 0;   // from the registration
  FrameParser in{kMaxFromRank};
  std::vector<std::byte> out;
  bool shut = false;

  bool member() const { return state == State::kJoined || state == State::kDone; }
};

class Root {
 public:
  explicit Root(RootOptions options) : options_(std::move(options)) {
    ExpectRanks(options_.nranks > 0 ? static_cast<size_t>(options_.nranks) : kLikelyRanks);
    if (options_.abandoned != nullptr) end_ = SystemClock().Now() + options_.lifetime;
  }

  void Run();

 private:
  enum class Phase : uint8_t { kGathering, kWiring, kFailed, kComplete };
  using Sessions = std::vector<std::unique_ptr<Session>>;

  void Poll();
  Time NextDeadline() const;
  void Expire(Time now);
  bool Finished(Time now) const;

  void ExpectRanks(size_t ranks) { budget_ = BudgetFor(ranks, options_.same_uid_only); }
  void AcceptFrom(int listener);
  // Logs a complaint and returns false if the peer's process may not join.
  bool MayJoin(int fd, Source* source);
  void AddPending(UniqueFd fd, const Source& source);
  void MakeRoomFor(const Source& source);
  // Returns false if the connection must be dropped.
  bool Advance(Pending* pending);
  void Promote(Pending* pending);
  void Complain(const Source& source, const std::string& why);
  void SayWhoIsMissing();

  void ReadFrom(Session* session);
  void Flush(Session* session);
  void OnFrame(Session* session, const FrameParser::Frame& frame);
  void OnRegister(Session* session, Bytes body);
  void OnGone(Session* session);
  void Send(Session* session, MessageKind kind, Bytes body);
  // Sends the last message of this session.
  void Dismiss(Session* session, MessageKind kind, Bytes body);
  void Fail(const Status& status);
  void DismissAll(MessageKind kind, Bytes body);
  void SendTable();
  std::vector<int> NotDone() const;

  RootOptions options_;
  Phase phase_ = Phase::kGathering;
  Status failure_;
  std::vector<Pending> pending_;
  Budget budget_;
  Sessions sessions_;
  Gathering gathering_;
  std::vector<bool> answered_;   // by rank: has received the failure
  uint32_t expected_ranks_ = 0;  // the largest nranks that a rank has given
  Time deadline_ = kNever;       // the earliest deadline of the ranks
  uint32_t timeout_ms_ = 0;      // the length of that deadline
  Time end_ = kNever;
  Time warn_at_ = kNever;  // when to log the missing ranks
  Time accept_after_ = 0;
  LineLimit complaints_, failed_accepts_;
  uint64_t refused_ = 0;
  int poll_failures_ = 0;  // consecutive
};

void Root::Run() {
  while (true) {
    const Time now = SystemClock().Now();
    Expire(now);
    if (Finished(now)) return;
    Poll();
  }
}

bool Root::Finished(Time now) const {
  if (now >= end_ || poll_failures_ >= kMostPollFailures) return true;
  if (!sessions_.empty()) return false;
  if (phase_ == Phase::kComplete) return true;
  return phase_ == Phase::kFailed &&
         std::find(answered_.begin(), answered_.end(), false) == answered_.end();
}

Time Root::NextDeadline() const {
  Time next = end_;
  if (options_.abandoned != nullptr) next = std::min(next, SystemClock().Now() + kLookInterval);
  if (phase_ == Phase::kGathering || phase_ == Phase::kWiring) {
    next = std::min({next, deadline_, warn_at_});
  }
  if (accept_after_ != 0) next = std::min(next, accept_after_);
  for (const Pending& pending : pending_) next = std::min(next, pending.deadline);
  for (const auto& session : sessions_) {
    if (!session->member()) next = std::min(next, session->deadline);
  }
  return next;
}

void Root::Expire(Time now) {
  if (now >= accept_after_) accept_after_ = 0;
  std::erase_if(pending_, [&](Pending& pending) {
    if (now < pending.deadline) return false;
    Complain(pending.source, "it did not authenticate in time");
    ResetConnection(std::move(pending.fd));
    return true;
  });
  std::erase_if(sessions_, [&](const std::unique_ptr<Session>& session) {
    return !session->fd.valid() || (!session->member() && now >= session->deadline);
  });
  if (options_.abandoned != nullptr && options_.abandoned->load()) {
    Fail(RemoteError("the rank that made the id does not want the communicator any more"));
  }
  if (now >= warn_at_) SayWhoIsMissing();
  if (now < deadline_) return;
  if (phase_ == Phase::kGathering) {
    Fail(TimeoutError(fmt::format("{} of {} did not arrive within {} ms",
                                  ListRanks(gathering_.Missing()), gathering_.nranks(),
                                  timeout_ms_)));
  } else if (phase_ == Phase::kWiring) {
    Fail(TimeoutError(fmt::format("{} of {} did not complete their connections within {} ms",
                                  ListRanks(NotDone()), gathering_.nranks(), timeout_ms_)));
  }
}

void Root::SayWhoIsMissing() {
  warn_at_ = kNever;
  const char* const what = phase_ == Phase::kGathering ? "come" : "connect";
  if (phase_ != Phase::kGathering && phase_ != Phase::kWiring) return;
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
      "init: still waiting, after {} ms, for {} of {} to {}; the limit is {} ms",
      options_.patience / kMillisecond,
      ListRanks(phase_ == Phase::kGathering ? gathering_.Missing() : NotDone()),
      gathering_.nranks(), what, timeout_ms_);
}

void Root::Poll() {
  std::vector<pollfd> fds;
  const auto watch = [&](int fd, short events) {
    fds.push_back({.fd = fd, .events = events, .revents = 0});
  };
  for (const UniqueFd& listener : options_.listeners) {
    watch(accept_after_ == 0 ? listener.get() : -1, POLLIN);
  }
  for (const Pending& pending : pending_) watch(pending.fd.get(), POLLIN);
  for (const auto& session : sessions_) {
    const bool writes = !session->out.empty();
    watch(session->fd.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)));
  }
  const int ready = PollUntil(fds, NextDeadline());
  poll_failures_ = ready < 0 ? poll_failures_ + 1 : 0;
  if (ready <= 0) return;

  // Existing connections first, because new ones change the lists.
  size_t at = options_.listeners.size();
  std::vector<Pending*> drop;
  for (Pending& pending : pending_) {
    if (fds[at++].revents != 0 && !Advance(&pending)) drop.push_back(&pending);
  }
  const size_t old_sessions = fds.size() - at;
  for (size_t i = 0; i < old_sessions; ++i) {
    Session* const session = sessions_[i].get();
    const short events = fds[at + i].revents;
    if ((events & POLLOUT) != 0) Flush(session);
    if ((events & ~POLLOUT) != 0) ReadFrom(session);
  }
  std::erase_if(pending_, [&](Pending& pending) {
    return std::find(drop.begin(), drop.end(), &pending) != drop.end();
  });
  for (size_t i = 0; i < options_.listeners.size(); ++i) {
    if (fds[i].revents != 0) AcceptFrom(options_.listeners[i].get());
  }
}

void Root::AcceptFrom(int listener) {
  for (int i = 0; i < kMostAcceptsAtOnce; ++i) {
    Source source;
    int error = 0;
    UniqueFd fd = Accept(listener, &source.address, &error);
    if (error == EAGAIN) return;
    if (error != 0) {
      accept_after_ = SystemClock().Now() + kAcceptPause;
      if (!failed_accepts_.Allow(SystemClock().Now())) return;
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
          "the rendezvous cannot accept connections: errno {}", error);
      return;
    }
    FAULT_POINT("root.after_accept");
    if (options_.same_uid_only && !MayJoin(fd.get(), &source)) {
      ResetConnection(std::move(fd));
      continue;
    }
    AddPending(std::move(fd), source);
  }
}

bool Root::MayJoin(int fd, Source* source) {
  const Result<PeerCredentials> peer = GetPeerCredentials(fd);
  if (peer.ok()) source->peer = *peer;
  if (!peer.ok() || peer->uid != geteuid()) {
    Complain(*source, "it belongs to another user");
    return false;
  }
  if (options_.any_namespace) return true;
  const Status status = CheckPeerNamespaces(fd);
  if (!status.ok()) Complain(*source, fmt::format("it belongs to {}", status.message()));
  return status.ok();
}

void Root::MakeRoomFor(const Source& source) {
  uint64_t random = 0;
  if (!FillRandom(std::as_writable_bytes(std::span(&random, 1))).ok()) return;
  std::vector<uint64_t> sources;
  for (const Pending& pending : pending_) sources.push_back(pending.source.Key());
  const size_t victim = MakesRoom(sources, source.Key(), budget_, random);
  if (victim == pending_.size()) return;
  Complain(pending_[victim].source, "it made room for newer ones before it authenticated");
  ResetConnection(std::move(pending_[victim].fd));
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(victim));
}

void Root::AddPending(UniqueFd fd, const Source& source) {
  Nonce nonce;
  if (!FillRandom(nonce).ok()) return;
  MakeRoomFor(source);
  Pending& pending = pending_.emplace_back();
  pending.fd = std::move(fd);
  pending.source = source;
  pending.deadline = SystemClock().Now() + options_.handshake_limit;
  pending.handshake.Start(&options_.terms, nonce);
  const Bytes greeting = pending.handshake.greeting();
  if (!WriteAll(pending.fd.get(), greeting)) pending_.pop_back();
}

bool Root::Advance(Pending* pending) {
  std::array<std::byte, kHelloBytes> buffer;
  const IoResult got =
      ReadSome(pending->fd.get(), std::span(buffer).first(pending->handshake.wanted()));
  if (got.error == EAGAIN) return true;
  if (got.error != 0 || got.closed) {
    Complain(pending->source, "it closed before it authenticated");
    return false;
  }
  switch (pending->handshake.Feed(std::span(buffer).first(got.bytes))) {
    case ServerHandshake::State::kReading: return true;
    case ServerHandshake::State::kDone: Promote(pending); return false;
    case ServerHandshake::State::kFailed: break;
  }
  // An orderly close shows the client of a whole hello that the root has rejected it.
  Complain(pending->source, Describe(pending->handshake.fault()));
  return false;
}

void Root::Promote(Pending* pending) {
  const Bytes reply = pending->handshake.reply();
  if (!WriteAll(pending->fd.get(), reply)) return;
  auto session = std::make_unique<Session>();
  session->fd = std::move(pending->fd);
  session->rank = pending->handshake.rank();
  session->deadline = SystemClock().Now() + options_.handshake_limit;
  sessions_.push_back(std::move(session));
  FAULT_POINT("root.after_authentication");
}

void Root::Complain(const Source& source, const std::string& why) {
  ++refused_;
  if (!complaints_.Allow(SystemClock().Now())) return;
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
      "the rendezvous refused a connection from {}: {} ({} refused so far)", source.ToString(), why,
      refused_);
}

void Root::ReadFrom(Session* session) {
  std::array<std::byte, 4096> buffer;
  while (session->fd.valid()) {
    const IoResult got = ReadSome(session->fd.get(), buffer);
    if (got.error == EAGAIN) return;
    if (got.error != 0 || got.closed) return OnGone(session);
    if (session->state == Session::State::kClosing) continue;
    session->in.Append(std::span(buffer).first(got.bytes));
    while (session->state != Session::State::kClosing) {
      FrameParser::Frame frame;
      const FrameParser::Next next = session->in.Pop(&frame);
      if (next == FrameParser::Next::kNeedMore) break;
      if (next == FrameParser::Next::kMalformed) return OnGone(session);
      OnFrame(session, frame);
    }
  }
}

void Root::OnFrame(Session* session, const FrameParser::Frame& frame) {
  switch (static_cast<MessageKind>(frame.kind)) {
    case MessageKind::kRegister:
      if (session->state == Session::State::kRegistering) return OnRegister(session, frame.body);
      break;
    case MessageKind::kDone:
      if (session->state == Session::State::kJoined && phase_ == Phase::kWiring) {
        session->state = Session::State::kDone;
        if (!NotDone().empty()) return;
        phase_ = Phase::kComplete;
        options_.listeners.clear();  // frees the name
        FAULT_POINT("root.before_go");
        DismissAll(MessageKind::kGo, {});
        FAULT_POINT("root.after_go");
        return;
      }
      break;
    case MessageKind::kFailed:
      if (session->member()) {
        const Status theirs = DecodeError(frame.body);
        const std::string name = NameOf(gathering_.record(static_cast<int>(session->rank)));
        return Fail(
            Status(theirs.code(), fmt::format("rank {} failed: {}", name, theirs.message())));
      }
      break;
    default: break;
  }
  OnGone(session);
}

void Root::OnRegister(Session* session, Bytes body) {
  Result<Registration> registration = Registration::Decode(body);
  if (!registration.ok() || registration->record.rank != session->rank) return OnGone(session);
  session->pid = registration->record.pid;
  const Time now = SystemClock().Now();
  if (end_ == kNever) end_ = now + std::max(options_.lifetime, 2 * registration->remaining);
  ExpectRanks(std::max(static_cast<size_t>(options_.nranks), size_t{registration->nranks}));
  if (phase_ == Phase::kFailed) {
    if (session->rank < answered_.size()) answered_[session->rank] = true;
    Status why = failure_;
    if (const RankRecord* const other = gathering_.Find(session->rank);
        other != nullptr && other->pid != session->pid) {
      why =
          InvalidUsage(fmt::format("{}; the first has failed to join: {}",
                                   ClaimedTwice(*other, registration->record), failure_.message()));
    }
    return Dismiss(session, MessageKind::kFailed, EncodeError(why));
  }
  if (phase_ == Phase::kComplete) {
    const Status late = InvalidUsage("all ranks had joined before this one registered");
    return Dismiss(session, MessageKind::kFailed, EncodeError(late));
  }
  Status why;
  const bool first = gathering_.nranks() == 0;
  switch (gathering_.Add(*registration, &why)) {
    case Gathering::Verdict::kRefused:
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "{}", why.message());
      return Dismiss(session, MessageKind::kFailed, EncodeError(why));
    case Gathering::Verdict::kBroken:
      session->state = Session::State::kJoined;
      expected_ranks_ = std::max(expected_ranks_, registration->nranks);
      Fail(why);
      answered_[session->rank] = true;
      return;
    case Gathering::Verdict::kJoined: break;
  }
  session->state = Session::State::kJoined;
  if (first) warn_at_ = now + options_.patience;
  if (now + registration->remaining < deadline_) {
    deadline_ = now + registration->remaining;
    timeout_ms_ = registration->timeout_ms;
  }
  Log(LogLevel::kTrace, LogSubsystem::kBootstrap, "the rendezvous has rank {} of {}",
      NameOf(registration->record), gathering_.nranks());
  FAULT_POINT("root.after_register");
  if (gathering_.complete()) SendTable();
}

void Root::OnGone(Session* session) {
  const bool was_member = session->member();
  session->fd.Reset();
  session->state = Session::State::kClosing;
  session->deadline = 0;
  if (was_member && (phase_ == Phase::kGathering || phase_ == Phase::kWiring)) {
    Fail(RemoteError(
        fmt::format("peer {} closed its connection during initialization (process died?)",
                    NameOf(gathering_.record(static_cast<int>(session->rank))))));
  }
}

void Root::Send(Session* session, MessageKind kind, Bytes body) {
  AppendFrame(static_cast<uint8_t>(kind), body, &session->out);
  Flush(session);
}

void Root::Dismiss(Session* session, MessageKind kind, Bytes body) {
  session->state = Session::State::kClosing;
  session->deadline = SystemClock().Now() + kClosingLimit;
  Send(session, kind, body);
}

void Root::Flush(Session* session) {
  while (session->fd.valid() && !session->out.empty()) {
    const IoResult sent = WriteSome(session->fd.get(), session->out);
    if (sent.error == EAGAIN) return;
    if (sent.error != 0) return;  // reading reports the error
    session->out.erase(session->out.begin(),
                       session->out.begin() + static_cast<ptrdiff_t>(sent.bytes));
  }
  if (session->state == Session::State::kClosing && session->fd.valid() && !session->shut) {
    session->shut = true;  // close after the other end has read everything and closed
    shutdown(session->fd.get(), SHUT_WR);
  }
}

void Root::Fail(const Status& status) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kComplete) return;
  phase_ = Phase::kFailed;
  failure_ = status;
  if (options_.abandoned != nullptr) end_ = std::min(end_, SystemClock().Now() + kLateLimit);
  expected_ranks_ = std::max(expected_ranks_, static_cast<uint32_t>(gathering_.nranks()));
  answered_.assign(expected_ranks_, false);
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "initialization failed: {}", status.message());
  const std::vector<std::byte> error = EncodeError(status);
  for (const RankRecord& record : gathering_.records()) answered_[record.rank] = true;
  DismissAll(MessageKind::kFailed, error);
}

// Ranks of this process come last: after the message they may end the process and this thread.
void Root::DismissAll(MessageKind kind, Bytes body) {
  for (const bool own : {false, true}) {
    for (const auto& session : sessions_) {
      if (!session->member()) continue;
      if ((session->pid == static_cast<uint32_t>(getpid())) == own) {
        Dismiss(session.get(), kind, body);
      }
    }
  }
}

void Root::SendTable() {
  RankTable table;
  if (Status status = FillRandom(table.session); !status.ok()) return Fail(status);
  table.ranks = gathering_.records();
  phase_ = Phase::kWiring;
  warn_at_ = SystemClock().Now() + options_.patience;
  const std::vector<std::byte> body = table.Encode();
  FAULT_POINT("root.before_table");
  for (const auto& session : sessions_) {
    if (session->member()) Send(session.get(), MessageKind::kTable, body);
  }
  FAULT_POINT("root.after_table");
}

std::vector<int> Root::NotDone() const {
  std::vector<int> ranks;
  for (const auto& session : sessions_) {
    if (session->state == Session::State::kJoined) ranks.push_back(static_cast<int>(session->rank));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

Status StartRoot(RootOptions options) {
  auto root = std::make_shared<Root>(std::move(options));
  Result<std::thread> thread = StartThread("inccl-root", [root = std::move(root)] {
    try {
      root->Run();
    } catch (const std::exception&) {
      // Out of memory: the root's connections close, which every rank sees.
    }
  });
  if (!thread.ok()) return thread.status();
  thread->detach();
  return Status::Ok();
}

}  // namespace inccl::bootstrap
