// SPDX-License-Identifier: Apache-2.0
//
// Finds failures of a communicator: peers that have died or left, calls that differ between ranks,
// and waits that do not end. Thread-safe. The control thread handles messages of peers, also while
// the caller is outside the library.
#ifndef INCCL_FAILURE_LIVENESS_H_
#define INCCL_FAILURE_LIVENESS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/progress.h"
#include "collectives/send_recv.h"
#include "control/control.h"
#include "failure/shrink_agreement.h"
#include "failure/sticky_error.h"

namespace inccl {

// The positions of a communicator's ranks in the order of calls, as they have answered kAsk. From
// them follows which ranks the others wait for, and whether ranks wait for each other in a circle.
// Not thread-safe.

struct Position {
  uint64_t sequence = 0;       // the newest collective that the rank has begun; 0: none
  bool in_call = false;        // the rank's caller is inside a call
  bool in_collective = false;  // that is the collective `sequence`, not sends and receives after it
  Time stalled = 0;            // time without progress; 0: the call makes progress
  std::vector<int> awaits;     // the ranks that the call waits for, if it has stalled
  std::string place;           // "in op 17 allreduce(...)", "after op 17", ...

  std::vector<std::byte> Encode() const;
  static Result<Position> Decode(std::span<const std::byte> bytes, int nranks);
};

// What this rank knows of another one.
struct RankStatus {
  enum class State : uint8_t { kUnknown, kAnswered, kSilent, kLeft };
  State state = State::kUnknown;  // kUnknown: it has not been asked, or has not answered yet
  Position position;              // as it last answered
  Time silence = 0;               // kSilent
};

class Positions {
 public:
  // The answers that prove a circle are not older than this.
  static constexpr Time kFresh = 300 * kMillisecond;
  // A rank that has not answered for this long counts as silent.
  static constexpr Time kAnswerLimit = kSecond;

  Positions(int rank, int nranks);

  // Records that this rank asks all others.
  void Asked(Time now);
  void Answered(int peer, Position position, Time now);
  // The rank has disconnected in order and does not answer any more.
  void Left(int peer);

  // True if all ranks have answered, except those that have left or are silent.
  bool IsComplete(Time now) const;
  // The ranks that keep this one from finishing the collective `sequence`; its call waits for
  // `awaited`. The first of these groups that is not empty: ranks outside the library that have not
  // begun the collective; silent ranks; ranks in an earlier call; the ends of the chains of ranks
  // that wait for each other, starting at `awaited`.
  std::vector<int> Missing(uint64_t sequence, std::span<const int> awaited, Time now) const;
  // As Missing, for sends and receives: only the ends of chains.
  std::vector<int> MissingOf(std::span<const int> awaited, Time now) const;
  // This rank, which is in sends and receives after the collective `sequence`, waits for `awaited`
  // and has stalled for `stall`, as each rank of a circle must have. Returns a path of ranks of
  // which each waits for the next one and the last one waits for this rank, which the path does not
  // contain. Empty if no circle is known. A rank in a collective does not wait for one that has
  // begun a later collective: what that one had to send is on its way.
  std::vector<int> Circle(uint64_t sequence, std::span<const int> awaited, Time stall,
                          Time now) const;

  // "it is alive, in op 17 allreduce(...)".
  std::string Describe(int peer, Time now) const;
  RankStatus StatusOf(int peer, Time now) const;
  // "in op 17 allreduce(...)"; only for a rank that has answered.
  const std::string& PlaceOf(int peer) const { return Of(peer).position.place; }

 private:
  struct Peer {
    Position position;
    Time answered_at = 0;  // 0: never
    Time asked_at = 0;     // of the first unanswered question; 0: none
    bool left = false;
  };

  const Peer& Of(int peer) const { return peers_[static_cast<size_t>(peer)]; }
  bool IsSilent(int peer, Time now) const;
  int EndOfChain(int peer, Time now) const;
  struct Search {
    uint64_t own_sequence = 0;
    Time stall = 0, now = 0;
    std::vector<bool> visited;
    std::vector<int> path;
  };
  bool FindCircle(int peer, Search* search) const;

