// SPDX-License-Identifier: Apache-2.0
#include "failure/liveness.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "failure/sticky_error.h"

namespace inccl {
namespace {

// kWhere answers kAsk.
enum Message : uint8_t { kRecord = 1, kError = StickyError::kNoticeKind, kWhere = 3, kAsk = 4 };

// A rank without progress for this long sends its neighbours its record of the call, and after the
// longer time some other ranks that it waits for. Of ranks that disagree some are neighbours, but
// these may have gone on; then a chain of ranks that wait leads to one that has not.
constexpr Time kNotifyAfter = 20 * kMillisecond, kNotifyFarAfter = 500 * kMillisecond;
constexpr size_t kMostFarTold = 8;
// A rank that has received a slice of another call waits this long for a record that explains it.
constexpr Time kMismatchAfter = 1500 * kMillisecond;
// Slices of a peer may arrive after its disconnect. After this long without progress since this
// rank saw the disconnect, no more are expected.
constexpr Time kDepartedAfter = 200 * kMillisecond;
// A rank whose sends or receives stall asks the others for their positions at these intervals,
// which grow, to find ranks that wait for each other.
constexpr Time kFirstAsk = 500 * kMillisecond, kLastAsk = 5 * kSecond;
// A waiting thread calls OnStall more often than this; older observations do not count.
constexpr Time kLookedLately = 250 * kMillisecond;

}  // namespace

Liveness::Liveness(LivenessOptions options, StickyError* sticky_error,
                   ShrinkAgreement* shrink_agreement, Invitations* invitations)
    : options_(std::move(options)),
      op_timeout_(options_.op_timeout),
      out_of_memory_(SystemError(
          fmt::format("{}: {}", RankName(options_.rank, options_.nranks, options_.comm_name),
                      OutOfMemory().message()))),
      sticky_error_(sticky_error),
      shrink_agreement_(shrink_agreement),
      invitations_(invitations),
      departed_(static_cast<size_t>(options_.nranks)),
      calls_(options_.nranks),
      departure_seen_(static_cast<size_t>(options_.nranks)),
      positions_(options_.rank, options_.nranks) {}

std::string Liveness::Where() const {
  return RankName(options_.rank, options_.nranks, options_.comm_name) + " " + Place();
}

std::string Liveness::Place() const {
  std::string before = calls_.latest() == 0 ? std::string("before any op")
                                            : fmt::format("after op {}", calls_.latest());
  if (send_recv_ != nullptr) {
    return fmt::format("{} in {}", before, SendRecvRequest::Describe(*send_recv_));
  }
  if (!in_call_.load() || calls_.latest() == 0) return before;
  return fmt::format("in op {} {}", calls_.latest(), calls_.record().ToString());
}

void Liveness::BeginSendRecv(const std::vector<Call>* calls) {
  const MutexLock lock(&mutex_);
  send_recv_ = calls;
  warned_ = far_told_ = false;
  asked_ = looked_ = 0;
  in_call_.store(true, std::memory_order_release);
}

// Not analysed: reads send_recv_ without the mutex, so the end of a collective does not lock.
void Liveness::EndCall() INCCL_NO_THREAD_SAFETY_ANALYSIS {
  if (in_call_.load(std::memory_order_relaxed) && send_recv_ != nullptr) {
    const MutexLock lock(&mutex_);
    send_recv_ = nullptr;
  }
  in_call_.store(false, std::memory_order_release);
}

Status Liveness::Disagreement(const std::optional<CallHistory::Difference>& difference) const {
  if (!difference) return Status::Ok();
  return InvalidUsage(
      fmt::format("{}: {}", Where(), difference->ToString(options_.rank, options_.nranks)));
}

Status Liveness::BeginCall(uint64_t sequence, const Call& call, uint64_t* signature) {
  Status disagreement;
  {
    const MutexLock lock(&mutex_);
    in_call_.store(true, std::memory_order_release);
    warned_ = far_told_ = false;
    asked_ = looked_ = 0;
    const std::optional<CallHistory::Difference> difference = calls_.Begin(sequence, call);
    *signature = calls_.signature();
    disagreement = Disagreement(difference);
  }
  if (!disagreement.ok()) Fail(disagreement);
  return Check();
}

void Liveness::Fail(const Status& status, StickyError::Origin origin) {
  Status named = status;
  const Status made = CatchOutOfMemory([&] {
    const MutexLock lock(&mutex_);
    // The code that found the error may not know the rank, so its name is added here.
    if (!status.message().starts_with(fmt::format("rank {}/", options_.rank))) {
      named = Status(status.code(), fmt::format("{}: {}", Where(), status.message()));
    }
    return Status::Ok();
  });
  if (!made.ok()) named = out_of_memory_;
  sticky_error_->Set(named, named, origin);
}

// Counts from the first stall that sees the disconnect, not from the start of the stall: a thread
// that was kept from running may not have seen yet what the peer sent before it left.
bool Liveness::LongGone(int peer) {
  if (peer < 0 || !departed_[static_cast<size_t>(peer)].load()) return false;
  const Time now = SystemClock().Now();
  Time& seen = departure_seen_[static_cast<size_t>(peer)];
  if (seen == 0) seen = now;
  return now - seen >= kDepartedAfter;
}

void Liveness::CollectRecords(const Request& request, Time stalled,
                              std::vector<std::vector<std::byte>>* records,
                              std::vector<std::byte>* newest) {
  // The mismatch may be in an earlier call that some rank completed without data from the others.
  if (request.mismatched_peer() >= 0) calls_.AppendEarlier(records);
  if (send_recv_ != nullptr) return;
  calls_.AppendNews(records);
  if (stalled < kNotifyFarAfter || std::exchange(far_told_, true)) return;
  *newest = calls_.record().Encode();
}

// "peer 2@a:17: it is alive, outside the library after op 4; peer 3@...".
std::string Liveness::WaitingFor(const Request& request, std::span<const int> awaited) const {
  if (request.blocked_on().on == Blocked::On::kCompletion) {
    return "this rank's device to do its part";
  }
  const Time now = SystemClock().Now();
  const std::vector<int> missing = send_recv_ != nullptr
                                       ? positions_.MissingOf(awaited, now)
                                       : positions_.Missing(calls_.latest(), awaited, now);
  std::string text;
  for (const int peer : missing) {
    text += fmt::format("{}peer {}@{}: {}", text.empty() ? "" : "; ", peer, Named(peer),
                        positions_.Describe(peer, now));
  }
  return text.empty() ? "its data to leave this process" : text;
}

Status Liveness::InACircle(std::span<const int> circle) const {
  std::string text;
  for (size_t i = 0; i < circle.size(); ++i) {
    const int next = i + 1 < circle.size() ? circle[i + 1] : options_.rank;
    text += fmt::format("; peer {}@{} {} waits for rank {}", circle[i], Named(circle[i]),
                        positions_.PlaceOf(circle[i]), next);
  }
  return InvalidUsage(
      fmt::format("{}: the ranks wait for each other: this rank waits for rank {}{}", Where(),
                  circle.front(), text));
}

Status Liveness::Judge(const Request& request, std::span<const int> awaited, Time stalled,
                       bool* ask) {
  for (const int peer : awaited) {
    if (LongGone(peer) && stalled >= kDepartedAfter) {
      return RemoteError(
          fmt::format("{}: peer {}@{} closed its communicator without taking part; waited {} ms",
                      Where(), peer, Named(peer), stalled / kMillisecond));
    }
  }
  if (const int peer = request.mismatched_peer(); peer >= 0 && stalled >= kMismatchAfter) {
    return InvalidUsage(
        fmt::format("{}: peer {}@{} sent data of another call", Where(), peer, Named(peer)));
  }
  if (stalled < asked_) asked_ = 0;  // the call has made progress since
  if (send_recv_ != nullptr) {
    *ask = stalled - asked_ >= std::clamp<Time>(asked_ / 4, kFirstAsk, kLastAsk);
    if (stalled >= options_.circle_stall) {
      const std::vector<int> circle =
          positions_.Circle(calls_.latest(), awaited, options_.circle_stall, SystemClock().Now());
      if (!circle.empty()) return InACircle(circle);
    }
  }
  if (const Time limit = op_timeout(); stalled >= limit) {
    if (!AreAnswersThere(limit, ask)) return Status::Ok();
    return TimeoutError(fmt::format("{}: no progress for {} ms (limit {} ms), waiting for {}",
                                    Where(), stalled / kMillisecond, limit / kMillisecond,
                                    WaitingFor(request, awaited)));
  }
  if (stalled >= options_.warn_after && !warned_ && AreAnswersThere(options_.warn_after, ask)) {
    warned_ = true;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives, "{}: no progress for {} s, waiting for {}",
        Where(), stalled / kSecond, WaitingFor(request, awaited));
  }
  return Status::Ok();
}

