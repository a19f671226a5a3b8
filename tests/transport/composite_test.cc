// SPDX-License-Identifier: Apache-2.0
//
// What is special of a transport of several parts. What every transport promises is
// tests/conformance.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/seed.h"
#include "support/transport_world.h"
#include "transport/composite/composite_transport.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"

namespace inccl::test {
namespace {

using Sets = std::vector<std::vector<int>>;

LaneSpec Spec(int producer, std::vector<int> consumers) {
  return {.producer = producer, .consumers = std::move(consumers), .slot_bytes = 100, .depth = 2};
}

// Hosts 0,1 | 2,3 | 4 over threads.
TEST(CompositeTest, LanesAreCutByHost) {
  RunRanks(WorldKind::kCompositeThreads, 5, TestSeed(), [](RankContext& r) {
    EXPECT_STREQ(r.transport->caps().name, "shm+ucx");
    EXPECT_EQ(r.transport->Split(0, std::vector{1, 2, 3, 4}), (Sets{{1}, {2}, {3}, {4}}));
    EXPECT_EQ(r.transport->Split(1, std::vector{0}), (Sets{{0}}));
    EXPECT_TRUE(r.transport->CapsFor(0, std::vector{1}).read_in_place);
    EXPECT_FALSE(r.transport->CapsFor(0, std::vector{2}).read_in_place);
    EXPECT_FALSE(r.transport->CapsFor(0, std::vector{1, 2}).read_in_place);
    EXPECT_FALSE(r.transport->CapsFor(0, std::vector{1, 2}).multicast);
    EXPECT_FALSE(r.transport->CapsFor(0, std::vector{2, 3}).multicast) << "ucx has none";
  });
}

// Hosts 0,2,4 | 1,3 over processes.
TEST(CompositeTest, OneLaneServesTheReadersOfTheProducersHost) {
  RunRanks(WorldKind::kCompositeProcesses, 5, TestSeed(), [](RankContext& r) {
    EXPECT_EQ(r.transport->Split(0, std::vector{1, 2, 3, 4}), (Sets{{2, 4}, {1}, {3}}));
    EXPECT_EQ(r.transport->Split(1, std::vector{0, 2, 3, 4}), (Sets{{3}, {0}, {2}, {4}}));
    EXPECT_TRUE(r.transport->CapsFor(4, std::vector{0, 2}).multicast);
    EXPECT_TRUE(r.transport->CapsFor(4, std::vector{0, 2}).read_in_place);
    EXPECT_FALSE(r.transport->CapsFor(4, std::vector{0, 1}).multicast);
    EXPECT_LT(r.transport->caps().slot_memory, UINT64_MAX);
    EXPECT_TRUE(r.transport->caps().shared_slots);
    if (r.rank == 0) {
      const Status across = r.transport->OpenSend(Spec(0, {1, 2})).status();
      EXPECT_EQ(across.code(), Code::kInvalidArgument);
      EXPECT_NE(across.message().find("shm+ucx"), std::string::npos) << across.message();
    }
  });
}

// A rank that waits 300 ms for a slice of a part sleeps: it looks as often as its timeouts end, not
// all the time. The waits in between are as short as those of Progress.
TEST(CompositeTest, AWaitingRankSleepsAndEachPartWakesIt) {
  constexpr Time kWait = 300 * kMillisecond, kTimeout = 20 * kMillisecond;
  constexpr int kMostLooks = 500;
  for (const int peer : {1, 2}) {  // of the same host, of another host
    RunRanks(WorldKind::kCompositeThreads, 3, TestSeed(), [&](RankContext& r) {
      if (r.rank == peer) {
        auto ready = r.OpenRecv(Spec(0, {peer}));
        auto lane = r.OpenSend(Spec(peer, {0}));
        r.Await(ready.get());
        const Time start = SystemClock().Now();
        while (SystemClock().Now() - start < kWait) r.Progress();
        r.Signal(lane.get());
      } else if (r.rank == 0) {
        auto ready = r.OpenSend(Spec(0, {peer}));
        auto lane = r.OpenRecv(Spec(peer, {0}));
        r.Signal(ready.get());
        WakeupEvent* const event = r.transport->wakeup_event();
        int looks = 0;
        for (bool come = false; !come; ++looks) {
          const uint32_t token = event->Arm();
          r.Progress();
          come = r.CanPeek(lane.get());
          if (come) {
            event->Disarm();
          } else {
            event->Wait(token, kTimeout);
          }
        }
        EXPECT_LT(looks, kMostLooks);
        r.Release(lane.get());
      }
    });
  }
}

// Slices that a part still holds keep the call from ending, and their receivers are named.
TEST(CompositeTest, UnsentSlicesOfAPartCount) {
  constexpr uint32_t kBytes = 4 << 20;  // more than UCX buffers
  std::atomic<bool> looked = false;
  RunRanks(WorldKind::kCompositeThreads, 3, TestSeed(), [&looked](RankContext& r) {
    LaneSpec spec = Spec(0, {2});
    spec.slot_bytes = kBytes;
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      auto go = r.OpenSend(Spec(0, {1}));
      EXPECT_FALSE(r.transport->unsent());
      for (uint32_t i = 0; i < 2; ++i) {
        r.Acquire(lane.get());
        r.Publish(lane.get(), {.bytes = kBytes, .slice = i});
      }
      EXPECT_TRUE(r.transport->unsent());
      std::vector<int> ranks;
      r.transport->AppendUnsent(&ranks);
      EXPECT_EQ(ranks, std::vector{2});
      EXPECT_EQ(r.transport->counters().slices, 2u);
      EXPECT_EQ(r.transport->counters().payload_bytes, 2u * kBytes);
      r.Signal(go.get());  // over the other part
      EXPECT_EQ(r.transport->counters().slices, 3u);
      looked = true;
      r.WaitUntil([&] { return !r.transport->unsent(); });
    } else if (r.rank == 1) {
      auto go = r.OpenRecv(Spec(0, {1}));
      r.Await(go.get());
    } else {
      while (!looked) usleep(100);  // without Progress, in which UCX receives
      auto lane = r.OpenRecv(spec);
      for (int i = 0; i < 2; ++i) r.Await(lane.get());
    }
  });
}

TEST(CompositeTest, APartThatCannotShareAWaitIsRefused) {
  std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(2);
  PairTable table(2);
  table.Set(0, 1, 0);
  std::vector<CompositeTransport::Part> parts;
  parts.push_back({ends[0]->caps(), std::move(ends[0])});
  const auto made = CompositeTransport::Create(0, table, std::move(parts));
  EXPECT_EQ(made.status().code(), Code::kInternalError);
  EXPECT_NE(made.status().message().find("loopback"), std::string::npos);
}

// A rank without a part opens none of its lanes, and knows how the lanes of others are cut where it
// is a consumer.
TEST(CompositeTest, ARankMayLackAPart) {
  auto shm = ShmTransport::Create(0, 3);
  ASSERT_TRUE(shm.ok());
  const Caps caps = (*shm)->caps();
  PairTable table(3);
  table.Set(0, 1, 0);
  table.Set(0, 2, 1);
  table.Set(1, 2, 1);
  std::vector<CompositeTransport::Part> parts;
  parts.push_back({caps, nullptr});
  parts.push_back({{.name = "other"}, *std::move(shm)});
  auto made = CompositeTransport::Create(2, table, std::move(parts));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_STREQ((*made)->caps().name, "shm+other");
  EXPECT_EQ((*made)->caps().slot_memory, caps.slot_memory) << "as on the other ranks";
  EXPECT_EQ((*made)->Split(0, std::vector{1, 2}), (Sets{{1}, {2}}));
  EXPECT_EQ((*made)->OpenRecv(Spec(0, {1})).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace inccl::test
