// SPDX-License-Identifier: Apache-2.0
//
// A rank that leaves after an error has told the others of it before.
#include "liveness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"

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

// What a peer says of itself goes into messages, and what it says must not act on a terminal.
TEST(LivenessTest, TextsOfPeersAreFitForATerminal) {
  constexpr int kRanks = 3;
  const std::vector<std::string> names = {"a:1", "a:2", "a:3"};
  const std::string evil = "\x1b[2J\nboom", shown = R"(\x1b[2J\x0aboom)";
  {
    Survivors survivors(0, kRanks, names);
    Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, nullptr, &survivors);
    ByteWriter error;
    error.U32(static_cast<uint32_t>(Code::kSystemError));
    error.String(evil);
    liveness.OnMessage(2, /*kError*/ 2, error.bytes());
    EXPECT_EQ(liveness.error().code(), Code::kSystemError);
    EXPECT_EQ(liveness.error().message(), "rank 0/3 before any op: peer 2@a:3 reports: " + shown);
  }
  Survivors survivors(0, kRanks, names);
  Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, nullptr, &survivors);
  uint64_t signature = 0;
  ASSERT_TRUE(liveness.BeginCall(1, Call{}, &signature).ok());
  CallRecord record;
  record.Set(1, Call{});
  record.codec = evil;
  liveness.OnMessage(1, /*kRecord*/ 1, record.Encode());
  EXPECT_EQ(liveness.error().code(), Code::kInvalidUsage);
  EXPECT_NE(liveness.error().message().find("rank 1/3 calls allreduce"), std::string::npos);
  EXPECT_NE(liveness.error().message().find("codec=" + shown), std::string::npos)
      << liveness.error().message();
}

}  // namespace
}  // namespace inccl::test
