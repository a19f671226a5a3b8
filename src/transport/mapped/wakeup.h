// SPDX-License-Identifier: Apache-2.0
//
// The wakeup event of a rank whose peers share memory with it: two words that peers may write.
//
// No wake-up is lost. Let W be the word that makes work visible: a slot's seq, a credit count or a
// directory's count. All accesses below are sequentially consistent, so they have one total order
// that agrees with each thread's program order, and a load sees the last store before it.
//
//   owner: token = counter;  sleeping = 1;  look at W;  futex_wait(counter == token)
//   peer:  W = new;  look at sleeping;  if 1: exchange it with 0; if it was 1: ++counter,
//          futex_wake
//
// If the owner's look misses W = new, the look precedes the store, so sleeping = 1 precedes the
// peer's look at sleeping. The peer then sees 1, unless another peer has exchanged it with 0 since.
// The peer that got the 1 increments the counter after the owner has read its token, so futex_wait
// finds a different counter and returns, or is woken. Only the owner stores 1, and only after it
// has read the token; therefore the increment must follow the exchange: an increment before it
// could be part of the token of a later Arm.
//
// An owner that sleeps on other descriptors, too, sleeps on an eventfd instead of the futex:
//
//   owner: sleeping = 2;  look at W;  poll;  sleeping = 0;  if the eventfd is readable: read it
//   peer:  W = new;  look at sleeping;  if not 0: exchange it with 0; if it was 2: write the
//   eventfd
//
// As above, if the look misses W = new, that peer or another one gets the 2 and writes the eventfd
// after the owner has stored 2. An eventfd stays readable until it is read, so it does not matter
// whether the write comes before or after the poll begins; it needs no counter. The owner reads it
// only between a poll and its next look. If a read takes the write of a peer that got a later 2, or
// of several peers, their W = new precede their writes, so that next look sees them. A write that
// comes late, after the owner has stored 0, wakes the owner once for nothing. All ranks that share
// these words know from the join whether the owner has an eventfd.
//
// A defective peer that writes these words can only wake the owner for nothing or delay it until
// the timeout of its wait.
#ifndef INCCL_TRANSPORT_MAPPED_WAKEUP_H_
#define INCCL_TRANSPORT_MAPPED_WAKEUP_H_

#include <atomic>
#include <cstdint>

#include "transport/poll_wakeup_event.h"
#include "transport/transport.h"

namespace inccl::mapped {

inline constexpr uint64_t kWakeupMagic = 0x4c4c45424c43434eu;

inline constexpr uint32_t kAwake = 0, kSleepsOnFutex = 1, kSleepsOnEventFd = 2;

struct alignas(64) WakeupArea {
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> counter;  // the futex
  uint64_t magic;                 // constant
  int32_t rank;                   // constant
};
static_assert(sizeof(WakeupArea) == 64);

enum class FutexScope { kProcess, kHost };

// `event_fd`: that of the rank to wake; -1: it never sleeps on one.
void SignalWakeup(WakeupArea* wakeup, FutexScope scope, int event_fd);

// A peer calls this after it has made work visible by a sequentially consistent store.
inline void RingIfSleeping(WakeupArea* wakeup, FutexScope scope, int event_fd) {
  if (wakeup->sleeping.load(std::memory_order_seq_cst) != kAwake) {
    SignalWakeup(wakeup, scope, event_fd);
  }
}

// The owner's end. `area` outlives this object.
class FutexWakeupEvent final : public WakeupEvent {
 public:
  FutexWakeupEvent(WakeupArea* area, FutexScope scope) : area_(area), scope_(scope) {}
  uint32_t Arm() override;
  void Wait(uint32_t token, Time timeout) override;
  void Disarm() override;
  void Signal() override;

 private:
  WakeupArea* area_;
  FutexScope scope_;
};

// The owner's end where it also sleeps on other descriptors. `area` and the eventfd outlive it.
class EventFdWakeupSource final : public WakeupSource {
 public:
  EventFdWakeupSource(WakeupArea* area, int event_fd) : area_(area), event_fd_(event_fd) {}
  int fd() const override { return event_fd_; }
  void Arm() override { area_->sleeping.store(kSleepsOnEventFd, std::memory_order_seq_cst); }
  void Disarm(bool readable) override;

 private:
  WakeupArea* area_;
  int event_fd_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_WAKEUP_H_
