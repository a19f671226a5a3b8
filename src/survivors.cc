// SPDX-License-Identifier: Apache-2.0
#include "survivors.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/bytes.h"

namespace inccl {
namespace {

// Joining has failed: for this long the news of why may still be on its way.
constexpr Time kNewsLag = kSecond;

}  // namespace

Survivors::Survivors(int rank, int nranks, std::vector<std::string> peer_names)
    : rank_(rank),
      nranks_(nranks),
      peer_names_(std::move(peer_names)),
      peers_(static_cast<size_t>(nranks)) {}

void Survivors::Propose(bool active) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  ByteWriter body;
  body.U64(round_);
  body.U64(done_round_);
  body.U8(active ? 1 : 0);
  body.U64(excluded_);
  body.U64(completed_);
  control->Broadcast(kProposal, body.bytes());
}

void Survivors::SendRound(Kind kind, int peer, uint64_t round) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  ByteWriter body;
  body.U64(round);
  if (peer < 0) {
    control->Broadcast(kind, body.bytes());
  } else {
    control->Send(peer, kind, body.bytes());
  }
}

bool Survivors::Agreed() const {
  return AllOthers([&](const Peer& peer) {
    return peer.proposes && peer.round == round_ && peer.excluded == excluded_;
  });
}

// The rank that does not want this one in its communicator, or -1.
int Survivors::ExcludedBy() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const bool speaks = peer.proposes || peer.done_round >= round_;
    if (rank != rank_ && IsMember(rank) && speaks && (peer.excluded & Bit(rank_)) != 0) return rank;
  }
  return -1;
}

bool Survivors::Learn() {
  const Set before = excluded_;
  uint64_t latest = round_;
  excluded_ |= dead_;
  for (int rank = 0; rank < nranks_; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || !peer.proposes || (before & Bit(rank)) != 0) continue;
    if (peer.round < round_) continue;
    latest = std::max(latest, peer.round);
    excluded_ |= peer.excluded;
  }
  if (latest == round_ && excluded_ == before) return false;
  round_ = latest > round_ ? latest : round_ + 1;
  return true;
}

Survivors::Outcome Survivors::MakeOutcome() const {
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

// True: all other members have it. False: the round is over, and proposed anew.
Result<bool> Survivors::WaitFor(Lock* lock, Time deadline, const char* what,
                                const std::function<bool(const Peer&)>& has) {
  while (!AllOthers(has)) {
    if (Learn()) {
      Propose(true);
      return false;
    }
    const Time now = SystemClock().Now();
    if (now < deadline) {
      changed_.wait_for(*lock, std::chrono::nanoseconds(deadline - now));
      continue;
    }
    std::string missing, gave_up;
    for (int rank = 0; rank < nranks_; ++rank) {
      const Peer& peer = peers_[static_cast<size_t>(rank)];
      if (rank == rank_ || !IsMember(rank) || has(peer)) continue;
      // Who waited for the same and has just given up is not the one to be named.
      const bool waited = !peer.proposes && peer.round == round_ && peer.excluded == excluded_;
      (waited ? gave_up : missing) +=
          fmt::format(" peer {}@{}", rank, peer_names_[static_cast<size_t>(rank)]);
    }
    return TimeoutError(fmt::format("rank {}/{}: shrink: {}:{}", rank_, nranks_, what,
                                    missing.empty() ? gave_up : missing));
  }
  return true;
}

Result<UniqueId> Survivors::ObtainId(Lock* lock, Time deadline, const Steps& steps, bool* over) {
  *over = false;
  int leader = 0;
  while (!IsMember(leader)) ++leader;
  if (leader != rank_) {
    const Peer& peer = peers_[static_cast<size_t>(leader)];
    Result<bool> there =
        WaitFor(lock, deadline, "waiting for the new unique id",
                [&](const Peer& p) { return &p != &peer || p.id_round == round_; });
    if (!there.ok()) return there.status();
    *over = !*there;
    return peer.id;
  }
  lock->unlock();
  Result<UniqueId> id = steps.create_id();
  lock->lock();
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

Result<Survivors::Outcome> Survivors::Run(Lock* lock, Time deadline, const Steps& steps) {
  uint64_t held_round = 0;  // what the last successful join belongs to
  Outcome held;
  const auto said_done = [&] {
    return held_round != 0 && std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
             return peer.done_round >= held_round;
           });
  };
  while (true) {
    while (true) {
      if (said_done()) return held;
      if (const int by = ExcludedBy(); by >= 0) {
        return InvalidUsage(
            fmt::format("rank {}/{}: shrink: rank {} has excluded this one", rank_, nranks_, by));
      }
      if (Learn()) Propose(true);
      if (Agreed()) break;
      Result<bool> proposed =
          WaitFor(lock, deadline, "did not call ccl_comm_shrink with the same excluded ranks",
                  [&](const Peer& peer) {
                    return said_done() ||
                           (peer.proposes && peer.round == round_ && peer.excluded == excluded_);
                  });
      if (!proposed.ok()) return proposed.status();
    }
    const Outcome outcome = MakeOutcome();
    const uint64_t round = outcome.round;
    cancelled_.store(false);
    bool over = false;
    Result<UniqueId> id = ObtainId(lock, deadline, steps, &over);
    if (!id.ok()) return id.status();
    if (over) continue;
    lock->unlock();
    const Status joined = steps.join(*id, outcome, &cancelled_);
    lock->lock();
    if (!joined.ok()) {
      const Time until = std::min(deadline, SystemClock().Now() + kNewsLag);
      Result<bool> waited = WaitFor(lock, until, "joining", [](const Peer&) { return false; });
      if (!waited.ok() || outcome.members.size() == 1) return joined;
      continue;
    }
    held_round = round;
    held = outcome;
    SendRound(kJoined, -1, round);
    Result<bool> done =
        WaitFor(lock, deadline, "has not joined the new communicator",
                [&](const Peer& peer) { return said_done() || peer.joined_round >= round; });
    if (!done.ok()) return done.status();
    if (*done) return held;
  }
}

