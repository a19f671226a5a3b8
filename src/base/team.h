// SPDX-License-Identifier: Apache-2.0
//
// A team: the thread that runs a call and a few helpers, which share the parts of one step
// (fork-join). The helpers start with the first step that has several parts. After a step they spin
// for some microseconds, as the next step is usually near, then they sleep; between calls they
// sleep. The next free thread takes the next part, so the caller never waits for a helper that has
// not begun a part.
#ifndef INCCL_BASE_TEAM_H_
#define INCCL_BASE_TEAM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace inccl {

class Team {
 public:
  static constexpr int kMostThreads = 64;

  // `threads`: those of the team, the caller's included; 1: no helpers. `spins`: whether there are
  // processors enough for threads that spin.
  explicit Team(int threads = 1, bool spins = true)
      : threads_(std::clamp(threads, 1, kMostThreads)), spins_(spins) {}
  // Joins the helpers. No thread is in Run.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // A team of the calling thread alone, which any number of threads share.
  static Team* Alone();

  int threads() const { return threads_; }
  // The number of parts of `work` units, if a part of fewer than `least` does not pay; at most one
  // for each thread.
  uint32_t PartsOf(uint64_t work, uint64_t least) const {
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(work / least, 1, static_cast<uint64_t>(threads_)));
  }

  // Runs part(0) to part(parts - 1), each once, in any order and on any thread of the team, and
  // returns when all have returned. What the caller wrote before is visible to the parts, and what
  // they wrote to the caller. Helpers take over the caller's modes of floating-point arithmetic. A
  // Run within a part, one while another thread is in Run, and one in a child of fork() run in
  // their own thread alone, and so do more than kMostParts parts.
  template <typename Part>
  void Run(uint32_t parts, Part&& part) {
    static_assert(noexcept(part(uint32_t{0})), "a part must not throw");
    using Function = std::remove_reference_t<Part>;
    if (parts > 1 && parts <= kMostParts && threads_ > 1 && Enter()) {
      Fork({[](const void* function, uint32_t i) { (*static_cast<const Function*>(function))(i); },
            &part},
           parts);
      return;
    }
    for (uint32_t i = 0; i < parts; ++i) part(i);
  }

  // Ends a call: the helpers stop spinning.
  void Rest() { resting_.store(true, std::memory_order_relaxed); }

  static constexpr uint32_t kMostParts = 0xffff;

 private:
  struct Body {
    void (*call)(const void* function, uint32_t part) = nullptr;
    const void* function = nullptr;
  };

  bool Enter();
  void Leave() { busy_.store(false, std::memory_order_release); }
  void Start();
  void Fork(const Body& body, uint32_t parts);
  void Join();
  bool Claim(uint32_t* part);
  bool HasParts() const;
  void Wake(uint32_t helpers);
  void Help();
  void AwaitParts();

  const int threads_;
  const bool spins_;
  std::atomic<bool> busy_{false};
  bool started_ = false;
  bool helped_ = false;  // there are helpers
  uint64_t forks_ = 0;   // of the process when it started them
  std::vector<std::thread> helpers_;

  // Of the step: what a thread reads that has claimed a part.
  Body body_;
  uint64_t float_modes_ = 0;
  // Number of the step (32 bits), of its parts (16), and of those that are claimed (16).
  alignas(64) std::atomic<uint64_t> step_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> wakes_{0};  // the futex on which helpers sleep
  std::atomic<bool> resting_{false};
  std::atomic<bool> stops_{false};
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // parts; the futex on which the caller sleeps
  std::atomic<bool> caller_sleeps_{false};
};

}  // namespace inccl

#endif  // INCCL_BASE_TEAM_H_
