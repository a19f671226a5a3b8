// SPDX-License-Identifier: Apache-2.0
#include "failure/shrink_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "bootstrap/crypto.h"

namespace inccl {
namespace {

constexpr size_t kBytes = 8 + kUniqueIdBytes;
constexpr Time kLookInterval = 10 * kMillisecond;  // at whether the communicator has failed

}  // namespace

void Invitations::Send(int peer, uint64_t split, const UniqueId& id) {
  ControlPlane* const control = control_.load();
  if (control == nullptr) return;
  std::array<std::byte, kBytes> body;
  for (size_t i = 0; i < 8; ++i) body[i] = static_cast<std::byte>(split >> (8 * i));
  id.Encode(body.data() + 8);
  control->Send(peer, kInvitation, body);
  bootstrap::Wipe(body);
}

Result<UniqueId> Invitations::Await(int peer, uint64_t split, Time deadline,
                                    const std::atomic<bool>* failed) {
  const MutexLock lock(&mutex_);
  const Received& received = received_[static_cast<size_t>(peer)];
  while (received.split < split) {
    if (failed->load()) return RemoteError("the communicator has failed");
    const Time now = SystemClock().Now();
    if (now >= deadline) {
      return TimeoutError(fmt::format("rank {} sent no id of the split communicator", peer));
    }
    changed_.WaitFor(&mutex_, std::min(kLookInterval, deadline - now));
  }
  if (received.split != split) {
    return InternalError(
        fmt::format("rank {} is in split {}, this rank in split {}", peer, received.split, split));
  }
  return received.id;
}

bool Invitations::OnMessage(int peer, std::span<const std::byte> body) {
  if (body.size() != kBytes) return false;
  Received received;
  ByteReader(body).U64(&received.split);
  Result<UniqueId> id = UniqueId::Decode(body.data() + 8);
  if (!id.ok() || received.split == 0) return false;
  received.id = *std::move(id);
  const MutexLock lock(&mutex_);
  Received& known = received_[static_cast<size_t>(peer)];
  if (received.split <= known.split) return false;
  known = std::move(received);
  changed_.NotifyAll();
  return true;
}

namespace {

// After joining fails, the message that explains it may take this long to arrive.
constexpr Time kNewsLag = kSecond;

}  // namespace

ShrinkAgreement::ShrinkAgreement(int rank, int nranks, std::vector<std::string> peer_names)
    : rank_(rank),
      nranks_(nranks),
      peer_names_(std::move(peer_names)),
      peers_(static_cast<size_t>(nranks), Peer(nranks)),
      dead_(nranks),
      excluded_(nranks),
      held_excluded_(nranks),
      done_excluded_(nranks) {}

void ShrinkAgreement::Propose(bool active) {
  ControlPlane* control = control_.load();
  if (control == nullptr || round_ > kMaxRound) return;
  ByteWriter body;
  body.U64(round_);
  body.U8(active ? 1 : 0);
  excluded_.Encode(&body);
  body.U64(completed_);
  control->Broadcast(kProposal, body.bytes());
}

void ShrinkAgreement::SendRound(Kind kind, uint64_t round) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  ByteWriter body;
  body.U64(round);
  control->Broadcast(kind, body.bytes());
}

void ShrinkAgreement::SendDone(int peer) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  ByteWriter body;
  body.U64(done_round_);
  done_excluded_.Encode(&body);
  if (peer < 0) {
    control->Broadcast(kDone, body.bytes());
  } else {
    control->Send(peer, kDone, body.bytes());
  }
}

bool ShrinkAgreement::Proposes(const Peer& peer) const {
  return peer.proposes && peer.round == round_ && peer.excluded == excluded_;
}

Status ShrinkAgreement::Verdict() const {
  if (!cancel_.ok()) return cancel_;
  for (int rank = 0; rank < nranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || !IsMember(rank)) continue;
    if (peer.malformed) {
      return InternalError(fmt::format("rank {}/{}: shrink: peer {}@{} sent a malformed message",
                                       rank_, nranks_, rank,
                                       peer_names_[static_cast<size_t>(rank)]));
    }
    if ((peer.proposes && peer.excluded.Contains(rank_)) ||
        (peer.done_round >= round_ && peer.done_excluded.Contains(rank_))) {
      return InvalidUsage(
          fmt::format("rank {}/{}: shrink: rank {} has excluded this one", rank_, nranks_, rank));
    }
  }
  if (round_ > kMaxRound) {
    return InternalError(
        fmt::format("rank {}/{}: shrink: a peer has used up the rounds", rank_, nranks_));
  }
  return Status::Ok();
}

