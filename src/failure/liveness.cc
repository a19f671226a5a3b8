// SPDX-License-Identifier: Apache-2.0
#include "failure/liveness.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/rng.h"
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

namespace {

constexpr size_t kMostPlaceBytes = 4096;

}  // namespace

std::vector<std::byte> Position::Encode() const {
  ByteWriter writer;
  writer.U64(sequence);
  writer.U8(in_collective ? 2 : in_call ? 1 : 0);
  writer.U64(static_cast<uint64_t>(stalled));
  writer.String(std::string_view(place).substr(0, kMostPlaceBytes));
  writer.U32(static_cast<uint32_t>(awaits.size()));
  for (const int peer : awaits) writer.U32(static_cast<uint32_t>(peer));
  return writer.bytes();
}

Result<Position> Position::Decode(std::span<const std::byte> bytes, int nranks) {
  ByteReader reader(bytes);
  Position position;
  uint8_t in_call = 0;
  uint64_t stalled = 0;
  uint32_t count = 0;
  const auto ranks = static_cast<uint32_t>(nranks);
  bool good = reader.U64(&position.sequence) && reader.U8(&in_call) && in_call <= 2 &&
              reader.U64(&stalled) && stalled < static_cast<uint64_t>(kNever) &&
              reader.String(&position.place, kMostPlaceBytes) && reader.U32(&count) &&
              count <= ranks;
  for (uint32_t i = 0; good && i < count; ++i) {
    uint32_t peer = 0;
    good = reader.U32(&peer) && peer < ranks;
    position.awaits.push_back(static_cast<int>(peer));
  }
  if (!good || reader.remaining() != 0) return InternalError("malformed position of a rank");
  position.in_call = in_call != 0;
  position.in_collective = in_call == 2;
  position.stalled = static_cast<Time>(stalled);
  return position;
}

Positions::Positions(int rank, int nranks) : rank_(rank), peers_(static_cast<size_t>(nranks)) {}

void Positions::Asked(Time now) {
  for (Peer& peer : peers_) {
    if (peer.asked_at == 0) peer.asked_at = now;
  }
}

void Positions::Answered(int peer, Position position, Time now) {
  Peer& entry = peers_[static_cast<size_t>(peer)];
  entry.position = std::move(position);
  entry.answered_at = now;
  entry.asked_at = 0;
}

void Positions::Left(int peer) { peers_[static_cast<size_t>(peer)].left = true; }

bool Positions::IsSilent(int peer, Time now) const {
  const Time asked_at = Of(peer).asked_at;
  return asked_at != 0 && now - asked_at >= kAnswerLimit;
}

bool Positions::IsComplete(Time now) const {
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const Peer& entry = Of(peer);
    if (peer != rank_ && !entry.left && entry.asked_at != 0 && !IsSilent(peer, now)) return false;
  }
  return true;
}

// A chain that leads back to this rank, or into a circle, ends at its first rank.
int Positions::EndOfChain(int peer, Time now) const {
  std::vector<bool> visited(peers_.size());
  visited[static_cast<size_t>(rank_)] = true;
  int end = peer;
  while (!visited[static_cast<size_t>(end)]) {
    visited[static_cast<size_t>(end)] = true;
    const Peer& entry = Of(end);
    if (entry.answered_at == 0 || IsSilent(end, now) || !entry.position.in_call ||
        entry.position.awaits.empty()) {
      return end;
    }
    end = entry.position.awaits.front();
  }
  return peer;
}

std::vector<int> Positions::MissingOf(std::span<const int> awaited, Time now) const {
  std::vector<int> missing;
  for (const int peer : awaited) missing.push_back(EndOfChain(peer, now));
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

std::vector<int> Positions::Missing(uint64_t sequence, std::span<const int> awaited,
                                    Time now) const {
  std::vector<int> late, outside, silent;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const Peer& entry = Of(peer);
    if (peer == rank_ || entry.left) continue;
    if (IsSilent(peer, now)) {
      silent.push_back(peer);
    } else if (entry.answered_at != 0 && entry.position.sequence < sequence) {
      (entry.position.in_call ? late : outside).push_back(peer);
    }
  }
  if (!outside.empty()) return outside;
  if (!silent.empty()) return silent;
  return late.empty() ? MissingOf(awaited, now) : late;
}

