// SPDX-License-Identifier: Apache-2.0
//
// The positions of a communicator's ranks in the order of calls, as they have answered kAsk. From
// them follows which ranks the others wait for, and whether ranks wait for each other in a circle.
// Not thread-safe.
#ifndef INCCL_FAILURE_POSITIONS_H_
#define INCCL_FAILURE_POSITIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/call.h"

namespace inccl {

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

}  // namespace inccl

#endif  // INCCL_FAILURE_POSITIONS_H_
