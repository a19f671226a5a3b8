// SPDX-License-Identifier: Apache-2.0
#include "collectives/progress.h"

#include <sched.h>

#include <algorithm>

#include "base/fault_point.h"
#include "transport/emulated/emulated.h"

namespace inccl {
namespace {

constexpr int kBudget = 64;  // slice steps between two calls of Transport::Progress
// If more than this many longest sleeps pass between two readings of the clock, the thread was kept
// from running and did not wait.
constexpr int kKeptFromRunning = 10;
// Requests whose end signals no WakeupEvent are polled without sleeps for this long, then with
// short sleeps.
constexpr Time kLooksAllTheTime = kMillisecond;
constexpr Time kShortSleep = 50 * kMicrosecond;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<int> Progress::Poll(Request* request) {
  Result<int> events = transport_->Progress(timed_ ? clock_->Now() : 0);
  if (!events.ok()) return events;
  return request->Advance(kBudget);
}

Status Progress::Stalled(const Request& request, Time stalled, WaitObserver* observer) {
  awaited_.clear();
  request.AppendAwaited(&awaited_);
  if (transport_->unsent()) transport_->AppendUnsent(&awaited_);
  std::sort(awaited_.begin(), awaited_.end());
  awaited_.erase(std::unique(awaited_.begin(), awaited_.end()), awaited_.end());
  return observer->OnStall(request, awaited_, stalled);
}

Status Progress::Drive(Request* request, WaitObserver* observer) {
  WakeupEvent* wakeup_event = transport_->wakeup_event();
  int fruitless = 0;
  Time stalled_since = 0, looked = 0;
  while (true) {
    Result<int> ran = Poll(request);
    if (!ran.ok()) return ran.status();
    if (request->done() && !transport_->unsent()) return Status::Ok();
    if (*ran > 0) {
      fruitless = 0;
      stalled_since = 0;
      continue;
    }
    if (Status status = observer->Check(); !status.ok()) return status;
    if (++fruitless <= policy_.spins) {
      Pause();
      continue;
    }
    const Time now = clock_->Now();
    if (stalled_since == 0) {
      stalled_since = now;
    } else if (now - looked > kKeptFromRunning * policy_.longest_sleep) {
      stalled_since += now - looked;  // the stall does not include the time in which this thread
                                      // was stopped
    }
    // A slice is on its way over an emulated link: the peers have done their part.
    if (NextEvent(*transport_) != kNever) stalled_since = now;
    looked = now;
    // Limited by count and by time: on a busy machine a single yield may take long, and it delays
    // the report of a stall.
    const bool polls = request->polls();
    const bool yields = (fruitless <= policy_.spins + policy_.yields &&
                         now - stalled_since < policy_.longest_sleep) ||
                        (polls && now - stalled_since < kLooksAllTheTime);
    if (yields || wakeup_event == nullptr) {
      sched_yield();
      continue;
    }
    FAULT_POINT("progress.before_stall");
    Status status = Stalled(*request, now - stalled_since, observer);
    if (!status.ok()) return status;

    FAULT_POINT("progress.before_sleep");
    const uint32_t token = wakeup_event->Arm();
    ran = Poll(request);
    const bool finished = request->done() && !transport_->unsent();
    if (!ran.ok() || finished || *ran > 0 || !observer->Check().ok()) {
      wakeup_event->Disarm();
      if (!ran.ok()) return ran.status();
      if (*ran > 0) fruitless = 0, stalled_since = 0;
      continue;
    }
    const Time event = NextEvent(*transport_);
    const Time longest = polls ? kShortSleep : policy_.longest_sleep;
    const Time timeout =
        event == kNever ? longest : std::clamp<Time>(event - clock_->Now(), 0, longest);
    wakeup_event->Wait(token, timeout);
  }
}

}  // namespace inccl
