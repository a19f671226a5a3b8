// SPDX-License-Identifier: Apache-2.0
//
// The only place that waits. It spins briefly, yields, then blocks on the rank's WakeupEvent, so
// that more ranks than cores do not slow each other down.
#ifndef INCCL_COLLECTIVES_PROGRESS_H_
#define INCCL_COLLECTIVES_PROGRESS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/request.h"
#include "transport/transport.h"

namespace inccl {

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
