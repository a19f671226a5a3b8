// SPDX-License-Identifier: Apache-2.0
#include "failure/liveness.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/escaped.h"
#include "base/log.h"
#include "base/rank_name.h"
#include "base/rng.h"

namespace inccl {
namespace {

// kWhere answers kAsk.
enum Message : uint8_t { kRecord = 1, kError = 2, kWhere = 3, kAsk = 4 };

// Without progress for this long a rank tells the others which call it is in.
constexpr Time kNotifyAfter = 20 * kMillisecond;
// A slice of another call has come, yet no record explains it for this long.
constexpr Time kMismatchAfter = 1500 * kMillisecond;
// A peer that said goodbye may have left slices behind; without progress for this long after we
// have seen that it left they are not coming.
constexpr Time kDepartedAfter = 200 * kMillisecond;
// Who tells others waits for nobody, but may be kept from running for a while: those to whom a rank
// said goodbye before it told them would take it for one that left without taking part. In a child
// of fork() the thread that tells does not exist.
constexpr Time kNotifyLimit = 10 * kSecond;
// A rank whose sends or receives stall asks the others so often where they are: the ranks may wait
// for each other. Less often as time goes by.
constexpr Time kFirstAsk = 500 * kMillisecond, kLastAsk = 5 * kSecond;
// While it waits a thread looks more often than this. What it has seen before counts no more.
constexpr Time kLookedLately = 250 * kMillisecond;

// Of errors that ranks tell each other; the other codes are a caller's own affair.
bool IsFatal(uint32_t code) {
  return code >= 1 && code <= static_cast<uint32_t>(Code::kTimeout) &&
         code != static_cast<uint32_t>(Code::kInvalidArgument) &&
         code != static_cast<uint32_t>(Code::kInProgress);
}

[[noreturn]] void AbortProcess(const Status& error) {
  Log(LogLevel::kWarn, LogSubsystem::kCollectives, "INCCL_ABORT_ON_ERROR: {}", error.message());
  std::abort();
}

}  // namespace

Liveness::Liveness(LivenessOptions options, WakeupEvent* wakeup_event,
                   ShrinkAgreement* shrink_agreement)
    : options_(std::move(options)),
      out_of_memory_(SystemError(
          fmt::format("{}: {}", RankName(options_.rank, options_.nranks, options_.comm_name),
                      OutOfMemory().message()))),
      wakeup_event_(wakeup_event),
      shrink_agreement_(shrink_agreement),
      departed_(static_cast<size_t>(options_.nranks)),
      pending_(static_cast<size_t>(options_.nranks)),
      departure_seen_(static_cast<size_t>(options_.nranks)),
      positions_(options_.rank, options_.nranks) {}

Status Liveness::error() const {
  const MutexLock lock(&mutex_);
  return error_;
}

std::string Liveness::Where() const {
  return RankName(options_.rank, options_.nranks, options_.comm_name) + " " + Place();
}

std::string Liveness::Place() const {
  std::string before =
      latest_ == 0 ? std::string("before any op") : fmt::format("after op {}", latest_);
  if (send_recv_ != nullptr)
    return fmt::format("{} in {}", before, SendRecvRequest::Describe(*send_recv_));
  if (!in_call_.load() || latest_ == 0) return before;
  return fmt::format("in op {} {}", latest_, history_[latest_ % kHistory].ToString());
}

void Liveness::BeginSendRecv(const std::vector<SendRecvCall>* calls) {
  const MutexLock lock(&mutex_);
  send_recv_ = calls;
  warned_ = false;
  asked_ = looked_ = 0;
  in_call_.store(true, std::memory_order_release);
}

// Not analysed: reads send_recv_ without the mutex, so that the end of a collective takes none.
void Liveness::EndCall() INCCL_NO_THREAD_SAFETY_ANALYSIS {
  if (in_call_.load(std::memory_order_relaxed) && send_recv_ != nullptr) {
    const MutexLock lock(&mutex_);
    send_recv_ = nullptr;
  }
  in_call_.store(false, std::memory_order_release);
}

Status Liveness::Disagreement(int peer, const CallRecord& ours, const CallRecord& theirs) const {
  const bool we_first = options_.rank < peer;
  return InvalidUsage(
      fmt::format("{}: ranks disagree at op {}: rank {}/{} calls {}, rank {}/{} calls {}", Where(),
                  ours.sequence, we_first ? options_.rank : peer, options_.nranks,
                  (we_first ? ours : theirs).ToString(), we_first ? peer : options_.rank,
                  options_.nranks, (we_first ? theirs : ours).ToString()));
}

Status Liveness::BeginCall(uint64_t sequence, const Call& call, uint64_t* signature) {
  Status disagreement;
  {
    const MutexLock lock(&mutex_);
    CallRecord& record = history_[sequence % kHistory];
    record.Set(sequence, call);
    // Of this call and all before it: ranks that differed once, in calls that could end without the
    // others, do not agree on any call after that.
    chain_ = Mix64(chain_ ^ record.Signature());
    *signature = chain_;
    latest_ = sequence;
    warned_ = false;
    asked_ = looked_ = 0;
    in_call_.store(true, std::memory_order_release);
    if (any_pending_.load(std::memory_order_relaxed)) {
      bool left = false;
      for (size_t peer = 0; peer < pending_.size(); ++peer) {
        if (!pending_[peer]) continue;
        if (pending_[peer]->sequence > sequence) {
          left = true;
          continue;
        }
        if (pending_[peer]->sequence == sequence && !pending_[peer]->SameCall(record)) {
          disagreement = Disagreement(static_cast<int>(peer), record, *pending_[peer]);
        }
        pending_[peer].reset();
      }
      any_pending_.store(left, std::memory_order_relaxed);
    }
  }
  if (!disagreement.ok()) Fail(disagreement);
  return Check();
}

void Liveness::End(const Status& status, bool abort) {
  Status named = status;
  const Status made = CatchOutOfMemory([&] {
    const MutexLock lock(&mutex_);
    // Where the error was found nobody knew whose it is.
    if (!status.message().starts_with(fmt::format("rank {}/", options_.rank))) {
      named = Status(status.code(), fmt::format("{}: {}", Where(), status.message()));
    }
    return Status::Ok();
  });
  if (!made.ok()) named = out_of_memory_;
  FailAndNotify(named, named, abort);
}

void Liveness::Begin() {
  const MutexLock notifying(&notifying_);
  begun_ = true;
  // Creation had succeeded, and a peer has failed since.
  if (options_.abort_on_error && failed()) AbortProcess(error());
}

void Liveness::FailAndNotify(const Status& status, const Status& tell, bool abort) {
  if (failed_.load(std::memory_order_acquire)) return;
  const MutexLock notifying(&notifying_);
  {
    const MutexLock lock(&mutex_);
    if (failed_.load()) return;
    error_ = status;
    failed_.store(true, std::memory_order_release);
  }
  Notify(tell);
  if (abort && begun_) AbortProcess(status);
  if (wakeup_event_ != nullptr) wakeup_event_->Signal();
}

void Liveness::WaitFailed(Time limit) const {
  constexpr useconds_t kLook = 100;
  const Time end = SystemClock().Now() + limit;
  while (!failed() && SystemClock().Now() < end) usleep(kLook);
}

// The caller's thread returns from its call as soon as it sees the error, and may destroy the
// communicator while the thread that found it has not told the others yet.
void Liveness::WaitNotified() {
  constexpr useconds_t kLook = 100;
  for (const Time end = SystemClock().Now() + kNotifyLimit; SystemClock().Now() < end;
       usleep(kLook)) {
    if (!notifying_.TryLock()) continue;
    notifying_.Unlock();
    return;
  }
}

void Liveness::Notify(const Status& status) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  // As a ByteWriter would write it, but needs no memory, which may be what is missing.
  std::array<std::byte, kMostNotifiedBytes> body;
  const auto put = [&](size_t at, size_t value) {
    for (size_t i = 0; i < 4; ++i) body[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  constexpr size_t kText = 8;
  const std::string_view text = std::string_view(status.message()).substr(0, body.size() - kText);
  put(0, static_cast<size_t>(status.code()));
  put(4, text.size());
  std::memcpy(body.data() + kText, text.data(), text.size());
  control->Broadcast(kError, std::span(body).first(kText + text.size()));
}

// From the first stall that sees it, and not from the start of this one: a thread that was kept
// from running since it last looked may not have seen what the peer sent before it left.
bool Liveness::LongGone(int peer) {
  if (peer < 0 || !departed_[static_cast<size_t>(peer)].load()) return false;
  const Time now = SystemClock().Now();
  Time& seen = departure_seen_[static_cast<size_t>(peer)];
  if (seen == 0) seen = now;
  return now - seen >= kDepartedAfter;
}

void Liveness::CollectRecords(const Request& request,
                              std::vector<std::vector<std::byte>>* records) {
  if (request.mismatched_peer() >= 0 && notified_history_ != latest_) {
    // Earlier calls may have differed that some rank could end without hearing of the others.
    notified_history_ = latest_;
    for (uint64_t back = std::min<uint64_t>(kHistory, latest_) - 1; back > 0; --back) {
      records->push_back(history_[(latest_ - back) % kHistory].Encode());
    }
  }
  if (send_recv_ == nullptr && notified_sequence_ != latest_) {
    notified_sequence_ = latest_;
    records->push_back(history_[latest_ % kHistory].Encode());
  }
}

// "peer 2@a:17: it is alive, outside the library after op 4; peer 3@...".
std::string Liveness::WaitingFor(const Request& request, std::span<const int> awaited) const {
  if (request.blocked_on().on == Blocked::On::kCompletion) {
    return "this rank's device to do its part";
  }
  const Time now = SystemClock().Now();
  const std::vector<int> missing = send_recv_ != nullptr
                                       ? positions_.MissingOf(awaited, now)
                                       : positions_.Missing(latest_, awaited, now);
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
  if (stalled < asked_) asked_ = 0;  // there was progress since
  if (send_recv_ != nullptr) {
    *ask = stalled - asked_ >= std::clamp<Time>(asked_ / 4, kFirstAsk, kLastAsk);
    const std::vector<int> circle = positions_.Circle(awaited, SystemClock().Now());
    if (stalled >= Positions::kCircleStall && !circle.empty()) return InACircle(circle);
  }
  if (stalled >= options_.op_timeout) {
    if (!AreAnswersThere(options_.op_timeout, ask)) return Status::Ok();
    return TimeoutError(fmt::format(
        "{}: no progress for {} ms (limit {} ms), waiting for {}", Where(), stalled / kMillisecond,
        options_.op_timeout / kMillisecond, WaitingFor(request, awaited)));
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
  Status failure;
  bool ask = false;
  {
    const MutexLock lock(&mutex_);
    looked_ = SystemClock().Now();
    stalled_ = stalled;
    awaited_.assign(awaited.begin(), awaited.end());
    CollectRecords(request, &records);
    failure = Judge(request, awaited, stalled, &ask);
    if (ask) {
      asked_ = stalled;
      positions_.Asked(looked_);
    }
  }
  if (ControlPlane* control = control_.load(); control != nullptr) {
    for (const std::vector<std::byte>& record : records) control->Broadcast(kRecord, record);
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
  } else if (kind == kError) {
    return OnError(peer, body);
  }
  Fail(InternalError(fmt::format("{}: malformed control message of kind {} from peer {}@{}",
                                 RankName(options_.rank, options_.nranks, options_.comm_name), kind,
                                 peer, options_.peer_names[static_cast<size_t>(peer)])));
}

void Liveness::OnRecord(int peer, const CallRecord& theirs) {
  Status disagreement;
  {
    const MutexLock lock(&mutex_);
    if (theirs.sequence > latest_) {
      pending_[static_cast<size_t>(peer)] = theirs;
      any_pending_.store(true, std::memory_order_relaxed);
      return;
    }
    const CallRecord& ours = history_[theirs.sequence % kHistory];
    if (ours.sequence == theirs.sequence && !ours.SameCall(theirs)) {
      disagreement = Disagreement(peer, ours, theirs);
    }
  }
  if (!disagreement.ok()) Fail(disagreement);
}

void Liveness::OnAsk(int peer) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  Position position;
  {
    const MutexLock lock(&mutex_);
    position.sequence = latest_;
    position.in_call = in_call_.load();
    position.place = Place();
    if (position.in_call && looked_ != 0 && SystemClock().Now() - looked_ < kLookedLately) {
      position.stalled = stalled_;
      position.awaits = awaited_;
    }
  }
  control->Send(peer, kWhere, position.Encode());
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
  ByteReader reader(body);
  uint32_t code = 0;
  std::string text;
  if (!reader.U32(&code) || !reader.String(&text) || !IsFatal(code)) {
    Fail(InternalError(fmt::format("malformed error message from peer {}", peer)));
    return;
  }
  text = Escaped(text);
  Status ours;
  {
    const MutexLock lock(&mutex_);
    ours = Status(static_cast<Code>(code),
                  fmt::format("{}: peer {}@{} reports: {}", Where(), peer,
                              options_.peer_names[static_cast<size_t>(peer)], text));
  }
  FailAndNotify(ours, Status(static_cast<Code>(code), std::move(text)), options_.abort_on_error);
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
        Where(), peer, options_.peer_names[static_cast<size_t>(peer)]));
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
        Where(), peer, options_.peer_names[static_cast<size_t>(peer)], silence / kMillisecond,
        limit / kMillisecond));
  }
  Fail(failure);
}

}  // namespace inccl
