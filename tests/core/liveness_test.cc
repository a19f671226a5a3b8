// SPDX-License-Identifier: Apache-2.0
//
// A rank that leaves after an error has told the others of it before.
#include "liveness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace inccl::test {
namespace {

// Takes its time over every message, as a machine that stands still does.
class SlowPlane final : public ControlPlane {
 public:
  explicit SlowPlane(int nranks) : ControlPlane(nranks) {}
  void Send(int /*peer*/, uint8_t /*kind*/, std::span<const std::byte> /*body*/) override {
    usleep(200'000);
    ++sent;
  }
  void Close(Time /*flush_deadline*/) override {}
  std::atomic<int> sent{0};
};

TEST(LivenessTest, WhoLeavesHasToldWhatItKnows) {
  constexpr int kRanks = 3;
  Survivors survivors(0, kRanks, {"a:1", "a:2", "a:3"});
  SlowPlane plane(kRanks);
  Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = {"a:1", "a:2", "a:3"}}, nullptr,
                    &survivors);
  liveness.Attach(&plane);
  std::thread finder([&] { liveness.Fail(InvalidUsage("ranks disagree")); });
  while (!liveness.failed()) std::this_thread::yield();
  EXPECT_EQ(liveness.Check().code(), Code::kInvalidUsage);  // what the caller gets, who then leaves
  liveness.WaitTold();
  EXPECT_EQ(plane.sent, kRanks);  // a plane's Send to its own rank has no effect
  finder.join();
}

TEST(LivenessTest, NothingToTell) {
  Survivors survivors(0, 2, {"a:1", "a:2"});
  Liveness liveness({.rank = 0, .nranks = 2, .peer_names = {"a:1", "a:2"}}, nullptr, &survivors);
  liveness.WaitTold();
  EXPECT_FALSE(liveness.failed());
}

}  // namespace
}  // namespace inccl::test
