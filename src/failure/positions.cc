// SPDX-License-Identifier: Apache-2.0
#include "failure/positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/rng.h"

namespace inccl {
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
