// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_root.h"

#include <fmt/format.h>
#include <poll.h>

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
#include "bootstrap/messages.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/rendezvous_session.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr int kMostRootAccepts = 16;               // then it serves existing connections
constexpr Time kAcceptPause = 50 * kMillisecond;   // after running out of descriptors
constexpr Time kLateLimit = 2 * kSecond;           // for late ranks, with RootOptions::abandoned
constexpr Time kLookInterval = 50 * kMillisecond;  // between looks at RootOptions::abandoned
constexpr Time kAnswering = 5 * kSecond;           // without it: before ranks of this process end
constexpr size_t kLikelyRanks = 64;                // while the number of ranks is unknown
constexpr int kMostPollFailures = 100;             // then the root ends, which every rank sees
class Root {
 public:
  explicit Root(RootOptions options)
      : options_(std::move(options)),
        pending_({.name = "the rendezvous",
                  .handshake = &options_.terms,
                  .sources = options_.sources,
                  .same_uid_only = options_.same_uid_only,
                  .any_namespace = options_.any_namespace,
                  .limit = options_.handshake_limit}) {
    pending_.ExpectRanks(options_.nranks > 0 ? static_cast<size_t>(options_.nranks) : kLikelyRanks);
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

  void AcceptFrom(int listener);
  void Promote(const ServerHandshake& handshake, UniqueFd* fd);
  void SayWhoIsMissing();
  void ReadFrom(Session* session);
  void OnFrame(Session* session, const FrameParser::Frame& frame);
  void OnRegister(Session* session, Bytes body);
  void OnGone(Session* session);
  void Fail(const Status& status);
  void Dismiss(bool own, MessageKind kind, Bytes body);
  bool AllAnswered() const { return std::ranges::find(answered_, false) == answered_.end(); }
  void SendTable();
  std::vector<int> NotDone() const;

  RootOptions options_;
  Phase phase_ = Phase::kGathering;
  Status failure_;
  PendingConnections pending_;
  Sessions sessions_;
  Gathering gathering_;
  std::vector<bool> answered_;    // by rank: has received the failure
  uint32_t expected_ranks_ = 0;   // the largest nranks that a rank has given
  Time deadline_ = kNever;        // the earliest deadline of the ranks
  uint32_t timeout_ms_ = 0;       // the length of that deadline
  Time dismiss_own_at_ = kNever;  // ranks of this process, after a failure
  Time end_ = kNever;
  Time warn_at_ = kNever;  // when to log the missing ranks
  Time accept_after_ = 0;
  LineLimit failed_accepts_;
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
  return sessions_.empty() &&
         (phase_ == Phase::kComplete || (phase_ == Phase::kFailed && AllAnswered()));
}

Time Root::NextDeadline() const {
  Time next = std::min({end_, dismiss_own_at_, pending_.NextDeadline()});
  if (options_.abandoned != nullptr) next = std::min(next, SystemClock().Now() + kLookInterval);
  if (phase_ == Phase::kGathering || phase_ == Phase::kWiring) {
    next = std::min({next, deadline_, warn_at_});
  }
  if (accept_after_ != 0) next = std::min(next, accept_after_);
  for (const auto& session : sessions_) {
    if (!session->member()) next = std::min(next, session->deadline);
  }
  return next;
}

void Root::Expire(Time now) {
  if (now >= accept_after_) accept_after_ = 0;
  pending_.Expire(now);
  std::erase_if(sessions_, [&](const std::unique_ptr<Session>& session) {
    return !session->fd.valid() || (!session->member() && now >= session->deadline);
  });
  if (options_.abandoned != nullptr && options_.abandoned->load()) {
    Fail(RemoteError("the rank that made the id does not want the communicator any more"));
  }
  if (dismiss_own_at_ != kNever && (AllAnswered() || now >= std::min(dismiss_own_at_, end_))) {
    dismiss_own_at_ = kNever;
    Dismiss(/*own=*/true, MessageKind::kFailed, EncodeError(failure_));
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
  const size_t first_pending = fds.size();
  pending_.AppendTo(&fds);
  const size_t first_session = fds.size();
  for (const auto& session : sessions_) {
    const bool writes = !session->out.empty();
    watch(session->fd.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)));
  }
  const int ready = PollUntil(fds, NextDeadline());
  poll_failures_ = ready < 0 ? poll_failures_ + 1 : 0;
  if (ready <= 0) return;

  // Existing connections first, because new ones change the lists.
  for (size_t i = first_session; i < fds.size(); ++i) {
    Session* const session = sessions_[i - first_session].get();
    const short events = fds[i].revents;
    if ((events & POLLOUT) != 0) session->Flush();
    if ((events & ~POLLOUT) != 0) ReadFrom(session);
  }
  pending_.Advance(fds.data() + first_pending,
                   [this](const ServerHandshake& handshake, UniqueFd* fd) {
                     Promote(handshake, fd);
                     return std::string();
                   });
  for (size_t i = 0; i < options_.listeners.size(); ++i) {
    if (fds[i].revents != 0) AcceptFrom(options_.listeners[i].get());
  }
}