bool Liveness::AreAnswersThere(Time since, bool* ask) const {
  if (asked_ < since) *ask = true;
  return !*ask && positions_.IsComplete(SystemClock().Now());
}

Status Liveness::OnStall(const Request& request, std::span<const int> awaited, Time stalled) {
  if (stalled < kNotifyAfter) return Status::Ok();
  std::vector<std::vector<std::byte>> records;
  std::vector<std::byte> newest;
  Status failure;
  bool ask = false;
  {
    const MutexLock lock(&mutex_);
    looked_ = SystemClock().Now();
    stalled_ = stalled;
    awaited_.assign(awaited.begin(), awaited.end());
    CollectRecords(request, stalled, &records, &newest);
    failure = Judge(request, awaited, stalled, &ask);
    if (ask) {
      asked_ = stalled;
      positions_.Asked(looked_);
    }
  }
  if (ControlPlane* control = control_.load(); control != nullptr) {
    const int mismatched = request.mismatched_peer();
    for (const std::vector<std::byte>& record : records) {
      control->SendToNeighbours(kRecord, record);
      if (!control->IsNeighbour(mismatched)) control->Send(mismatched, kRecord, record);
    }
    for (const int peer : awaited.first(std::min(awaited.size(), kMostFarTold))) {
      if (!newest.empty() && !control->IsNeighbour(peer)) control->Send(peer, kRecord, newest);
    }
    if (ask) control->Broadcast(kAsk, {});
  }
  if (!failure.ok()) Fail(failure);
  return Check();
}

