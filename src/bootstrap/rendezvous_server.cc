// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/host.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kClosingLimit = kSecond;  // to flush an answer and see the other end close

}  // namespace

bool Session::Read(const std::function<void(const FrameParser::Frame&)>& on_frame) {
  std::array<std::byte, 4096> buffer;
  while (fd.valid()) {
    const IoResult got = ReadSome(fd.get(), buffer);
    if (got.error == EAGAIN) return true;
    if (got.error != 0 || got.closed) return false;
    if (state == State::kClosing) continue;
    in.Append(std::span(buffer).first(got.bytes));
    while (state != State::kClosing) {
      FrameParser::Frame frame;
      const FrameParser::Next next = in.Pop(&frame);
      if (next == FrameParser::Next::kNeedMore) break;
      if (next == FrameParser::Next::kMalformed) return false;
      on_frame(frame);
    }
  }
  return true;
}

void Session::Send(MessageKind kind, Bytes body) {
  if (!AppendFrame(static_cast<uint8_t>(kind), body, &out, seal ? &*seal : nullptr)) {
    shutdown(fd.get(), SHUT_RDWR);  // both ends then read that the session has ended
  }
  Flush();
}

void Session::Dismiss(MessageKind kind, Bytes body) {
  state = Session::State::kClosing;
  deadline = SystemClock().Now() + kClosingLimit;
  Send(kind, body);
}

void Session::Close() {
  fd.Reset();
  state = State::kClosing;
}

void Session::Flush() {
  while (fd.valid() && !out.empty()) {
    const IoResult sent = WriteSome(fd.get(), out);
    if (sent.error == EAGAIN) return;
    if (sent.error != 0) return;  // reading reports the error
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(sent.bytes));
  }
  if (state == Session::State::kClosing && fd.valid() && !shut) {
    shut = true;  // close after the other end has read everything and closed
    shutdown(fd.get(), SHUT_WR);
  }
}

namespace {

constexpr Time kLateLimit = 2 * kSecond;  // for late ranks, with RootOptions::at_once
constexpr Time kAnswering = 5 * kSecond;  // without it: before ranks of this process end
// With the table the deadline moves by half a second, and what it has come to must be told.
constexpr Time kAfterDeadline = kSecond;

}  // namespace

Status TooLate() { return InvalidUsage("all ranks had joined before this one registered"); }

bool Root::Finished(Time now) const {
  if (now >= end_) return true;
  return sessions_.empty() &&
         (phase_ == Phase::kComplete || (phase_ == Phase::kFailed && AllAnswered()));
}

Time Root::NextDeadline() const {
  const Time next = std::min(end_, dismiss_own_at_);
  return waits() ? std::min({next, deadline_, warn_at_}) : next;
}

void Root::Expire(Time now) {
  if (dismiss_own_at_ != kNever && (AllAnswered() || now >= std::min(dismiss_own_at_, end_))) {
    dismiss_own_at_ = kNever;
    Dismiss(/*own=*/true, MessageKind::kFailed, EncodeError(failure_));
  }
  if (now >= warn_at_) SayWhoIsMissing();
  if (now < deadline_) return;
  if (phase_ == Phase::kGathering) {
    Fail(TimeoutError(fmt::format("{} of {} did not arrive within {} ms", gathering_.Missing(),
                                  gathering_.nranks(), timeout_ms_)));
  } else if (exchanges()) {
    Fail(TimeoutError(fmt::format("no word from {} of {} about the transport within {} ms",
                                  ListRanks(Awaited()), gathering_.nranks(), timeout_ms_)));
  } else if (phase_ == Phase::kJoining) {
    Fail(TimeoutError(fmt::format("{} of {} did not complete their connections within {} ms",
                                  ListRanks(Awaited()), gathering_.nranks(), timeout_ms_)));
  }
}

void Root::SayWhoIsMissing() {
  warn_at_ = kNever;
  if (!waits()) return;
  const bool gathers = phase_ == Phase::kGathering;
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
      "init: still waiting, after {} ms, for {} of {} to {}; the limit is {} ms",
      options_.patience / kMillisecond, gathers ? gathering_.Missing() : ListRanks(Awaited()),
      gathering_.nranks(),
      gathers       ? "come"
      : exchanges() ? "say something about the transport"
                    : "connect",
      timeout_ms_);
}