std::string Positions::Describe(int peer, Time now) const {
  const Peer& entry = Of(peer);
  if (IsSilent(peer, now)) {
    return fmt::format("it has not answered for {} ms", (now - entry.asked_at) / kMillisecond);
  }
  if (entry.answered_at == 0) return "it has not been asked where it is";
  return fmt::format("it is alive, {}{}", entry.position.in_call ? "" : "outside the library ",
                     entry.position.place);
}

RankStatus Positions::StatusOf(int peer, Time now) const {
  const Peer& entry = Of(peer);
  RankStatus status{.position = entry.position};
  if (entry.left) {
    status.state = RankStatus::State::kLeft;
  } else if (IsSilent(peer, now)) {
    status.state = RankStatus::State::kSilent;
    status.silence = now - entry.asked_at;
  } else if (entry.answered_at != 0) {
    status.state = RankStatus::State::kAnswered;
  }
  return status;
}

bool Positions::FindCircle(int peer, Search* search) const {
  const Peer& entry = Of(peer);
  if (peer == rank_ || search->visited[static_cast<size_t>(peer)]) return peer == rank_;
  search->visited[static_cast<size_t>(peer)] = true;
  // The limits together show that all ranks of the path stood still at the same time.
  if (entry.answered_at == 0 || search->now - entry.answered_at > kFresh ||
      entry.position.stalled < search->stall) {
    return false;
  }
  search->path.push_back(peer);
  for (const int next : entry.position.awaits) {
    const uint64_t reached = next == rank_ ? search->own_sequence : Of(next).position.sequence;
    if (entry.position.in_collective && reached > entry.position.sequence) continue;
    if (FindCircle(next, search)) return true;
  }
  search->path.pop_back();
  return false;
}

std::vector<int> Positions::Circle(uint64_t sequence, std::span<const int> awaited, Time stall,
                                   Time now) const {
  Search search = {.own_sequence = sequence,
                   .stall = stall,
                   .now = now,
                   .visited = std::vector<bool>(peers_.size()),
                   .path = {}};
  for (const int peer : awaited) {
    if (FindCircle(peer, &search)) break;
  }
  return search.path;
}

std::string CallHistory::Difference::ToString(int rank, int nranks) const {
  const bool we_first = rank < peer;
  return fmt::format("ranks disagree at op {}: rank {}/{} calls {}, rank {}/{} calls {}",
                     ours.sequence, we_first ? rank : peer, nranks,
                     (we_first ? ours : theirs).ToString(), we_first ? peer : rank, nranks,
                     (we_first ? theirs : ours).ToString());
}

std::optional<CallHistory::Difference> CallHistory::Begin(uint64_t sequence, const Call& call) {
  CallRecord& ours = records_[sequence % kKept];
  ours.Set(sequence, call);
  chain_ = Mix64(chain_ ^ ours.Signature());
  latest_ = sequence;
  if (!any_pending_) return std::nullopt;
  std::optional<Difference> difference;
  any_pending_ = false;
  for (size_t peer = 0; peer < pending_.size(); ++peer) {
    std::optional<CallRecord>& theirs = pending_[peer];
    if (!theirs) continue;
    if (theirs->sequence > sequence) {
      any_pending_ = true;
      continue;
    }
    if (theirs->sequence == sequence && !theirs->SameCall(ours)) {
      difference = {static_cast<int>(peer), ours, *theirs};
    }
    theirs.reset();
  }
  return difference;
}

std::optional<CallHistory::Difference> CallHistory::Compare(int peer, const CallRecord& theirs) {
  if (theirs.sequence > latest_) {
    pending_[static_cast<size_t>(peer)] = theirs;
    any_pending_ = true;
    return std::nullopt;
  }
  const CallRecord& ours = records_[theirs.sequence % kKept];
  if (ours.sequence != theirs.sequence || ours.SameCall(theirs)) return std::nullopt;
  return Difference{peer, ours, theirs};
}

void CallHistory::AppendNews(std::vector<std::vector<std::byte>>* records) {
  if (appended_ == latest_) return;
  appended_ = latest_;
  records->push_back(record().Encode());
}

void CallHistory::AppendEarlier(std::vector<std::vector<std::byte>>* records) {
  if (earlier_appended_ == latest_) return;
  earlier_appended_ = latest_;
  for (uint64_t back = std::min<uint64_t>(kKept, latest_) - 1; back > 0; --back) {
    records->push_back(records_[(latest_ - back) % kKept].Encode());
  }
}

}  // namespace inccl
