// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_root.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"

namespace inccl::bootstrap {
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
    Fail(TimeoutError(fmt::format("{} of {} did not arrive within {} ms",
                                  ListRanks(gathering_.Missing()), gathering_.nranks(),
                                  timeout_ms_)));
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
      options_.patience / kMillisecond, ListRanks(gathers ? gathering_.Missing() : Awaited()),
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
      if (joins && !session->blob) return OnDone(session);
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

void Root::OnDone(Session* session) {
  session->state = Session::State::kDone;
  if (!Awaited().empty()) return;
  phase_ = Phase::kComplete;
  FAULT_POINT("root.before_go");
  for (const bool own : {false, true}) Dismiss(own, MessageKind::kGo, {});
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
  if (gathering_.complete()) SendTable();
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
  const std::vector<std::byte> body = table.Encode();
  FAULT_POINT("root.before_table");
  for (Session* const session : sessions_) {
    if (session->member()) session->Send(MessageKind::kTable, body);
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

}  // namespace inccl::bootstrap