  const int rank_;
  std::vector<Peer> peers_;
};

// The collectives that this rank has begun, and the records that other ranks have sent of theirs.
// It finds calls that differ between ranks. It does not contain sends and receives.

// Not thread-safe.
class CallHistory {
 public:
  // A call of a peer that differs from this rank's call of the same number.
  struct Difference {
    int peer = -1;
    CallRecord ours, theirs;
    // "ranks disagree at op 3: rank 0/4 calls ..., rank 2/4 calls ..."
    std::string ToString(int rank, int nranks) const;
  };

  explicit CallHistory(int nranks) : pending_(static_cast<size_t>(nranks)) {}

  // Adds this rank's next call. Returns a difference from an earlier record of a peer.
  std::optional<Difference> Begin(uint64_t sequence, const Call& call);
  // Compares a peer's record with this rank's call of the same number.
  std::optional<Difference> Compare(int peer, const CallRecord& theirs);

  // The number of the newest call; 0: none.
  uint64_t latest() const { return latest_; }
  const CallRecord& record() const { return records_[latest_ % kKept]; }
  // Covers the newest call and all before it. Ranks whose calls differed once do not agree on any
  // later call, even if the different calls could end without each other.
  uint64_t signature() const { return chain_; }
  // Appends the newest record, unless an earlier call of this function has appended it.
  void AppendNews(std::vector<std::vector<std::byte>>* records);
  // Appends the stored older records, at most once while a call is the newest.
  void AppendEarlier(std::vector<std::vector<std::byte>>* records);

 private:
  static constexpr size_t kKept = 64;

  std::array<CallRecord, kKept> records_;
  uint64_t chain_ = 0;
  uint64_t latest_ = 0;
  std::vector<std::optional<CallRecord>> pending_;  // by rank: a record of a call that this rank
                                                    // has not begun
  bool any_pending_ = false;
  uint64_t appended_ = 0, earlier_appended_ = 0;  // `latest_` at the last AppendNews and
                                                  // AppendEarlier
};

struct LivenessOptions {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  Time op_timeout = 600 * kSecond;
  std::string comm_name = {};
  // Ranks that have stood still for so long and wait for each other in a circle fail.
  Time circle_stall = kSecond;
  Time warn_after = 10 * kSecond;  // log a warning for a call without progress
};

class Liveness final : public ControlHandler, public WaitObserver {
 public:
  // `sticky_error` gets what this object finds; `shrink_agreement` gets the messages and peer
  // failures that concern it. Both outlive this object.
  Liveness(LivenessOptions options, StickyError* sticky_error, ShrinkAgreement* shrink_agreement,
           Invitations* invitations);

  // Called after construction, because the control plane is created after its handler.
  void Attach(ControlPlane* control) { control_.store(control); }
  // Begins a call and compares it with the peers' records of the same call number.
  Status BeginCall(uint64_t sequence, const Call& call, uint64_t* signature);
  // Begins sends and receives. `calls` lives until EndCall.
  void BeginSendRecv(const std::vector<Call>* calls);
  void EndCall();
  // Any thread. For calls in progress, too.
  void SetOpTimeout(Time timeout) { op_timeout_.store(timeout, std::memory_order_relaxed); }
  Time op_timeout() const { return op_timeout_.load(std::memory_order_relaxed); }

  // Makes the error sticky unless there is one already. Adds this rank's position in the order of
  // calls to a text that does not name the rank.
  void Fail(const Status& status) { Fail(status, StickyError::Origin::kFailure); }
  // As Fail, for a caller that ends the communicator on purpose: abort_on_error does not apply.
  void EndOnPurpose(const Status& why) { Fail(why, StickyError::Origin::kOnPurpose); }

  // For inccl-status, any thread: asks all other ranks for their positions, says whether all have
  // answered that live, and returns what is known, by rank. This rank's own entry is of now.
  void AskAll();
  bool HasAnswers() const;
  std::vector<RankStatus> RankStatuses() const;

  // WaitObserver
  Status Check() override {
    return sticky_error_->failed() ? sticky_error_->error() : Status::Ok();
  }
  Status OnStall(const Request& request, std::span<const int> awaited, Time stalled) override;

