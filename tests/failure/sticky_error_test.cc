// SPDX-License-Identifier: Apache-2.0
//
// The first error stays. A rank that leaves after an error has notified its peers before.
#include "failure/sticky_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace inccl::test {
namespace {

using Origin = StickyError::Origin;

// Keeps the notices; each message takes a while, as on a machine that stands still.
class SlowPlane final : public ControlPlane {
 public:
  explicit SlowPlane(int nranks) : ControlPlane(nranks) {}
  void Send(int /*peer*/, uint8_t kind, std::span<const std::byte> body) override {
    EXPECT_EQ(kind, StickyError::kNoticeKind);
    usleep(200'000);
    notice = ReadNotice(body);
    ++sent;
  }
  void Close(Time /*flush_deadline*/) override {}
  std::atomic<int> sent{0};
  Status notice;
};

class CountingEvent final : public WakeupEvent {
 public:
  uint32_t Arm() override { return 0; }
  void Disarm() override {}
  void Wait(uint32_t /*token*/, Time /*timeout*/) override {}
  void Signal() override { ++signals; }
  int signals = 0;
};

TEST(StickyErrorTest, PeersAreNotifiedBeforeTheRankLeaves) {
  constexpr int kRanks = 3;
  SlowPlane plane(kRanks);
  StickyError error(false, nullptr);
  error.Attach(&plane);
  const Status ours = InvalidUsage("rank 0/3: peer 1 reports: it"), theirs = InvalidUsage("it");
  std::thread finder([&] { error.Set(ours, theirs, Origin::kFailure); });
  while (!error.failed()) std::this_thread::yield();
  EXPECT_EQ(error.error().message(), ours.message());
  error.WaitNotified();
  EXPECT_EQ(plane.sent, kRanks);  // a plane's Send to its own rank has no effect
  EXPECT_EQ(plane.notice.message(), theirs.message());
  EXPECT_EQ(plane.notice.code(), Code::kInvalidUsage);
  finder.join();
}

TEST(StickyErrorTest, NothingToTell) {
  StickyError error(true, nullptr);
  error.Begin();
  error.WaitNotified();
  error.WaitFailed(0);
  EXPECT_FALSE(error.failed());
  EXPECT_FALSE(error.failed_flag()->load());
  EXPECT_TRUE(error.error().ok());
}

TEST(StickyErrorTest, TheFirstOfManyThreadsWins) {
  CountingEvent event;
  StickyError error(false, &event);
  constexpr int kThreads = 8;
  std::vector<std::string> seen(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Status mine = SystemError(std::to_string(i));
      error.Set(mine, mine, i % 2 == 0 ? Origin::kFailure : Origin::kOnPurpose);
      seen[static_cast<size_t>(i)] = error.error().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : seen) EXPECT_EQ(text, seen[0]);
  EXPECT_FALSE(seen[0].empty());
  EXPECT_TRUE(error.failed_flag()->load());
  EXPECT_EQ(event.signals, 1);
}

void Ends(bool abort_on_error, bool begun, Origin origin) {
  StickyError error(abort_on_error, nullptr);
  if (begun) error.Begin();
  error.Set(SystemError("broken"), SystemError("broken"), origin);
  _exit(error.failed() ? 0 : 1);
}

TEST(StickyErrorTest, AnErrorAfterCreationEndsTheProcessIfSetUpSo) {
  const auto lives = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(Ends(true, true, Origin::kFailure), ::testing::KilledBySignal(SIGABRT), "");
  EXPECT_EXIT(Ends(false, true, Origin::kFailure), lives, "");
  EXPECT_EXIT(Ends(true, false, Origin::kFailure), lives, "");
  EXPECT_EXIT(Ends(true, true, Origin::kOnPurpose), lives, "");
  // A peer's error may arrive before the end of this rank's creation.
  EXPECT_EXIT(
      {
        StickyError error(true, nullptr);
        error.Set(SystemError("broken"), SystemError("broken"), Origin::kFailure);
        error.Begin();
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace inccl::test