void Liveness::OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) {
  if (kind == kRecord) {
    Result<CallRecord> record = CallRecord::Decode(body);
    if (record.ok()) return OnRecord(peer, *record);
  } else if (kind == kWhere) {
    return OnWhere(peer, body);
  } else if (kind == kAsk && body.empty()) {
    return OnAsk(peer);
  } else if (ShrinkAgreement::Owns(kind)) {
    if (shrink_agreement_->OnMessage(peer, kind, body)) return;
  } else if (Invitations::Owns(kind)) {
    if (invitations_->OnMessage(peer, body)) return;
  } else if (kind == kError) {
    return OnError(peer, body);
  }
  Fail(InternalError(fmt::format("{}: malformed control message of kind {} from peer {}@{}",
                                 RankName(options_.rank, options_.nranks, options_.comm_name), kind,
                                 peer, Named(peer))));
}

void Liveness::OnRecord(int peer, const CallRecord& theirs) {
  Status disagreement;
  {
    const MutexLock lock(&mutex_);
    disagreement = Disagreement(calls_.Compare(peer, theirs));
  }
  if (!disagreement.ok()) Fail(disagreement);
}

void Liveness::OnAsk(int peer) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  Position position;
  {
    const MutexLock lock(&mutex_);
    position = OwnPosition();
  }
  control->Send(peer, kWhere, position.Encode());
}

