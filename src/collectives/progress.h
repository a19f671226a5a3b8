// SPDX-License-Identifier: Apache-2.0
//
// The only place that waits. It spins briefly, yields, then blocks on the rank's WakeupEvent, so
// that more ranks than cores do not slow each other down.
#ifndef INCCL_COLLECTIVES_PROGRESS_H_
#define INCCL_COLLECTIVES_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

// The work that progress.h drives to its end: a collective (executor.h) or a set of sends and
// receives (send_recv.h).

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

// How long to poll before giving up the core, in polls without progress.
struct WaitPolicy {
  int spins = 20;
  int yields = 200;
  Time longest_sleep = 20 * kMillisecond;
};

// What a waiting thread checks besides its request.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  // Must be cheap: called at every poll without progress. An error ends the wait.
  virtual Status Check() = 0;
  // Called before each sleep. `stalled` is the time since the last progress, without the time in
  // which this thread was kept from running. `awaited`: the peers for which the request, or the
  // slices it has published, waits.
  virtual Status OnStall(const Request& request, std::span<const int> awaited, Time stalled) = 0;
};

class Progress {
 public:
  Progress(Transport* transport, const Clock* clock, const WaitPolicy& policy)
      : transport_(transport), clock_(clock), policy_(policy), timed_(transport->caps().timed) {
    awaited_.reserve(kFewAwaited);  // so that calls allocate no memory
  }

  // Runs the request to its end or to the first error.
  Status Drive(Request* request, WaitObserver* observer);

 private:
  static constexpr size_t kFewAwaited = 64;

  Result<int> Poll(Request* request);
  Status Stalled(const Request& request, Time stalled, WaitObserver* observer);

  Transport* transport_;
  const Clock* clock_;
  WaitPolicy policy_;
  bool timed_;  // the transport uses the time
  std::vector<int> awaited_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_PROGRESS_H_