Result<Survivors::Outcome> Survivors::Agree(Set excluded, uint64_t completed, Time deadline,
                                            const Steps& steps) {
  Lock lock(mutex_);
  active_ = true;
  ++round_;
  excluded_ = excluded | dead_;
  completed_ = completed;
  Result<Outcome> outcome(Outcome{});
  const Status agreed = CatchOutOfMemory([&] {
    Propose(true);
    outcome = Run(&lock, deadline, steps);
    return outcome.status();
  });
  if (!lock.owns_lock()) lock.lock();  // a step has thrown
  active_ = false;
  if (agreed.ok()) done_round_ = outcome->round;
  // That it is done, or that this rank has given up. Who does not hear of it stops at the deadline.
  (void)CatchOutOfMemory([&] {
    Propose(false);
    return Status::Ok();
  });
  if (!agreed.ok()) return agreed;
  return outcome;
}

void Survivors::OnPeerClosed(int peer) {
  const std::lock_guard lock(mutex_);
  dead_ |= Bit(peer);
  if (active_ && IsMember(peer)) cancelled_.store(true);
  changed_.notify_all();
}

void Survivors::OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) {
  ByteReader reader(body);
  uint64_t round = 0;
  if (!reader.U64(&round)) return;
  const std::lock_guard lock(mutex_);
  Peer& state = peers_[static_cast<size_t>(peer)];
  if (kind == kProposal) {
    uint64_t done = 0, excluded = 0, completed = 0;
    uint8_t proposes = 0;
    if (!reader.U64(&done) || !reader.U8(&proposes) || !reader.U64(&excluded) ||
        !reader.U64(&completed)) {
      return;
    }
    state.proposes = proposes == 1;
    state.round = round;
    state.excluded = excluded;
    state.completed = completed;
    state.done_round = std::max(state.done_round, done);
    if (active_ && state.proposes && round > round_ && IsMember(peer)) cancelled_.store(true);
    if (!active_ && done_round_ != 0 && state.proposes) SendRound(kDone, peer, done_round_);
  } else if (kind == kId) {
    std::byte encoded[kUniqueIdBytes];
    if (!reader.Raw(encoded)) return;
    Result<UniqueId> id = UniqueId::Decode(encoded);
    if (!id.ok()) return;
    state.id = *id;
    state.id_round = round;
  } else if (kind == kJoined) {
    state.joined_round = std::max(state.joined_round, round);
  } else if (kind == kDone) {
    state.done_round = std::max(state.done_round, round);
  }
  changed_.notify_all();
}

}  // namespace inccl