bool ShrinkAgreement::Learn() {
  const RankSet before = excluded_;
  uint64_t latest = round_;
  excluded_ |= dead_;
  for (int rank = 0; rank < nranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    // IsMember also skips ranks that an earlier iteration has excluded.
    if (rank == rank_ || !IsMember(rank) || !peer.proposes || peer.round < round_) continue;
    if (peer.excluded.Contains(rank_)) continue;  // Verdict handles it
    latest = std::max(latest, peer.round);
    excluded_ |= peer.excluded;
  }
  if (latest == round_ && excluded_ == before) return false;
  round_ = latest > round_ ? latest : round_ + 1;
  return true;
}

ShrinkAgreement::Outcome ShrinkAgreement::MakeOutcome() const {
  Outcome outcome;
  outcome.round = round_;
  outcome.last_completed = completed_;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!IsMember(rank)) continue;
    outcome.members.push_back(rank);
    if (rank == rank_) continue;
    outcome.last_completed =
        std::min(outcome.last_completed, peers_[static_cast<size_t>(rank)].completed);
  }
  return outcome;
}

Status ShrinkAgreement::TimedOut(const char* what,
                                 const std::function<bool(const Peer&)>& has) const {
  // Those who have not called are the cause. Others may be late because of them: they wait as this
  // rank does, or have waited, given up and perhaps called again since.
  std::string absent, here, gone;
  for (int rank = 0; rank < nranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || !IsMember(rank) || has(peer)) continue;
    (peer.proposes                ? here
     : peer.round >= first_round_ ? gone
                                  : absent) +=
        fmt::format(" peer {}@{}", rank, peer_names_[static_cast<size_t>(rank)]);
  }
  const auto [said, named] = !absent.empty() ? std::pair("did not call ccl_comm_shrink", absent)
                             : !here.empty() ? std::pair(what, here)
                                             : std::pair("ended its call of ccl_comm_shrink", gone);
  return TimeoutError(fmt::format("rank {}/{}: shrink: {}:{}", rank_, nranks_, said, named));
}

// Returns true when all other members have it. Returns false when Run must check its state again:
// the round is over (and the next proposal is sent), or the call is.
Result<bool> ShrinkAgreement::WaitFor(Time deadline, const char* what,
                                      const std::function<bool(const Peer&)>& has) {
  while (!AllOthers(has)) {
    // The deadline comes first, so that peers that propose without end cannot prolong the call.
    const Time now = SystemClock().Now();
    if (now >= deadline) return TimedOut(what, has);
    if (held_done_) return false;
    if (Learn()) {
      Propose(true);
      return false;
    }
    if (!Verdict().ok()) return false;
    changed_.WaitFor(&mutex_, deadline - now);
  }
  return true;
}

Result<UniqueId> ShrinkAgreement::ObtainId(Time deadline, const Steps& steps, bool* over) {
  *over = false;
  int leader = 0;
  while (leader < rank_ && !IsMember(leader)) ++leader;
  if (leader != rank_) {
    const Peer& peer = peers_[static_cast<size_t>(leader)];
    Result<bool> there = WaitFor(deadline, "waiting for the new unique id", [&](const Peer& p) {
      mutex_.AssertHeld();
      return &p != &peer || p.id_round == round_;
    });
    if (!there.ok()) return there.status();
    *over = !*there;
    return peer.id;
  }
  Result<UniqueId> id(UniqueId{});
  {
    const MutexUnlock unlocked(&mutex_);
    id = steps.create_id();
  }
  if (!id.ok()) return id;
  ByteWriter body;
  std::byte encoded[kUniqueIdBytes];
  id->Encode(encoded);
  body.U64(round_);
  body.Raw(encoded);
  ControlPlane* control = control_.load();
  for (int rank = 0; rank < nranks_ && control != nullptr; ++rank) {
    if (rank != rank_ && IsMember(rank)) control->Send(rank, kId, body.bytes());
  }
  return id;
}

Result<ShrinkAgreement::Outcome> ShrinkAgreement::Run(Time deadline, const Steps& steps) {
  Status failed_join;  // of an earlier round
  while (true) {
    if (held_done_) return held_;
    if (Learn()) Propose(true);
    if (Status end = Verdict(); !end.ok()) return end;
    const auto proposes = [&](const Peer& peer) {
      mutex_.AssertHeld();
      return Proposes(peer);
    };
    if (!AllOthers(proposes)) {
      Result<bool> proposed = WaitFor(deadline, "did not agree on the excluded ranks", proposes);
      if (!proposed.ok() && !failed_join.ok()) {
        return Status(proposed.status().code(),
                      fmt::format("{}; joining failed in an earlier round: {}",
                                  proposed.status().message(), failed_join.message()));
      }
      if (!proposed.ok()) return proposed.status();
      continue;
    }
    const Outcome outcome = MakeOutcome();
    const RankSet excluded = excluded_;
    cancelled_.store(false);
    bool over = false;
    Result<UniqueId> id = ObtainId(deadline, steps, &over);
    if (!id.ok()) return id.status();
    if (over || !cancel_.ok()) continue;
    Status joined;
    {
      const MutexUnlock unlocked(&mutex_);
      joined = steps.join(*id, outcome, &cancelled_);
    }
    if (!joined.ok()) {
      const Time until = std::min(deadline, SystemClock().Now() + kNewsLag);
      Result<bool> waited = WaitFor(until, "joining", [](const Peer&) { return false; });
      if (!cancel_.ok()) return cancel_;
      if (!waited.ok() || outcome.members.size() == 1) return joined;
      failed_join = joined;
      continue;
    }
    held_ = outcome;
    held_excluded_ = excluded;
    SendRound(kJoined, outcome.round);
    Result<bool> done =
        WaitFor(deadline, "has not joined the new communicator",
                [&](const Peer& peer) { return peer.joined_round >= outcome.round; });
    if (!done.ok()) return done.status();
    if (*done) return held_;
  }
}

