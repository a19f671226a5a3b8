// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a communicator have answered when they were asked where they are in the order
// of calls, and what follows from the answers: which ranks the others wait for, and whether ranks
// wait for each other in a circle. Not thread-safe.
#ifndef INCCL_FAILURE_POSITIONS_H_
#define INCCL_FAILURE_POSITIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace inccl {

struct Position {
  uint64_t sequence = 0;    // the newest collective that the rank has begun; 0: none
  bool in_call = false;     // the rank's caller is inside a call
  Time stalled = 0;         // so long the call has made no progress; 0: it makes some
  std::vector<int> awaits;  // the ranks that the call waits for, if it has stalled
  std::string place;        // "in op 17 allreduce(...)", "after op 17", ...

  std::vector<std::byte> Encode() const;
  static Result<Position> Decode(std::span<const std::byte> bytes, int nranks);
};

class Positions {
 public:
  // No rank of a circle has made progress for this long.
  static constexpr Time kCircleStall = kSecond;
  // Answers that belong together have come within this time.
  static constexpr Time kFresh = 300 * kMillisecond;
  // A rank that has not answered for this long does not answer.
  static constexpr Time kAnswerLimit = kSecond;

  Positions(int rank, int nranks);

  // All ranks are being asked.
  void Asked(Time now);
  void Answered(int peer, Position position, Time now);
  // The rank has left in order, and answers no more.
  void Left(int peer);

  // All ranks have answered, but those that do not answer.
  bool IsComplete(Time now) const;
  // The ranks that keep this one in the collective `sequence` from going on; `awaited`: the peers
  // that its call waits for. Ranks that have not begun it, of these those outside the library where
  // there are any; else ranks that do not answer; else those at the end of the chains of who waits
  // for whom.
  std::vector<int> Missing(uint64_t sequence, std::span<const int> awaited, Time now) const;
  // The same for sends and receives: only the chains.
  std::vector<int> MissingOf(std::span<const int> awaited, Time now) const;
  // This rank waits for `awaited` and has stalled for kCircleStall. A circle of ranks of which each
  // waits for the next one and the last one for this rank, which is not among them; empty: none is
  // known.
  std::vector<int> Circle(std::span<const int> awaited, Time now) const;

  // "it is alive, in op 17 allreduce(...)".
  std::string Describe(int peer, Time now) const;
  // "in op 17 allreduce(...)", of a rank that has answered.
  const std::string& PlaceOf(int peer) const { return Of(peer).position.place; }

 private:
  struct Peer {
    Position position;
    Time answered_at = 0;  // 0: never
    Time asked_at = 0;     // of the first question that is not answered; 0: all are
    bool left = false;
  };

  const Peer& Of(int peer) const { return peers_[static_cast<size_t>(peer)]; }
  bool IsSilent(int peer, Time now) const;
  int EndOfChain(int peer, Time now) const;
  bool FindCircle(int peer, Time now, std::vector<bool>* visited, std::vector<int>* path) const;

  const int rank_;
  std::vector<Peer> peers_;
};

}  // namespace inccl

#endif  // INCCL_FAILURE_POSITIONS_H_
