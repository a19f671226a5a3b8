// SPDX-License-Identifier: Apache-2.0
#include "base/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <climits>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

namespace inccl {
namespace {

// How long a thread spins before it sleeps: a few steps.
constexpr Time kSpin = 20 * kMicrosecond;
constexpr int kPausesPerLook = 8;  // at the clock

constexpr uint64_t Claimed(uint64_t step) { return step & 0xffff; }
constexpr uint64_t Parts(uint64_t step) { return step >> 16 & 0xffff; }
constexpr uint64_t NextStep(uint64_t step, uint64_t parts) {
  return ((step >> 32) + 1) << 32 | parts << 16;
}

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounding and the treatment of denormals; without the flags that operations have raised.
#if defined(__x86_64__)
constexpr uint32_t kFlags = 0x3f;
uint64_t FloatModes() { return _mm_getcsr() & ~kFlags; }
void SetFloatModes(uint64_t modes) { _mm_setcsr(static_cast<uint32_t>(modes)); }
#elif defined(__aarch64__)
uint64_t FloatModes() {
  uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void SetFloatModes(uint64_t modes) { asm volatile("msr fpcr, %0" : : "r"(modes)); }
#else
uint64_t FloatModes() { return 0; }
void SetFloatModes(uint64_t /*modes*/) {}
#endif

// The kernel reads the word itself, so this is an access to the atomic's representation.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr,
          0);
}
void FutexWake(std::atomic<uint32_t>* word, int threads) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, threads, nullptr,
          nullptr, 0);
}

// Spins until `done` or for kSpin. Returns done().
template <typename Done>
bool SpinUntil(const Done& done) {
  const Time end = SystemClock().Now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (SystemClock().Now() < end);
  return done();
}

// How often this process's line of ancestors has forked. A child has no threads of its parent.
std::atomic<uint64_t> forks{0};
uint64_t Forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

// Memory order. The caller writes body_, float_modes_ and unfinished_, then publishes the step in
// step_. A thread reads them only after it has claimed a part by a read-modify-write of step_,
// which synchronizes with the publication; the step cannot end before it has counted the part in
// unfinished_, so they do not change meanwhile. The caller reads 0 in unfinished_ with acquire, so
// it sees what all parts have written. A thread that goes to sleep first says so, then looks again;
// the other side first publishes, then looks for sleepers: all four sequentially consistent.

Team* Team::Alone() {
  static Team alone;
  return &alone;
}

Team::~Team() {
  if (!helped_) return;
  if (forks_ != Forks()) {
    // The threads are the parent's, and nothing can be done with their handles here.
    (void)new (std::nothrow) std::vector<std::thread>(std::move(helpers_));
    return;
  }
  stops_.store(true, std::memory_order_seq_cst);
  Wake(INT_MAX);
  for (std::thread& helper : helpers_) helper.join();
}

bool Team::Enter() {
  if (busy_.exchange(true, std::memory_order_acquire)) return false;
  if (!started_) Start();
  if (helped_ && forks_ == Forks()) return true;
  Leave();
  return false;
}

void Team::Start() {
  started_ = true;
  forks_ = Forks();
  const auto wanted = static_cast<size_t>(threads_) - 1;
  Status status;
  try {
    helpers_.reserve(wanted);
    while (status.ok() && helpers_.size() < wanted) {
      Result<std::thread> helper = StartThread("inccl-team", [this] { Help(); });
      status = helper.status();
      if (status.ok()) helpers_.push_back(*std::move(helper));
    }
  } catch (const std::bad_alloc&) {
    status = SystemError("no memory for a thread");
  }
  helped_ = !helpers_.empty();
  if (status.ok()) return;
  Log(LogLevel::kWarn, LogSubsystem::kInit, "{} of {} threads (INCCL_THREADS) run calls: {}",
      helpers_.size() + 1, threads_, status.message());
}

bool Team::HasParts() const {
  const uint64_t step = step_.load(std::memory_order_seq_cst);
  return Claimed(step) < Parts(step);
}

bool Team::Claim(uint32_t* part) {
  uint64_t step = step_.load(std::memory_order_acquire);
  while (Claimed(step) < Parts(step)) {
    if (step_.compare_exchange_weak(step, step + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      *part = static_cast<uint32_t>(Claimed(step));
      return true;
    }
  }
  return false;
}

void Team::Fork(const Body& body, uint32_t parts) {
  body_ = body;
  float_modes_ = FloatModes();
  resting_.store(false, std::memory_order_relaxed);
  unfinished_.store(parts, std::memory_order_relaxed);
  step_.store(NextStep(step_.load(std::memory_order_relaxed), parts), std::memory_order_seq_cst);
  // A helper counts itself as asleep before it looks for parts for the last time.
  if (sleepers_.load(std::memory_order_seq_cst) != 0) Wake(parts - 1);
  uint32_t done = 0;
  for (uint32_t part = 0; Claim(&part); ++done) body.call(body.function, part);
  if (unfinished_.fetch_sub(done, std::memory_order_acq_rel) != done) Join();
  Leave();
}

void Team::Join() {
  const auto joined = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (spins_ && SpinUntil(joined)) return;
  while (!joined()) {
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    const uint32_t left = unfinished_.load(std::memory_order_seq_cst);
    if (left != 0) FutexWait(&unfinished_, left);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

void Team::Wake(uint32_t helpers) {
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(&wakes_, static_cast<int>(std::min<uint32_t>(helpers, INT_MAX)));
}

void Team::Help() {
  uint64_t modes = FloatModes();
  while (!stops_.load(std::memory_order_acquire)) {
    for (uint32_t part = 0; Claim(&part);) {
      if (modes != float_modes_) SetFloatModes(modes = float_modes_);
      body_.call(body_.function, part);
      if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
          caller_sleeps_.load(std::memory_order_seq_cst)) {
        FutexWake(&unfinished_, 1);
      }
    }
    AwaitParts();
  }
}

void Team::AwaitParts() {
  const auto due = [this] {
    return HasParts() || resting_.load(std::memory_order_relaxed) ||
           stops_.load(std::memory_order_relaxed);
  };
  if (spins_ && SpinUntil(due) && HasParts()) return;
  const uint32_t seen = wakes_.load(std::memory_order_seq_cst);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (!HasParts() && !stops_.load(std::memory_order_seq_cst)) FutexWait(&wakes_, seen);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace inccl