void Root::OnFrame(Session* session, const FrameParser::Frame& frame) {
  const bool joins = session->state == Session::State::kJoined && phase_ == Phase::kJoining;
  switch (static_cast<MessageKind>(frame.kind)) {
    case MessageKind::kBlob:
      if (joins && !session->blob && frame.body.size() <= kMaxBlob) {
        return OnBlob(session, frame.body);
      }
      break;
    case MessageKind::kDone:
      if (joins && !session->blob) return OnDone(session, frame.body);
      break;
    case MessageKind::kFailed:
      if (session->member()) {
        if (!waits()) return;
        const Status theirs = DecodeError(frame.body);
        const std::string name = NameOf(gathering_.record(static_cast<int>(session->rank)));
        return Fail(
            Status(theirs.code(), fmt::format("rank {} failed: {}", name, theirs.message())));
      }
      break;
    default: break;
  }
  if (phase_ == Phase::kFailed && session->member()) return;  // Dismiss comes
  OnGone(session);
}

bool Root::exchanges() const {
  return std::ranges::any_of(sessions_, [](const Session* s) { return s->blob.has_value(); });
}

void Root::OnBlob(Session* session, Bytes blob) {
  session->blob.emplace(blob.begin(), blob.end());
  if (!Awaited().empty()) return;
  Blobs blobs(static_cast<size_t>(gathering_.nranks()));
  for (Session* const member : sessions_) {
    if (!member->member()) continue;
    blobs[member->rank] = *std::exchange(member->blob, std::nullopt);
  }
  const std::vector<std::byte> body = EncodeBlobs(blobs);
  for (Session* const member : sessions_) {
    if (member->member()) member->Send(MessageKind::kBlobs, body);
  }
}

void Root::OnDone(Session* session, Bytes body) {
  const auto nranks = static_cast<uint32_t>(gathering_.nranks());
  const Result<std::vector<MeasuredLink>> links = DecodeLinks(body, session->rank, nranks);
  if (!links.ok()) return OnGone(session);
  links_.insert(links_.end(), links->begin(), links->end());
  session->state = Session::State::kDone;
  if (!Awaited().empty()) return;
  phase_ = Phase::kComplete;
  std::vector<uint64_t> hosts;
  for (const RankRecord& record : gathering_.records()) hosts.push_back(record.host_id);
  const std::vector<std::byte> sites = EncodeSites(FindSites(HostMap(hosts), links_));
  FAULT_POINT("root.before_go");
  for (const bool own : {false, true}) Dismiss(own, MessageKind::kGo, sites);
  FAULT_POINT("root.after_go");
}

bool Root::IsAgain(const Registration& registration) const {
  return phase_ == Phase::kFailed && registration.record.rank < answered_.size() &&
         answered_[registration.record.rank] == registration.record.pid;
}

void Root::Register(Session* session, const Registration& registration) {
  sessions_.push_back(session);
  const Time now = SystemClock().Now();
  if (end_ == kNever) {
    end_ = now + std::max(options_.lifetime, 2 * registration.remaining) + kAfterDeadline;
  }
  if (phase_ == Phase::kFailed) {
    if (session->rank < answered_.size()) answered_[session->rank] = session->pid;
    if (session->own() && dismiss_own_at_ != kNever) {
      session->state = Session::State::kJoined;
      return;
    }
    Status why = failure_;
    if (const RankRecord* const other = gathering_.Find(session->rank);
        other != nullptr && other->pid != session->pid) {
      why =
          InvalidUsage(fmt::format("{}; the first has failed to join: {}",
                                   ClaimedTwice(*other, registration.record), failure_.message()));
    }
    return session->Dismiss(MessageKind::kFailed, EncodeError(why));
  }
  if (phase_ == Phase::kComplete) {
    return session->Dismiss(MessageKind::kFailed, EncodeError(TooLate()));
  }
  Status why;
  const bool first = gathering_.nranks() == 0;
  const Gathering::Verdict verdict = gathering_.Add(registration, &why);
  if (verdict == Gathering::Verdict::kRefused) {
    Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "{}", why.message());
    return session->Dismiss(MessageKind::kFailed, EncodeError(why));
  }
  if (verdict == Gathering::Verdict::kReplaces) {
    Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "{}", why.message());
    for (Session* const other : sessions_) {
      if (other != session && other->member() && other->rank == session->rank) {
        other->Dismiss(MessageKind::kFailed, EncodeError(why));
      }
    }
  }
  session->state = Session::State::kJoined;
  expected_ranks_ = std::max(expected_ranks_, registration.nranks);
  if (verdict == Gathering::Verdict::kBroken) {
    Fail(why);
    answered_[session->rank] = session->pid;
    return;
  }
  if (first) warn_at_ = now + options_.patience;
  if (now + registration.remaining < deadline_) {
    deadline_ = now + registration.remaining;
    timeout_ms_ = registration.timeout_ms;
  }
  Log(LogLevel::kTrace, LogSubsystem::kBootstrap, "the rendezvous has rank {} of {}",
      NameOf(registration.record), gathering_.nranks());
  FAULT_POINT("root.after_register");
  if (phase_ == Phase::kJoining) {
    session->Send(MessageKind::kTable, table_);  // a rank that comes again
  } else if (gathering_.complete()) {
    SendTable();
  }
}