  // ControlHandler
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void OnPeerClosed(int peer, bool clean) override;
  void OnPeerSilent(int peer, Time silence, Time limit) override;
  void OnPeerCutOff(int peer) override;
  void OnOutOfMemory() override { Fail(OutOfMemory()); }

 private:
  void OnRecord(int peer, const CallRecord& theirs);
  void OnAsk(int peer);
  void OnWhere(int peer, std::span<const std::byte> body);
  void OnError(int peer, std::span<const std::byte> body);
  void Fail(const Status& status, StickyError::Origin origin) INCCL_EXCLUDES(mutex_);
  bool LongGone(int peer) INCCL_REQUIRES(mutex_);
  // The records that a stall of this length sends to the neighbours, and the newest one if it is to
  // be sent to the awaited ranks, too.
  void CollectRecords(const Request& request, Time stalled,
                      std::vector<std::vector<std::byte>>* records, std::vector<std::byte>* newest)
      INCCL_REQUIRES(mutex_);
  // Returns the error that the stall amounts to, if any. *ask: this rank must ask the others for
  // their positions.
  Status Judge(const Request& request, std::span<const int> awaited, Time stalled, bool* ask)
      INCCL_REQUIRES(mutex_);
  // Whether this rank has asked since the stall reached `since`, and all ranks that still answer
  // have done so; sets *ask if it has not asked.
  bool AreAnswersThere(Time since, bool* ask) const INCCL_REQUIRES(mutex_);
  std::string WaitingFor(const Request& request, std::span<const int> awaited) const
      INCCL_REQUIRES(mutex_);
  Status InACircle(std::span<const int> circle) const INCCL_REQUIRES(mutex_);
  Status Disagreement(const std::optional<CallHistory::Difference>& difference) const
      INCCL_REQUIRES(mutex_);
  // "rank 1/4 in op 17 allreduce(...)", "rank 1/4 after op 17"
  std::string Where() const INCCL_REQUIRES(mutex_);
  Position OwnPosition() const INCCL_REQUIRES(mutex_);
  std::string Place() const INCCL_REQUIRES(mutex_);  // Where() without the rank
  std::string Named(int peer) const { return options_.peer_names[static_cast<size_t>(peer)]; }

  const LivenessOptions options_;
  std::atomic<Time> op_timeout_;
  const Status out_of_memory_;  // made in advance, because there may be no memory for it later
  StickyError* const sticky_error_;
  ShrinkAgreement* const shrink_agreement_;
  Invitations* const invitations_;
  std::atomic<ControlPlane*> control_{nullptr};

  std::atomic<bool> in_call_{false};
  std::vector<std::atomic<bool>> departed_;  // by rank: has disconnected
  mutable Mutex mutex_;
  // The sends and receives in progress. Only the caller's thread writes it.
  const std::vector<Call>* send_recv_ INCCL_GUARDED_BY(mutex_) = nullptr;
  CallHistory calls_ INCCL_GUARDED_BY(mutex_);
  // By rank: when the waiting thread first saw the disconnect; 0: not yet.
  std::vector<Time> departure_seen_ INCCL_GUARDED_BY(mutex_);
  // State of the call in progress.
  bool warned_ INCCL_GUARDED_BY(mutex_) = false;    // the slow call has been logged
  bool far_told_ INCCL_GUARDED_BY(mutex_) = false;  // awaited ranks that are no neighbours
  // Length of the stall when this rank last asked the others for their positions.
  Time asked_ INCCL_GUARDED_BY(mutex_) = 0;
  // Time of the OnStall that set the next two; 0: the call has not stalled.
  Time looked_ INCCL_GUARDED_BY(mutex_) = 0;
  Time stalled_ INCCL_GUARDED_BY(mutex_) = 0;          // time without progress
  std::vector<int> awaited_ INCCL_GUARDED_BY(mutex_);  // the peers that the call waits for
  Positions positions_ INCCL_GUARDED_BY(mutex_);       // of the other ranks
};

}  // namespace inccl

#endif  // INCCL_FAILURE_LIVENESS_H_
