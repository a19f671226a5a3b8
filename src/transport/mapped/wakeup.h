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
// A defective peer that writes these words can only wake the owner for nothing or delay it until
// the timeout of its wait.
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

// A peer calls this after it has made work visible by a sequentially consistent store.
inline void RingIfSleeping(WakeupArea* wakeup, FutexScope scope) {
  if (wakeup->sleeping.load(std::memory_order_seq_cst) != 0) SignalWakeup(wakeup, scope);
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

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_WAKEUP_H_