void Root::OnGone(Session* session) {
  const bool was_member = session->member();
  session->Close();
  if (was_member && waits()) {
    Fail(RemoteError(
        fmt::format("peer {} closed its connection during initialization (process died?)",
                    NameOf(gathering_.record(static_cast<int>(session->rank))))));
  }
}

void Root::Fail(const Status& status) {
  if (!waits()) return;
  phase_ = Phase::kFailed;
  failure_ = status;
  const Time now = SystemClock().Now();
  if (options_.at_once) end_ = std::min(end_, now + kLateLimit);
  answered_.assign(expected_ranks_, std::nullopt);
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "initialization failed: {}", status.message());
  for (const RankRecord& record : gathering_.records()) answered_[record.rank] = record.pid;
  Dismiss(/*own=*/false, MessageKind::kFailed, EncodeError(status));
  dismiss_own_at_ = options_.at_once ? now : std::min(deadline_, now + kAnswering);
}

// Ranks of this process come last: after the message they may end the process and this thread.
void Root::Dismiss(bool own, MessageKind kind, Bytes body) {
  for (Session* const session : sessions_) {
    if (session->member() && session->own() == own) session->Dismiss(kind, body);
  }
}

void Root::SendTable() {
  RankTable table;
  if (Status status = table.Draw(); !status.ok()) return Fail(status);
  table.ranks = gathering_.records();
  phase_ = Phase::kJoining;
  if (deadline_ != kNever) deadline_ += kSecond / 2;  // ranks say first what they miss
  warn_at_ = SystemClock().Now() + options_.patience;
  table_ = table.Encode();
  FAULT_POINT("root.before_table");
  for (Session* const session : sessions_) {
    if (session->member()) session->Send(MessageKind::kTable, table_);
  }
  FAULT_POINT("root.after_table");
}