Result<ShrinkAgreement::Outcome> ShrinkAgreement::Agree(const RankSet& excluded, uint64_t completed,
                                                        Time deadline, const Steps& steps) {
  const MutexLock lock(&mutex_);
  if (active_) {
    return InvalidArgument(
        fmt::format("comm: rank {}/{} is in another call; a communicator takes one thread at a "
                    "time",
                    rank_, nranks_));
  }
  active_ = true;
  if (round_ <= kMaxRound) ++round_;
  first_round_ = round_;
  excluded_ = excluded;
  excluded_ |= dead_;
  completed_ = completed;
  held_ = {};
  held_done_ = false;
  Result<Outcome> outcome(Outcome{});
  const Status agreed = CatchOutOfMemory([&] {
    mutex_.AssertHeld();
    Propose(true);
    outcome = Run(deadline, steps);
    return outcome.status();
  });
  active_ = false;
  if (agreed.ok()) {
    done_round_ = held_.round;
    done_excluded_ = held_excluded_;
  }
  // Tells the peers that the round is done and that this rank is no longer in the call. A peer that
  // does not receive this stops at its deadline.
  (void)CatchOutOfMemory([&] {
    mutex_.AssertHeld();
    if (agreed.ok()) SendDone(-1);
    Propose(false);
    return Status::Ok();
  });
  if (!agreed.ok()) return agreed;
  return outcome;
}

void ShrinkAgreement::Cancel(const Status& why) {
  const MutexLock lock(&mutex_);
  if (cancel_.ok()) cancel_ = why;
  cancelled_.store(true);
  changed_.NotifyAll();
}

void ShrinkAgreement::OnPeerClosed(int peer) {
  const MutexLock lock(&mutex_);
  dead_.Add(peer);
  if (active_ && IsMember(peer)) cancelled_.store(true);
  changed_.NotifyAll();
}

bool ShrinkAgreement::OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) {
  const MutexLock lock(&mutex_);
  const bool well_formed = Read(peer, kind, body);
  if (!well_formed) {
    peers_[static_cast<size_t>(peer)].malformed = true;
    if (active_ && IsMember(peer)) cancelled_.store(true);
  }
  changed_.NotifyAll();
  return well_formed;
}

bool ShrinkAgreement::Read(int peer, uint8_t kind, std::span<const std::byte> body) {
  ByteReader reader(body);
  Peer& state = peers_[static_cast<size_t>(peer)];
  uint64_t round = 0;
  if (!reader.U64(&round) || round > kMaxRound) return false;
  if (kind == kProposal) {
    uint64_t completed = 0;
    uint8_t proposes = 0;
    RankSet excluded(nranks_);
    if (!reader.U8(&proposes) || proposes > 1 || !excluded.Decode(&reader) ||
        !reader.U64(&completed) || excluded.Contains(peer)) {
      return false;
    }
    const bool news = round > round_ || excluded.Contains(rank_);
    state.proposes = proposes == 1;
    state.round = round;
    state.excluded = std::move(excluded);
    state.completed = completed;
    if (active_ && state.proposes && news && IsMember(peer)) cancelled_.store(true);
    if (!active_ && done_round_ != 0 && state.proposes) SendDone(peer);
  } else if (kind == kId) {
    std::byte encoded[kUniqueIdBytes];
    if (!reader.Raw(encoded)) return false;
    Result<UniqueId> id = UniqueId::Decode(encoded);
    if (!id.ok()) return false;
    state.id = *id;
    state.id_round = round;
  } else if (kind == kJoined) {
    state.joined_round = std::max(state.joined_round, round);
  } else {
    RankSet excluded(nranks_);
    if (!excluded.Decode(&reader) || excluded.Contains(peer)) return false;
    // Counts only for a round that this rank has joined, too.
    if (active_ && round != 0 && round == held_.round && excluded == held_excluded_) {
      held_done_ = true;
    }
    // An answer to this rank and the same to all come in any order.
    if (round < state.done_round) return reader.remaining() == 0;
    state.done_round = round;
    state.done_excluded = std::move(excluded);
  }
  return reader.remaining() == 0;
}

}  // namespace inccl