void Root::AcceptFrom(int listener) {
  for (int i = 0; i < kMostRootAccepts; ++i) {
    SocketAddress address;
    int error = 0;
    UniqueFd fd = Accept(listener, &address, &error);
    if (error == EAGAIN) return;
    if (error != 0) {
      accept_after_ = SystemClock().Now() + kAcceptPause;
      if (!failed_accepts_.Allow(SystemClock().Now())) return;
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
          "the rendezvous cannot accept connections: errno {}", error);
      return;
    }
    FAULT_POINT("root.after_accept");
    pending_.Add(std::move(fd), address);
  }
}

void Root::Promote(const ServerHandshake& handshake, UniqueFd* fd) {
  const Bytes reply = handshake.reply();
  if (!WriteAll(fd->get(), reply)) return;
  auto session = std::make_unique<Session>();
  session->fd = std::move(*fd);
  if (!options_.same_uid_only) {
    Result<ConnectionKeys> keys = handshake.Keys();
    if (!keys.ok()) return;
    Result<StreamCipher> cipher = StreamCipher::Create(keys->from_server, keys->from_client);
    if (!cipher.ok()) return;
    session->seal = std::move(cipher->seal);
    session->in.Protect(std::move(cipher->open));
  }
  session->rank = handshake.rank();
  pending_.ExpectRanks(std::max(static_cast<size_t>(options_.nranks), size_t{handshake.nranks()}));
  session->deadline = SystemClock().Now() + pending_.limit();
  sessions_.push_back(std::move(session));
  FAULT_POINT("root.after_authentication");
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
        for (const bool own : {false, true}) Dismiss(own, MessageKind::kGo, {});
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
  if (phase_ != Phase::kFailed || !session->member()) OnGone(session);  // else Dismiss comes
}

void Root::OnRegister(Session* session, Bytes body) {
  Result<Registration> registration = Registration::Decode(body);
  if (!registration.ok() || registration->record.rank != session->rank) return OnGone(session);
  session->pid = registration->record.pid;
  const Time now = SystemClock().Now();
  if (end_ == kNever) end_ = now + std::max(options_.lifetime, 2 * registration->remaining);
  pending_.ExpectRanks(std::max<size_t>(options_.nranks, registration->nranks));
  if (phase_ == Phase::kFailed) {
    if (session->rank < answered_.size()) answered_[session->rank] = true;
    if (session->own() && dismiss_own_at_ != kNever) {
      session->state = Session::State::kJoined;
      return;
    }
    Status why = failure_;
    if (const RankRecord* const other = gathering_.Find(session->rank);
        other != nullptr && other->pid != session->pid) {
      why =
          InvalidUsage(fmt::format("{}; the first has failed to join: {}",
                                   ClaimedTwice(*other, registration->record), failure_.message()));
    }
    return session->Dismiss(MessageKind::kFailed, EncodeError(why));
  }
  if (phase_ == Phase::kComplete) {
    const Status late = InvalidUsage("all ranks had joined before this one registered");
    return session->Dismiss(MessageKind::kFailed, EncodeError(late));
  }
  Status why;
  const bool first = gathering_.nranks() == 0;
  switch (gathering_.Add(*registration, &why)) {
    case Gathering::Verdict::kRefused:
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "{}", why.message());
      return session->Dismiss(MessageKind::kFailed, EncodeError(why));
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

void Root::Fail(const Status& status) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kComplete) return;
  phase_ = Phase::kFailed;
  failure_ = status;
  const Time now = SystemClock().Now();
  if (options_.abandoned != nullptr) end_ = std::min(end_, now + kLateLimit);
  expected_ranks_ = std::max(expected_ranks_, static_cast<uint32_t>(gathering_.nranks()));
  answered_.assign(expected_ranks_, false);
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "initialization failed: {}", status.message());
  for (const RankRecord& record : gathering_.records()) answered_[record.rank] = true;
  Dismiss(/*own=*/false, MessageKind::kFailed, EncodeError(status));
  dismiss_own_at_ = options_.abandoned != nullptr ? now : std::min(deadline_, now + kAnswering);
}

// Ranks of this process come last: after the message they may end the process and this thread.
void Root::Dismiss(bool own, MessageKind kind, Bytes body) {
  for (const auto& session : sessions_) {
    if (session->member() && session->own() == own) session->Dismiss(kind, body);
  }
}

void Root::SendTable() {
  RankTable table;
  if (Status status = FillRandom(table.session); !status.ok()) return Fail(status);
  table.ranks = gathering_.records();
  phase_ = Phase::kWiring;
  if (deadline_ != kNever) deadline_ += kSecond / 2;  // ranks say first what they miss
  warn_at_ = SystemClock().Now() + options_.patience;
  const std::vector<std::byte> body = table.Encode();
  FAULT_POINT("root.before_table");
  for (const auto& session : sessions_) {
    if (session->member()) session->Send(MessageKind::kTable, body);
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