Position Liveness::OwnPosition() const {
  Position position;
  position.sequence = calls_.latest();
  position.in_call = in_call_.load();
  position.in_collective = position.in_call && send_recv_ == nullptr;
  position.place = Place();
  if (position.in_call && looked_ != 0 && SystemClock().Now() - looked_ < kLookedLately) {
    position.stalled = stalled_;
    position.awaits = awaited_;
  }
  return position;
}

void Liveness::AskAll() {
  ControlPlane* const control = control_.load();
  if (control == nullptr) return;
  {
    const MutexLock lock(&mutex_);
    positions_.Asked(SystemClock().Now());
  }
  control->Broadcast(kAsk, {});
}

bool Liveness::HasAnswers() const {
  const MutexLock lock(&mutex_);
  return positions_.IsComplete(SystemClock().Now());
}

std::vector<RankStatus> Liveness::RankStatuses() const {
  const MutexLock lock(&mutex_);
  const Time now = SystemClock().Now();
  std::vector<RankStatus> all;
  for (int rank = 0; rank < options_.nranks; ++rank) all.push_back(positions_.StatusOf(rank, now));
  RankStatus& own = all[static_cast<size_t>(options_.rank)];
  own.state = RankStatus::State::kAnswered;
  own.position = OwnPosition();
  return all;
}

void Liveness::OnWhere(int peer, std::span<const std::byte> body) {
  Result<Position> position = Position::Decode(body, options_.nranks);
  if (!position.ok()) {
    Fail(InternalError(fmt::format("malformed answer from peer {}", peer)));
    return;
  }
  position->place = Escaped(position->place);
  const MutexLock lock(&mutex_);
  positions_.Answered(peer, *std::move(position), SystemClock().Now());
}

void Liveness::OnError(int peer, std::span<const std::byte> body) {
  const Status theirs = ReadNotice(body);
  if (theirs.ok()) {
    Fail(InternalError(fmt::format("malformed error message from peer {}", peer)));
    return;
  }
  Status ours;
  {
    const MutexLock lock(&mutex_);
    ours = Status(theirs.code(), fmt::format("{}: peer {}@{} reports: {}", Where(), peer,
                                             Named(peer), theirs.message()));
  }
  sticky_error_->Set(ours, theirs, StickyError::Origin::kFailure);
}

void Liveness::OnPeerClosed(int peer, bool clean) {
  shrink_agreement_->OnPeerClosed(peer);
  if (clean) {
    departed_[static_cast<size_t>(peer)].store(true);
    const MutexLock lock(&mutex_);
    positions_.Left(peer);
    return;
  }
  Status failure;
  {
    const MutexLock lock(&mutex_);
    failure = RemoteError(fmt::format(
        "{}: peer {}@{} failed: its control connection closed without finalize (process died?)",
        Where(), peer, Named(peer)));
  }
  Fail(failure);
}

void Liveness::OnPeerSilent(int peer, Time silence, Time limit) {
  shrink_agreement_->OnPeerClosed(peer);
  Status failure;
  {
    const MutexLock lock(&mutex_);
    failure = RemoteError(fmt::format(
        "{}: peer {}@{} failed: no sign of life for {} ms (limit {} ms), though its connection is "
        "open (process stopped? INCCL_DEAD_TIMEOUT_MS)",
        Where(), peer, Named(peer), silence / kMillisecond, limit / kMillisecond));
  }
  Fail(failure);
}

void Liveness::OnPeerCutOff(int peer) {
  shrink_agreement_->OnPeerClosed(peer);
  Status failure;
  {
    const MutexLock lock(&mutex_);
    failure = RemoteError(
        fmt::format("{}: peer {}@{} is lost: no rank is left that passes control messages on to it",
                    Where(), peer, Named(peer)));
  }
  Fail(failure);
}

}  // namespace inccl
