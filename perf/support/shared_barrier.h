// SPDX-License-Identifier: Apache-2.0
//
// A barrier between processes, in memory that they share (a futex word must not be copied). Two
// stages: the first yields for a while and then blocks, so that more ranks than cores do not starve
// those that still work; the second, when all are awake, only spins and yields, so that they leave
// within a fraction of a microsecond of each other where each has a core. All zero is the initial
// state.
#ifndef INCCL_PERF_SUPPORT_SHARED_BARRIER_H_
#define INCCL_PERF_SUPPORT_SHARED_BARRIER_H_

#include <atomic>
#include <cstdint>

namespace inccl::perf {

class SharedBarrier {
 public:
  // True when all `ranks` have arrived, also if one of them aborts then; false when the barrier was
  // aborted before.
  bool Wait(uint32_t ranks);

  // Every future Wait returns false, and every present one that not all have reached. Any process,
  // any time, also in a signal's wake.
  void Abort();

 private:
  bool Arrive(uint32_t ranks);
  bool Start(uint32_t ranks);

  std::atomic<uint32_t> aborted_;
  alignas(64) std::atomic<uint32_t> arrived_;
  alignas(64) std::atomic<uint32_t> generation_;  // the futex word
  alignas(64) std::atomic<uint32_t> awake_;
  alignas(64) std::atomic<uint32_t> started_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_SHARED_BARRIER_H_