std::vector<int> Root::Awaited() const {
  const bool blobs = exchanges();
  std::vector<int> ranks;
  for (const Session* const session : sessions_) {
    const bool awaited =
        blobs ? session->member() && !session->blob : session->state == Session::State::kJoined;
    if (awaited) ranks.push_back(static_cast<int>(session->rank));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

namespace {

constexpr int kMostAccepts = 16;                  // then the server serves existing connections
constexpr Time kAcceptPause = 50 * kMillisecond;  // after running out of descriptors
constexpr size_t kLikelyRanks = 64;               // while the number of ranks is unknown
constexpr int kMostPollFailures = 100;            // then the server ends, which every rank sees

std::atomic<RendezvousServer*> server{nullptr};

}  // namespace

Root* RendezvousServer::Meeting::RootFor(const Registration& registration) {
  const uint32_t number = registration.number;
  for (auto at = roots.rbegin(); at != roots.rend(); ++at) {
    if (at->first != number) continue;
    // A job may try again.
    if (options.of_job && at->second->IsAgain(registration)) break;
    return at->second.get();
  }
  return roots.emplace_back(number, std::make_unique<Root>(options.root)).second.get();
}

RendezvousServer& RendezvousServer::Get() {
  // In the child the mutex may be locked, and there is no thread.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { server.store(nullptr); });
  RendezvousServer* current = server.load();
  while (current == nullptr) {
    // Never destroyed: its thread may run while the process exits.
    std::unique_ptr<RendezvousServer> made(new RendezvousServer);
    if (server.compare_exchange_strong(current, made.get())) return *made.release();
  }
  return *current;
}

Status RendezvousServer::Open(const MeetingOptions& options, const ListenRules& rules,
                              std::vector<UniqueIdAddress>* addresses) {
  const MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Listener>> used;
  std::vector<UniqueIdAddress> usable;
  Status failure = InvalidArgument("no address to listen at");
  for (UniqueIdAddress address : *addresses) {
    const auto same = std::ranges::find_if(listeners_, [&](const auto& listener) {
      if (!listener->address || *listener->rules != rules) return false;
      address.port = listener->address->port;
      return *listener->address == address;
    });
    if (same != listeners_.end()) {
      used.push_back(*same);
    } else {
      address.port = 0;
      Result<UniqueFd> fd = ListenAt(&address, rules.ports);
      if (!fd.ok()) {
        failure = fd.status();
        continue;
      }
      used.push_back(std::make_shared<Listener>(
          *std::move(fd), PendingConnections::Terms{.name = "the rendezvous",
                                                    .handshake = TermsOfMeetings(),
                                                    .sources = rules.sources,
                                                    .limit = options.handshake_limit}));
      used.back()->address = address;
      used.back()->rules = rules;
    }
    usable.push_back(address);
  }
  if (used.empty()) return failure;
  *addresses = std::move(usable);
  return Add(options, std::move(used));
}

Status RendezvousServer::OpenAt(const MeetingOptions& options, const SocketAddress& place,
                                const AddressFilter& sources, Admission admission, bool* in_use) {
  const MutexLock lock(&mutex_);
  *in_use = false;
  if (Meeting* const meeting = Find(options.terms.communicator); meeting != nullptr) {
    if (std::ranges::equal(meeting->options.terms.key.bytes(), options.terms.key.bytes())) {
      ++meeting->holders;
      return Status::Ok();
    }
    // What is left of one with another secret file goes on under a name that nobody asks for.
    auto old = meetings_.extract(options.terms.communicator);
    if (Status status = FillRandom(old.key()); !status.ok()) return status;
    old.mapped()->holders = 0;
    meetings_.insert(std::move(old));
  }
  const std::string name = place.ToString();
  auto listener = std::ranges::find_if(
      listeners_, [&](const auto& known) { return known->pending.place() == name; });
  if (listener != listeners_.end()) return Add(options, {*listener});
  Result<UniqueFd> fd = Listen(place, in_use);
  if (!fd.ok()) return fd.status();
  return Add(
      options,
      {std::make_shared<Listener>(
          *std::move(fd),
          PendingConnections::Terms{.name = "the rendezvous",
                                    .place = name,
                                    .handshake = TermsOfMeetings(),
                                    .sources = sources,
                                    .is_unix = place.is_unix(),
                                    .same_container = admission == Admission::kSameUserAndContainer,
                                    .limit = options.handshake_limit})});
}

Status RendezvousServer::Add(const MeetingOptions& options,
                             std::vector<std::shared_ptr<Listener>> listeners) {
  if (Status status = Start(); !status.ok()) return status;
  for (const std::shared_ptr<Listener>& listener : listeners) {
    if (std::ranges::find(listeners_, listener) == listeners_.end()) listeners_.push_back(listener);
  }
  meetings_.emplace(
      options.terms.communicator,
      std::make_shared<Meeting>(Meeting{.options = options, .listeners = std::move(listeners)}));
  Wake();
  return Status::Ok();
}

void RendezvousServer::Close(const Nonce& communicator, const Status& why) {
  const MutexLock lock(&mutex_);
  Meeting* const meeting = Find(communicator);
  if (meeting == nullptr || meeting->holders == 0) return;
  --meeting->holders;
  if (!meeting->options.of_job) {
    for (const auto& [number, root] : meeting->roots) root->Fail(why);
    if (meeting->roots.empty()) meeting->failure = why;
  }
  Wake();
}

RendezvousServer::Meeting* RendezvousServer::Find(const Nonce& communicator) {
  const auto at = meetings_.find(communicator);
  return at == meetings_.end() ? nullptr : at->second.get();
}

TermsOf RendezvousServer::TermsOfMeetings() {
  return [this](const Nonce& communicator) {
    mutex_.AssertHeld();
    const Meeting* const meeting = Find(communicator);
    return meeting == nullptr ? nullptr : &meeting->options.terms;
  };
}

Status RendezvousServer::Start() {
  if (running_) return Status::Ok();
  if (!wakeup_.valid()) {
    wakeup_ = OpenOwnFd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!wakeup_.valid()) return SystemErrorErrno("eventfd", errno);
  }
  Result<std::thread> thread = StartThread("inccl-root", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread->detach();
  running_ = true;
  return Status::Ok();
}

void RendezvousServer::Wake() {
  const uint64_t one = 1;
  (void)!write(wakeup_.get(), &one, sizeof one);
}

void RendezvousServer::Run() {
  const MutexLock lock(&mutex_);
  try {
    Serve();
  } catch (const std::exception&) {
    // Out of memory: the connections close, which every rank sees.
  }
  visitors_.clear();
  meetings_.clear();
  listeners_.clear();
  wakeup_.Reset();
  running_ = false;
}

void RendezvousServer::Serve() {
  while (Expire(SystemClock().Now()) && Poll()) {
  }
}

// Returns whether there is something to serve.
bool RendezvousServer::Expire(Time now) {
  if (now >= accept_after_) accept_after_ = 0;
  for (auto& [name, meeting] : meetings_) {
    for (auto& [number, root] : meeting->roots) root->Expire(now);
  }
  std::erase_if(visitors_, [&](const std::unique_ptr<Visitor>& visitor) {
    Session& session = visitor->session;
    Root* const root = visitor->root;
    if (session.fd.valid() && (session.member() || now < session.deadline) &&
        (root == nullptr || !root->Finished(now))) {
      return false;
    }
    if (root != nullptr) root->Remove(&session);
    return true;
  });
  for (auto at = meetings_.begin(); at != meetings_.end();) {
    Meeting& meeting = *at->second;
    std::erase_if(meeting.roots, [&](const auto& entry) {
      if (!entry.second->Finished(now)) return false;
      if (!meeting.options.of_job) {
        meeting.holders = 0;
        meeting.failure = entry.second->failure();
      }
      if (meeting.options.of_job && entry.second->complete()) {
        mutex_.AssertHeld();
        complete_[at->first].insert(entry.first);
      }
      return true;
    });
    // A rank that has authenticated to a job may be about to register for its next communicator,
    // which rank 0 has not opened yet.
    const bool visited = meeting.options.of_job && at->second.use_count() > 1;
    const bool ends = meeting.over() && !visited;
    if (ends) meeting.listeners.clear();  // a visitor may hold the meeting itself for longer
    at = ends ? meetings_.erase(at) : std::next(at);
  }
  std::erase_if(listeners_, [&](const auto& listener) { return listener.use_count() == 1; });
  for (const std::shared_ptr<Listener>& listener : listeners_) {
    size_t ranks = 0;
    for (const auto& [name, meeting] : meetings_) {
      if (std::ranges::find(meeting->listeners, listener) == meeting->listeners.end()) continue;
      const auto known = static_cast<size_t>(meeting->options.root.nranks);
      ranks = std::max(ranks, known > 0 ? known : kLikelyRanks);
      for (const auto& [number, root] : meeting->roots) {
        ranks = std::max(ranks, root->expected_ranks());
      }
    }
    listener->pending.ExpectRanks(ranks);
    listener->pending.Expire(now);
  }
  return !meetings_.empty() || !visitors_.empty();
}

Time RendezvousServer::NextDeadline() const {
  Time next = accept_after_ != 0 ? accept_after_ : kNever;
  for (const auto& [name, meeting] : meetings_) {
    for (const auto& [number, root] : meeting->roots) next = std::min(next, root->NextDeadline());
  }
  for (const auto& listener : listeners_) next = std::min(next, listener->pending.NextDeadline());
  for (const auto& visitor : visitors_) {
    if (!visitor->session.member()) next = std::min(next, visitor->session.deadline);
  }
  return next;
}

// Returns false if polling fails again and again.
bool RendezvousServer::Poll() {
  std::vector<pollfd> fds;
  const auto watch = [&](int fd, int events) {
    fds.push_back(
        {.fd = fd, .events = static_cast<decltype(pollfd::events)>(events), .revents = 0});
  };
  watch(wakeup_.get(), POLLIN);
  for (const std::unique_ptr<Visitor>& visitor : visitors_) {
    const Session& session = visitor->session;
    watch(session.fd.get(), POLLIN | (session.out.empty() ? 0 : POLLOUT));
  }
  // Other threads may add listeners meanwhile.
  const std::vector<std::shared_ptr<Listener>> listeners = listeners_;
  std::vector<size_t> places;  // of the listeners; their pending connections follow
  for (const std::shared_ptr<Listener>& listener : listeners) {
    places.push_back(fds.size());
    watch(accept_after_ == 0 ? listener->fd.get() : -1, POLLIN);
    listener->pending.AppendTo(&fds);
  }
  int ready = 0;
  const Time until = NextDeadline();
  {
    const MutexUnlock unlock(&mutex_);
    ready = PollUntil(fds, until);
  }
  poll_failures_ = ready < 0 ? poll_failures_ + 1 : 0;
  if (ready <= 0) return poll_failures_ < kMostPollFailures;
  uint64_t woken = 0;
  if (fds[0].revents != 0) (void)!read(wakeup_.get(), &woken, sizeof woken);
  // Existing connections first, because new ones change the lists.
  for (size_t i = 0; i < visitors_.size(); ++i) {
    Visitor* const visitor = visitors_[i].get();
    Session& session = visitor->session;
    const int events = fds[1 + i].revents;
    if ((events & POLLOUT) != 0) session.Flush();
    if ((events & ~POLLOUT) == 0) continue;
    const bool open = session.Read([&](const FrameParser::Frame& frame) {
      mutex_.AssertHeld();
      if (visitor->root != nullptr) return visitor->root->OnFrame(&session, frame);
      if (frame.kind != static_cast<uint8_t>(MessageKind::kRegister)) return session.Close();
      Register(visitor, frame.body);
    });
    if (open) continue;
    if (visitor->root != nullptr) visitor->root->OnGone(&session);
    session.Close();
    session.deadline = 0;
  }
  for (size_t i = 0; i < listeners.size(); ++i) {
    PendingConnections& pending = listeners[i]->pending;
    pending.Advance(fds.data() + places[i] + 1,
                    [this](const ServerHandshake& handshake, UniqueFd* fd) {
                      mutex_.AssertHeld();
                      return Promote(handshake, fd);
                    });
    if (fds[places[i]].revents != 0) AcceptFrom(listeners[i].get());
  }
  return true;
}

void RendezvousServer::AcceptFrom(Listener* listener) {
  for (int i = 0; i < kMostAccepts; ++i) {
    SocketAddress address;
    int error = 0;
    UniqueFd fd = Accept(listener->fd.get(), &address, &error);
    if (error == EAGAIN) return;
    if (error != 0) {
      const Time now = SystemClock().Now();
      accept_after_ = now + kAcceptPause;
      if (!failed_accepts_.Allow(now)) return;
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
          "the rendezvous cannot accept connections: errno {}", error);
      return;
    }
    FAULT_POINT("root.after_accept");
    listener->pending.Add(std::move(fd), address);
  }
}

std::string RendezvousServer::Promote(const ServerHandshake& handshake, UniqueFd* fd) {
  const auto meeting = meetings_.find(handshake.communicator());
  if (meeting == meetings_.end()) return "its communicator exists already";
  const Bytes reply = handshake.reply();
  if (!WriteAll(fd->get(), reply)) return "it closed before it authenticated";
  Result<ConnectionKeys> keys = handshake.Keys();
  if (!keys.ok()) return keys.status().message();
  Result<StreamCipher> cipher = StreamCipher::Create(keys->from_server, keys->from_client);
  if (!cipher.ok()) return cipher.status().message();
  auto visitor = std::make_unique<Visitor>();
  visitor->meeting = meeting->second;
  Session& session = visitor->session;
  session.fd = std::move(*fd);
  session.seal = std::move(cipher->seal);
  session.in.Protect(std::move(cipher->open));
  session.rank = handshake.rank();
  session.deadline =
      SystemClock().Now() + LimitFor(visitor->meeting->options.handshake_limit, handshake.nranks());
  visitors_.push_back(std::move(visitor));
  FAULT_POINT("root.after_authentication");
  return "";
}

void RendezvousServer::Register(Visitor* visitor, Bytes body) {
  Session& session = visitor->session;
  Result<Registration> registration = Registration::Decode(body);
  if (!registration.ok() || registration->record.rank != session.rank) return session.Close();
  session.pid = registration->record.pid;
  Meeting& meeting = *visitor->meeting;
  // A job's rank 0 runs the rendezvous.
  if (meeting.options.of_job && session.rank == 0 && !session.own()) {
    RankRecord self;
    self.pid = static_cast<uint32_t>(getpid());
    self.host = HostName();
    return session.Dismiss(MessageKind::kFailed,
                           EncodeError(InvalidUsage(ClaimedTwice(self, registration->record))));
  }
  const auto complete = complete_.find(meeting.options.terms.communicator);
  if (meeting.over() && !meeting.failure.ok()) {
    return session.Dismiss(MessageKind::kFailed, EncodeError(meeting.failure));
  }
  if ((meeting.over() && !meeting.options.of_job) ||
      (complete != complete_.end() && complete->second.contains(registration->number))) {
    return session.Dismiss(MessageKind::kFailed, EncodeError(TooLate()));
  }
  Root* const root = meeting.RootFor(*registration);
  visitor->root = root;
  root->Register(&session, *registration);
}

}  // namespace inccl::bootstrap
