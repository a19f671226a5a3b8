// SPDX-License-Identifier: Apache-2.0
//
// The work that progress.h drives to its end: a collective (executor.h) or a set of sends and
// receives (send_recv.h).
#ifndef INCCL_COLLECTIVES_REQUEST_H_
#define INCCL_COLLECTIVES_REQUEST_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

// Why a request cannot progress.
struct Blocked {
  enum class On : uint8_t { kNothing, kSlice, kCredit, kStrand, kCompletion };
  On on = On::kNothing;
  int peer = -1;  // for kCredit: one of those that hold the slot
  uint16_t strand = 0, step = 0;
  uint64_t window = 0;
  const SendLane* lane = nullptr;  // for kCredit
};

class Request {
 public:
  virtual ~Request() = default;
  // Runs up to `budget` slice steps and returns how many; 0 if everything is blocked or done. Never
  // waits and never reads a clock.
  virtual Result<int> Advance(int budget) = 0;
  virtual bool done() const = 0;
  // True if something is in progress whose end signals no WakeupEvent.
  virtual bool polls() const { return false; }
  // The reason of the first unfinished part.
  virtual Blocked blocked_on() const = 0;
  // Appends the peers for which some part of the request waits: it cannot end before each of them
  // has done something. A peer may be appended more than once.
  virtual void AppendAwaited(std::vector<int>* peers) const = 0;
  // A rank that has sent a slice of another call, or -1: the ranks do not make the same calls.
  virtual int mismatched_peer() const = 0;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_REQUEST_H_
