// SPDX-License-Identifier: Apache-2.0
//
// Settings that need more slots than a rank's shared memory holds are refused when a communicator
// is created, and no others are.
#include "init/slot_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "communicator/collective_runner.h"
#include "compress/codecs.h"
#include "compress/identity_codec.h"
#include "init/join.h"
#include "init/options.h"
#include "transport/loopback/loopback.h"
#include "transport/mapped/mapped_transport.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

CommOptions Options(int channels, uint32_t slice_bytes) {
  CommOptions options;
  options.channels = channels;
  options.slice_bytes = slice_bytes;
  options.slot_bytes_max = UINT64_MAX;
  options.default_codec = *MakeCodec("hbi:bits=6");
  return options;
}

// Opens the lanes of every call of a rank, as a communicator does.
uint64_t MeasuredMemory(const CommOptions& options, const HostMap& hosts, int rank) {
  const int nranks = hosts.nranks();
  const std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(nranks);
  Transport* const end = ends[static_cast<size_t>(rank)].get();
  LaneTable lanes(end);
  Plans plans({.slots = {.slice_bytes = options.slice_bytes, .channels = options.channels},
               .hosts = &hosts,
               .filtered = true},
              &options, &lanes);
  const uint64_t before = end->memory_bytes();
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (uint64_t count = 64; count <= 1u << 28; count *= 4) {
      for (const auto& codec : {IdentityCodec(), options.default_codec}) {
        Call call;
        call.collective = static_cast<Collective>(c);
        call.nranks = nranks;
        call.rank = rank;
        call.count = count;
        const bool compressed = codec != IdentityCodec();
        if (compressed && (!codec->Supports(call.collective, call.type, call.op, nranks).ok() ||
                           count * 4 < codec->min_bytes())) {
          continue;
        }
        call.codec = compressed ? codec : nullptr;
        for (call.root = 0; call.root < (HasRoot(call.collective) ? nranks : 1); ++call.root) {
          const Result<Plan*> plan = plans.For(call, false);
          EXPECT_TRUE(plan.ok()) << plan.status().message();
          if (!plan.ok()) return 0;
          const Status bound = plans.Bind(call, *plan);
          EXPECT_TRUE(bound.ok()) << bound.message();
        }
      }
    }
  }
  const SlotOptions slots = SlotsFor(options.slice_bytes);
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    LaneSpec spec;
    spec.lane_class = LaneClass::kSendRecv;
    spec.producer = rank;
    spec.consumers = {peer};
    spec.slot_bytes = slots.data_bytes;
    spec.depth = slots.data_depth;
    EXPECT_TRUE(lanes.Send(spec).ok());
  }
  return end->memory_bytes() - before;
}

class SlotMemoryTest : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(SlotMemoryTest, IsWhatLanesTake) {
  const auto [nranks, channels] = GetParam();
  const CommOptions options = Options(channels, 64 * 1024);
  const HostMap hosts = HostMap::OneHost(nranks);
  const Result<uint64_t> said = SlotMemory(options, hosts, /*shared_slots=*/true);
  ASSERT_TRUE(said.ok()) << said.status().message();
  const uint64_t measured = MeasuredMemory(options, hosts, 0);
  EXPECT_LE(*said, measured);
  EXPECT_LE(measured, *said + (uint64_t{1} << 20)) << "more than credits and the directory";
}
INSTANTIATE_TEST_SUITE_P(Worlds, SlotMemoryTest,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 2), std::pair(8, 1),
                                           std::pair(20, 2)));

HostMap Hosts(const std::vector<uint64_t>& identities) { return HostMap(identities); }

// On several hosts ranks differ; the one that takes the most counts.
TEST(SlotMemoryOnHostsTest, IsWhatTheLanesOfTheRankWithTheMostTake) {
  const CommOptions options = Options(1, 64 * 1024);
  for (const HostMap& hosts : {Hosts({1, 1, 1, 1, 2, 2, 2, 2}), Hosts({1, 2, 2, 2, 2, 3}),
                               Hosts({1, 2, 1, 2, 1, 2, 1}), Hosts({1, 2, 3, 4})}) {
    const Result<uint64_t> said = SlotMemory(options, hosts, /*shared_slots=*/true);
    ASSERT_TRUE(said.ok()) << said.status().message();
    uint64_t measured = 0;
    for (int rank = 0; rank < hosts.nranks(); ++rank) {
      measured = std::max(measured, MeasuredMemory(options, hosts, rank));
    }
    EXPECT_LE(*said, measured);
    EXPECT_LE(measured, *said + (uint64_t{1} << 20)) << "more than credits and the directory";
  }
}

