// SPDX-License-Identifier: Apache-2.0
//
// Sleeping on several sources at once: none of them loses a wake-up.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/mapped/wakeup.h"
#include "transport/poll_wakeup_event.h"

namespace inccl {
namespace {

using mapped::EventFdWakeupSource;
using mapped::FutexScope;
using mapped::RingIfSleeping;
using mapped::WakeupArea;

constexpr Time kLong = 60 * kSecond;  // only a lost wake-up takes as long

// The words that a rank shares with its peers, and its eventfd.
struct Bell {
  WakeupArea area{};
  UniqueFd fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  EventFdWakeupSource source{&area, fd.get()};

  void Ring() { RingIfSleeping(&area, FutexScope::kHost, fd.get()); }
  bool readable() const {
    pollfd poll_fd{.fd = fd.get(), .events = POLLIN, .revents = 0};
    return poll(&poll_fd, 1, 0) == 1;
  }
};

std::unique_ptr<PollWakeupEvent> Make(std::vector<WakeupSource*> sources) {
  auto event = PollWakeupEvent::Create(std::move(sources));
  EXPECT_TRUE(event.ok());
  return *std::move(event);
}

TEST(PollWakeupTest, PeersWriteOnlyToOneThatSleeps) {
  Bell bell;
  const auto event = Make({&bell.source});
  bell.Ring();
  EXPECT_FALSE(bell.readable()) << "the owner is awake";
  const uint32_t token = event->Arm();
  bell.Ring();
  ASSERT_TRUE(bell.readable());
  EXPECT_EQ(bell.area.counter, 0u) << "it does not sleep on the futex";
  bell.Ring();
  event->Wait(token, kLong);
  EXPECT_FALSE(bell.readable()) << "the next sleep would end at once";
  EXPECT_EQ(bell.area.sleeping, 0u);
  event->Arm();
  event->Disarm();
  bell.Ring();
  EXPECT_FALSE(bell.readable());
}

// A peer that took the owner's 2 before Disarm and writes afterwards wakes it once for nothing.
TEST(PollWakeupTest, ALateWriteCostsOneWakeUp) {
  Bell bell;
  const auto event = Make({&bell.source});
  event->Arm();
  bell.Ring();
  event->Disarm();
  event->Wait(event->Arm(), kLong);
  const Time start = SystemClock().Now();
  event->Wait(event->Arm(), 2 * kMillisecond);
  EXPECT_GE(SystemClock().Now() - start, 2 * kMillisecond);
}

TEST(PollWakeupTest, ASignalAfterArmEndsTheWait) {
  Bell bell;
  const auto event = Make({&bell.source});
  for (int i = 0; i < 100; ++i) {
    const uint32_t token = event->Arm();
    event->Signal();
    const Time start = SystemClock().Now();
    event->Wait(token, kLong);
    ASSERT_LT(SystemClock().Now() - start, kLong / 2);
    EXPECT_EQ(bell.area.sleeping, 0u);
  }
}

TEST(PollWakeupTest, ASourceThatIsNotReadyPreventsTheSleep) {
  class Busy final : public WakeupSource {
   public:
    int fd() const override { return fd_.get(); }
    bool Ready() override { return false; }

   private:
    UniqueFd fd_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  } busy;
  Bell bell;
  const auto event = Make({&bell.source, &busy});
  const Time start = SystemClock().Now();
  event->Wait(event->Arm(), kLong);
  EXPECT_LT(SystemClock().Now() - start, kLong / 2);
}

// Two peers and a thread of this process, each with a source of its own, make work visible and
// ring; the owner goes straight to sleep after each.
TEST(PollWakeupTest, NoSourceLosesAWakeUp) {
  constexpr int kRounds = 5000;
  Bell bells[2];
  const auto event = Make({&bells[0].source, &bells[1].source});
  std::atomic<int> work[3] = {0, 0, 0};
  std::vector<std::thread> ringers;
  for (int i = 0; i < 3; ++i) {
    ringers.emplace_back([&, i] {
      for (int round = 1; round <= kRounds; ++round) {
        work[i].store(round, std::memory_order_seq_cst);
        if (i < 2) {
          bells[i].Ring();
        } else {
          event->Signal();
        }
        while (work[i].load() == round) std::this_thread::yield();
      }
    });
  }
  int done = 0;
  const auto look = [&] {
    const int before = done;
    for (std::atomic<int>& w : work) {
      const int seen = w.load(std::memory_order_seq_cst);
      if (seen <= 0) continue;
      w.store(-seen);
      ++done;
    }
    return done > before;
  };
  bool lost = false;
  while (done < 3 * kRounds && !lost) {
    const uint32_t token = event->Arm();
    if (look()) {
      event->Disarm();
      continue;
    }
    const Time start = SystemClock().Now();
    event->Wait(token, kLong);
    lost = lost || SystemClock().Now() - start > kLong / 2;
  }
  EXPECT_FALSE(lost);
  while (done < 3 * kRounds) look();
  for (std::thread& ringer : ringers) ringer.join();
}

}  // namespace
}  // namespace inccl
