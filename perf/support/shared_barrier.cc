// SPDX-License-Identifier: Apache-2.0
#include "perf/support/shared_barrier.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace inccl::perf {
namespace {

constexpr int kYieldsBeforeBlock = 20;
constexpr int kLooksBeforeYield = 200;
constexpr uint32_t kComplete = 2;  // what a barrier that all have reached adds to the generation

// Not the private operations: the word is shared between processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, expected, nullptr, nullptr, 0);
}
void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool SharedBarrier::Wait(uint32_t ranks) { return Arrive(ranks) && Start(ranks); }

bool SharedBarrier::Arrive(uint32_t ranks) {
  const uint32_t generation = generation_.load();
  if (aborted_.load() != 0) return false;  // else an abort changes the generation after this
  if (arrived_.fetch_add(1) + 1 == ranks) {
    arrived_.store(0);
    generation_.fetch_add(kComplete);
    FutexWakeAll(&generation_);
    return true;
  }
  for (int i = 0; i < kYieldsBeforeBlock && generation_.load() == generation; ++i) sched_yield();
  while (generation_.load() == generation) FutexWait(&generation_, generation);
  return generation_.load() - generation >= kComplete;
}

bool SharedBarrier::Start(uint32_t ranks) {
  const uint32_t started = started_.load();
  if (awake_.fetch_add(1) + 1 == ranks) {
    awake_.store(0);
    started_.fetch_add(1);
    return true;
  }
  while (started_.load() == started) {
    for (int i = 0; i < kLooksBeforeYield; ++i) {
      if (started_.load(std::memory_order_acquire) != started) return true;
      CpuRelax();
    }
    if (aborted_.load() != 0) return true;  // who is awake may be gone; all had arrived
    sched_yield();
  }
  return true;
}

void SharedBarrier::Abort() {
  if (aborted_.exchange(1) != 0) return;
  generation_.fetch_add(1);  // less than kComplete
  FutexWakeAll(&generation_);
}

}  // namespace inccl::perf
