// SPDX-License-Identifier: Apache-2.0
//
// The wakeup_event of a rank whose peers share memory with it: two words that peers may write.
//
// No wake-up is lost. Let W be the word through which work becomes visible: a slot's seq, a credit
// count, a directory's count. All accesses below are sequentially consistent, so there is one total
// order of them that agrees with each thread's program order and in which a load sees the last
// store before it.
//
//   owner: token = counter;  sleeping = 1;  look at W;  futex_wait(counter == token)
//   peer:  W = new;  look at sleeping;  if 1: exchange it with 0; if it was 1: ++counter,
//   futex_wake
//
// If the owner's look misses W = new, the look comes before the store, hence sleeping = 1 comes
// before the peer's look at sleeping. So the peer sees 1, unless somebody has exchanged it with 0
// since; whoever got the 1 then increments the counter, after the owner has read its token. So
// futex_wait finds a counter that differs and returns, or is woken. The owner is alone in storing 1
// and does so only after token is read, which is why the increment must come after the exchange: an
// increment before it could be part of the token of a later Arm.
//
// What a defective peer can do to these words: wake the owner for nothing, or delay it until the
// timeout of its wait.
#ifndef INCCL_TRANSPORT_MAPPED_WAKEUP_H_
#define INCCL_TRANSPORT_MAPPED_WAKEUP_H_

#include <atomic>
#include <cstdint>

#include "transport/transport.h"

namespace inccl::mapped {

inline constexpr uint64_t kWakeupMagic = 0x4c4c45424c43434eu;

struct alignas(64) WakeupArea {
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> counter;  // the futex
  uint64_t magic;                 // constant
  int32_t rank;                   // constant
};
static_assert(sizeof(WakeupArea) == 64);

enum class FutexScope { kProcess, kHost };

void SignalWakeup(WakeupArea* wakeup, FutexScope scope);

// A peer, after it made work visible by a sequentially consistent store.
inline void RingIfSleeping(WakeupArea* wakeup, FutexScope scope) {
  if (wakeup->sleeping.load(std::memory_order_seq_cst) != 0) SignalWakeup(wakeup, scope);
}

// The owner's end. `area` outlives it.
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

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_WAKEUP_H_
