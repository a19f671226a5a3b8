// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/transport_world.h"

namespace inccl {
namespace {

LaneSpec Spec(int producer, int consumer, uint32_t slot_bytes, int depth, int channel = 0) {
  LaneSpec spec;
  spec.channel = static_cast<uint8_t>(channel);
  spec.producer = producer;
  spec.consumers = {consumer};
  spec.slot_bytes = slot_bytes;
  spec.depth = static_cast<uint16_t>(depth);
  return spec;
}

TEST(LoopbackTest, MakesAnEndPerRank) {
  EXPECT_TRUE(MakeLoopback(0).empty());
  EXPECT_TRUE(MakeLoopback(-1).empty());
  EXPECT_EQ(MakeLoopback(1).size(), 1u);
  const auto ends = MakeLoopback(64);
  ASSERT_EQ(ends.size(), 64u);
  for (const auto& end : ends) {
    const std::vector<int> all = {1, 2, 63};
    EXPECT_TRUE(end->CapsFor(0, all).multicast);
    EXPECT_TRUE(end->caps().shared_slots);
    EXPECT_LE(end->memory_bytes(), 8192u) << "memory before any lane is open";
  }
}

TEST(LoopbackTest, TooMuchAddressSpaceIsNoEnds) {
  EXPECT_TRUE(MakeLoopback(2, LoopbackOptions{size_t{1} << 62}).empty());
}

TEST(LoopbackTest, SlicesOutliveTheirSender) {
  auto ends = MakeLoopback(2);
  auto recv = *ends[1]->OpenRecv(Spec(0, 1, 1000, 2));
  {
    auto send = *ends[0]->OpenSend(Spec(0, 1, 1000, 2));
    const Span slot = *send->TryAcquire();
    std::memset(slot.data, 42, 1000);
    ASSERT_TRUE(send->Publish(SliceHeader{1000, 0, 0}).ok());
  }
  ends[0].reset();
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv->TryPeek(&incoming));
  EXPECT_EQ(incoming.payload[999], std::byte{42});
  EXPECT_TRUE(recv->Release().ok()) << "triggers a wakeup event without a waiter";
}

TEST(LoopbackTest, AFullArenaRefusesAndGoesOn) {
  auto ends = MakeLoopback(2, LoopbackOptions{size_t{4} << 20});
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0]->OpenSend(Spec(0, 1, 8 << 20, 1)).status().code(), Code::kInvalidArgument)
      << "larger than max_slot_bytes";
  const Status status = ends[0]->OpenSend(Spec(0, 1, 1 << 20, 4)).status();
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(std::to_string(4 << 20)), std::string::npos) << status.message();
  EXPECT_TRUE(ends[0]->OpenSend(Spec(0, 1, 1 << 20, 2)).ok());
  const std::vector<int> zero = {0};
  EXPECT_TRUE(ends[1]->OpenSend(Spec(1, 0, ends[1]->CapsFor(1, zero).max_slot_bytes, 1)).ok());
}

TEST(LoopbackTest, GivesItsMemoryBack) {
  const auto mappings = [] {
    int lines = 0;
    FILE* maps = std::fopen("/proc/self/maps", "r");
    for (int c = 0; maps != nullptr && (c = std::fgetc(maps)) != EOF;) lines += c == '\n';
    if (maps != nullptr) std::fclose(maps);
    return lines;
  };
  const auto cycle = [] {
    auto ends = MakeLoopback(8);
    for (int i = 1; i < 8; ++i) {
      auto lane = *ends[0]->OpenSend(Spec(0, i, 100000, 4));
      const Span slot = *lane->TryAcquire();
      std::memset(slot.data, 1, slot.bytes);
    }
  };
  cycle();
  const int before = mappings();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_LE(mappings(), before + 4);
}

}  // namespace
}  // namespace inccl