// CheckSlotMemory looks at no schedule where 8 lanes per rank and channel fit.
TEST(SlotMemoryOnHostsTest, NoRankHasMoreLanesThanTheQuickCheckAssumes) {
  const CommOptions options = Options(1, 64 * 1024);
  const SlotOptions slots = SlotsFor(options.slice_bytes);
  for (const int n : {3, 5, 16, 40}) {
    for (const uint64_t hosts : {2, 3, 7}) {
      std::vector<uint64_t> equal, unequal;
      for (uint64_t rank = 0; rank < static_cast<uint64_t>(n); ++rank) {
        equal.push_back(rank % hosts);
        unequal.push_back(rank < hosts ? rank : 0);
      }
      for (const HostMap& map : {Hosts(equal), Hosts(unequal)}) {
        for (const bool shared : {false, true}) {
          const Result<uint64_t> said = SlotMemory(options, map, shared);
          ASSERT_TRUE(said.ok()) << said.status().message();
          EXPECT_LE(*said, 8 * static_cast<uint64_t>(n) *
                               mapped::LaneBytes(slots.data_bytes, slots.data_depth))
              << n << " ranks, " << map.hosts() << " hosts, largest " << map.LargestHost();
        }
      }
    }
  }
}

// With thousands of lanes their headers, in pages of their own, are more than the margin.
TEST(CheckSlotMemoryTest, HeadersCount) {
  const CommOptions options = Options(32, 4096);
  const HostMap hosts = HostMap::OneHost(48);
  const uint64_t measured = MeasuredMemory(options, hosts, 0);
  Caps caps;
  caps.shared_slots = true;
  caps.name = "test";
  caps.slot_memory = measured - 1;
  EXPECT_FALSE(CheckSlotMemory(options, hosts, caps).ok()) << measured;
  caps.slot_memory = measured + (uint64_t{8} << 20);
  EXPECT_TRUE(CheckSlotMemory(options, hosts, caps).ok()) << measured;
}

TEST(CheckSlotMemoryTest, RefusalsNameTheSettings) {
  InitOptions options;
  options.comm = Options(32, 4 << 20);
  options.slice_bytes_given = true;
  const auto made = MakeThreads(3, options);
  ASSERT_FALSE(made.ok()) << "the first large call would find no room for its slots";
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  for (const char* part : {"INCCL_SLICE_BYTES=4194304", "INCCL_CHANNELS=32", "with 3 ranks"}) {
    EXPECT_NE(made.status().message().find(part), std::string::npos) << made.status().message();
  }
}

TEST(CheckSlotMemoryTest, WhatFitsIsTaken) {
  Caps caps;
  caps.shared_slots = true;
  caps.name = "test";
  caps.slot_memory = uint64_t{1} << 30;
  EXPECT_TRUE(CheckSlotMemory(Options(1, 128 * 1024), HostMap::OneHost(64), caps).ok());
  EXPECT_TRUE(CheckSlotMemory(Options(1, 512 * 1024), HostMap::OneHost(64), caps).ok())
      << "slices of devices";
  EXPECT_TRUE(CheckSlotMemory(Options(8, 128 * 1024), HostMap::OneHost(16), caps).ok());
  EXPECT_TRUE(CheckSlotMemory(Options(32, 4 << 20), HostMap::OneHost(1), caps).ok())
      << "a rank alone has no slots";
  EXPECT_FALSE(CheckSlotMemory(Options(1, 4 << 20), HostMap::OneHost(64), caps).ok());
  EXPECT_FALSE(CheckSlotMemory(Options(32, 128 * 1024), HostMap::OneHost(64), caps).ok());
  CommOptions ring = Options(16, 4 << 20);
  ring.algorithms = *AlgorithmFilter::Parse("ring");
  caps.slot_memory = uint64_t{3} << 30;
  EXPECT_FALSE(CheckSlotMemory(Options(16, 4 << 20), HostMap::OneHost(16), caps).ok());
  EXPECT_TRUE(CheckSlotMemory(ring, HostMap::OneHost(4), caps).ok()) << "a ring has few lanes";
  caps.slot_memory = UINT64_MAX;
  EXPECT_TRUE(CheckSlotMemory(Options(32, 4 << 20), HostMap::OneHost(64), caps).ok());
}

}  // namespace
}  // namespace inccl
