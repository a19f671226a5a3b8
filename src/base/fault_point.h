// SPDX-License-Identifier: Apache-2.0
//
// Named places in the library at which a test can kill, stop, end or delay a process, or run a
// function. The CMake option INCCL_FAULT_POINTS compiles them in (on if tests are built). A place
// then costs one relaxed load while no plan is armed; without the option it costs nothing.
//
// A plan comes from Arm() or from INCCL_TEST_FAULT, which the library reads whenever it creates a
// communicator or an id:
//
//   INCCL_TEST_FAULT="rank=1;point=mesh.after_handshake;hit=3;action=kill"
//
//   rank    rank of the arriving thread (FAULT_RANK); default: any thread
//   point   a name of kPoints, or * for all of them together
//   hit     number of the arrival that triggers the action; 0: every one; default: the first
//   action  kill, stop (SIGSTOP), exit (exit(0)), delay:MILLISECONDS, count (only counts)
#ifndef INCCL_BASE_FAULT_POINT_H_
#define INCCL_BASE_FAULT_POINT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/status.h"

namespace inccl::fault {

inline constexpr int kNoRank = -2;  // matches no plan's rank

// All fault points. A name that is not listed does not compile; the sweep (tests/faults) fails for
// a point that no test reaches.
inline constexpr std::string_view kPoints[] = {
    // creation of a communicator, in order
    "init.begin",
    "shm.after_create",
    "bootstrap.before_connect",
    "bootstrap.after_connect",
    "bootstrap.after_authentication",
    "bootstrap.after_register",
    "bootstrap.after_table",
    "mesh.after_connect",
    "mesh.after_accept",
    "mesh.after_handshake",
    "mesh.before_swap",
    "mesh.after_swap",
    "bootstrap.before_done",
    "bootstrap.after_done",
    "bootstrap.after_go",
    "shm.before_attach",
    "shm.after_attach",
    "init.after_attach",
    "control.before_start",
    "init.before_return",
    // the thread of the rendezvous, in order
    "root.after_accept",
    "root.after_authentication",
    "root.after_register",
    "root.before_table",
    "root.after_table",
    "root.before_go",
    "root.after_go",
    // an operation
    "call.before_begin",
    "call.after_begin",
    "call.after_bind",
    "executor.before_step",
    "executor.before_release",
    "executor.before_publish",
    "executor.after_publish",
    "zero_copy.after_publish",
    "zero_copy.after_delivery",
    "send_recv.before_publish",
    "send_recv.before_release",
    "progress.before_stall",
    "progress.before_sleep",
    "call.before_finish",
    "call.after_finish",
    // the end of a communicator
    "destroy.begin",
    "destroy.after_disconnect",
};
inline constexpr size_t kPointCount = sizeof kPoints / sizeof kPoints[0];
inline constexpr size_t kNoPoint = kPointCount;

constexpr size_t IndexOf(std::string_view name) {
  for (size_t i = 0; i < kPointCount; ++i) {
    if (kPoints[i] == name) return i;
  }
  return kNoPoint;
}

enum class Action : uint8_t { kCount, kKill, kStop, kExit, kDelay, kCall };

struct Plan {
  int rank = -1;            // -1: any thread
  size_t point = kNoPoint;  // kNoPoint: all points
  uint64_t hit = 1;         // 0: every arrival
  Action action = Action::kCount;
  int delay_ms = 0;
  std::function<void()> call = {};  // for kCall; runs in the arriving thread
};

// A kInvalidArgument says what is wrong.
Result<Plan> ParsePlan(std::string_view text);

// Replaces the plan and clears the counts. Any thread.
void Arm(Plan plan);
void Disarm();
// Arms the plan of INCCL_TEST_FAULT if the variable has changed since the last call.
Status ArmFromEnvironment();

// Number of arrivals, while a plan was armed, of threads that match its rank.
uint64_t Hits(size_t point);

namespace internal {
extern std::atomic<bool> armed;
extern thread_local constinit int rank;
void Reach(size_t point);
}  // namespace internal

// Sets the rank for which the current thread works, for the lifetime of this object.
class RankScope {
 public:
  explicit RankScope(int rank) : old_(internal::rank) { internal::rank = rank; }
  ~RankScope() { internal::rank = old_; }
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  int old_;
};

}  // namespace inccl::fault

#if !defined(INCCL_NO_FAULT_POINTS)
#define FAULT_POINT(name)                                                               \
  do {                                                                                  \
    static_assert(::inccl::fault::IndexOf(name) != ::inccl::fault::kNoPoint);           \
    if (::inccl::fault::internal::armed.load(std::memory_order_relaxed)) [[unlikely]] { \
      ::inccl::fault::internal::Reach(::inccl::fault::IndexOf(name));                   \
    }                                                                                   \
  } while (false)
#define FAULT_RANK(rank) const ::inccl::fault::RankScope inccl_fault_rank(rank)
#define FAULT_ARM() ::inccl::fault::ArmFromEnvironment()
#else
#define FAULT_POINT(name) static_cast<void>(0)
#define FAULT_RANK(rank) static_cast<void>(0)
#define FAULT_ARM() ::inccl::Status()
#endif

#endif  // INCCL_BASE_FAULT_POINT_H_
