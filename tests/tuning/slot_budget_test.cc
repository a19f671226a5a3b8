// SPDX-License-Identifier: Apache-2.0
//
// The slots of an algorithm are at least those of the lanes in its schedules, and not many more;
// choices and slices respect the budget.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/schedule.h"
#include "transport/mapped/mapped_transport.h"
#include "tuning/segmentation.h"
#include "tuning/tuner.h"

namespace inccl {
namespace {

constexpr uint32_t kSlice = 128 * 1024;
constexpr uint64_t kMiB = 1 << 20;

// The lanes' slots of the rank with the most.
uint64_t Counted(Collective collective, Algorithm algorithm, const HostMap& hosts, int channels,
                 bool shared) {
  uint64_t most = 0;
  for (int rank = 0; rank < hosts.nranks(); ++rank) {
    const Result<Schedule> schedule = MakeSchedule({{.collective = collective,
                                                     .nranks = hosts.nranks(),
                                                     .rank = rank,
                                                     .root = hosts.nranks() / 2},
                                                    algorithm,
                                                    channels,
                                                    0,
                                                    false,
                                                    0,
                                                    &hosts});
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    uint64_t lanes = 0;
    for (const ScheduleLane& lane : schedule->lanes) {
      const bool produces = lane.producer == rank;
      if (shared) {
        lanes += produces ? 1 : 0;
      } else {
        lanes += produces ? lane.consumers.size() : 1;
      }
    }
    const SlotOptions slots = SlotsFor(kSlice);
    most = std::max(most, lanes * mapped::SlotsBytes(slots.data_bytes + 64, slots.data_depth));
  }
  return most;
}

std::vector<HostMap> Worlds() {
  std::vector<HostMap> worlds;
  for (const int n : {2, 3, 4, 7, 16, 33, 100}) worlds.push_back(HostMap::OneHost(n));
  for (const std::string hosts :
       {"aabb", "abbbbbbb", "aaabbbccc", "abcabcabca", "abcdefgh", "aaaaaaaaaaaabbbcdddddddd"}) {
    worlds.emplace_back(std::vector<uint64_t>(hosts.begin(), hosts.end()));
  }
  return worlds;
}

TEST(SlotBudgetTest, BoundsTheLanesOfEverySchedule) {
  for (const HostMap& hosts : Worlds()) {
    for (int c = 0; c < kCollectiveKinds; ++c) {
      for (int a = 0; a < kAlgorithms; ++a) {
        const auto collective = static_cast<Collective>(c);
        const auto algorithm = static_cast<Algorithm>(a);
        if (!HasSchedule(collective, algorithm, hosts.nranks(), &hosts)) continue;
        for (const bool shared : {false, true}) {
          if (shared && hosts.hosts() > 1) continue;
          const uint64_t counted = Counted(collective, algorithm, hosts, 2, shared);
          const uint64_t said = SlotBytes(collective, algorithm, hosts.nranks(), &hosts,
                                          {.channels = 2, .shared_slots = shared}, kSlice);
          const std::string what = fmt::format("{} {} on {} ranks of {} hosts", Name(collective),
                                               Name(algorithm), hosts.nranks(), hosts.hosts());
          EXPECT_GE(said, counted) << what;
          EXPECT_LE(said, 6 * counted + 16 * kMiB) << what;
        }
      }
    }
  }
}

uint32_t SliceOf(Collective collective, Algorithm algorithm, int nranks, uint64_t bytes,
                 bool shared) {
  return SliceBytesFor(collective, algorithm, nranks, nullptr,
                       {.bytes = bytes, .shared_slots = shared});
}

TEST(SlotBudgetTest, SlicesShrinkUntilTheSlotsFit) {
  constexpr auto kSum = Collective::kAllReduce;
  EXPECT_EQ(SliceOf(kSum, Algorithm::kTwoShot, 64, 64 * kMiB, true), 128u << 10);
  EXPECT_EQ(SliceOf(kSum, Algorithm::kTwoShot, 128, 64 * kMiB, true), 64u << 10);
  EXPECT_EQ(SliceOf(kSum, Algorithm::kTwoShot, 64, 64 * kMiB, false), 32u << 10);
  EXPECT_EQ(SliceOf(kSum, Algorithm::kTwoShot, 256, 64 * kMiB, false), 0u);
  for (const int nranks : {2, 64, 4096}) {
    EXPECT_EQ(SliceOf(kSum, Algorithm::kTree, nranks, 64 * kMiB, false), 128u << 10);
    EXPECT_EQ(SliceOf(kSum, Algorithm::kRing, nranks, 64 * kMiB, false), 128u << 10);
  }
  // Collectives with one algorithm take smaller slices.
  EXPECT_EQ(SliceOf(Collective::kAllToAll, Algorithm::kTwoShot, 256, 64 * kMiB, false), 16u << 10);
  EXPECT_EQ(SliceOf(Collective::kAllToAll, Algorithm::kTwoShot, 1024, 64 * kMiB, false), 4u << 10);
  EXPECT_EQ(SliceOf(Collective::kGather, Algorithm::kTwoShot, 4096, 64 * kMiB, false), 2u << 10);
}

TEST(SlotBudgetTest, SlotsOfLongLinksHoldWhatTheLinksDo) {
  const HostMap hosts(std::vector<uint64_t>{1, 2});
  const auto slots = [&](uint64_t under_way, uint64_t budget) {
    return SlotsOf(Collective::kAllReduce, Algorithm::kTwoShot, 2, &hosts,
                   {.bytes = budget, .under_way = under_way}, kSlice);
  };
  constexpr uint64_t kLink = 2'500'000;  // 1 Gbit/s, 20 ms
  const SlotOptions near = slots(0, 64 * kMiB), far = slots(kLink, 64 * kMiB);
  EXPECT_EQ(near.network_data_depth, near.data_depth);
  EXPECT_EQ(near.network_side_depth, near.side_depth);
  EXPECT_EQ(near.side_windows, kSideWindows);
  // In slices that fill a quarter of a slot.
  EXPECT_GE(uint64_t{far.network_data_depth} * kSlice / 4, kLink * 3 / 2);
  EXPECT_LE(uint64_t{far.network_data_depth} * kSlice / 4, kLink * 3 / 2 + kSlice);
  EXPECT_GE(far.side_windows * (kWindow / 4), kLink * 3 / 2);
  EXPECT_EQ(far.side_windows, far.network_side_depth);
  EXPECT_EQ(far.data_depth, near.data_depth);
  // Memory comes first: both ends of two lanes.
  for (const uint64_t under_way : {kLink, 100 * kLink, uint64_t{1} << 62}) {
    for (const uint64_t budget : {4 * kMiB, 64 * kMiB}) {
      const SlotOptions limited = slots(under_way, budget);
      EXPECT_GE(limited.network_data_depth, limited.data_depth);
      EXPECT_LE(limited.network_data_depth * 4 * mapped::SlotsBytes(kSlice + 64, 1), budget);
      EXPECT_LE(limited.side_windows, 64);
    }
  }
}

TEST(SlotBudgetTest, TheRanksOfAHostShareItsLink) {
  TunerTable table;
  table.SetLink(1000, 20'000);
  const HostMap one_each(std::vector<uint64_t>{1, 2}),
      four_and_two(std::vector<uint64_t>{1, 1, 1, 1, 2, 2});
  EXPECT_EQ(UnderWay(table.costs(), &one_each), BytesUnderWay(table.costs()));
  EXPECT_EQ(UnderWay(table.costs(), &four_and_two), BytesUnderWay(table.costs()) / 2);
  const HostMap one_host = HostMap::OneHost(4);
  EXPECT_EQ(UnderWay(table.costs(), &one_host), 0u);
  EXPECT_EQ(UnderWay(table.costs(), nullptr), 0u);
  EXPECT_EQ(UnderWay({}, &one_each), 0u) << "the links of one site are short";
}

TEST(SlotBudgetTest, StepsTakeMoreSlicesWhereAllLanesHaveTheSlots) {
  const HostMap one_each(std::vector<uint64_t>{1, 2, 3}), two_each(std::vector<uint64_t>{1, 1, 2});
  const SlotOptions slots = SlotsFor(kSlice, 2'500'000);
  EXPECT_EQ(LongLinksFor(slots, &one_each, 0).slices_per_step, kSlicesPerStep);
  EXPECT_FALSE(LongLinksFor(slots, &one_each, 0).full_slices);
  const LongLinks links = LongLinksFor(slots, &one_each, 2'500'000);
  EXPECT_TRUE(links.full_slices);
  EXPECT_GT(links.slices_per_step, kSlicesPerStep);
  EXPECT_LE(links.slices_per_step, slots.network_data_depth);
  EXPECT_EQ(LongLinksFor(slots, &two_each, 2'500'000).slices_per_step, kSlicesPerStep)
      << "lanes inside the host have few slots";
}

// Slots that take all of the budget fit; one byte less is too little.
TEST(SlotBudgetTest, TheBudgetMayBeUsedUp) {
  for (const bool shared : {false, true}) {
    const uint64_t bytes = SlotBytes(Collective::kAllReduce, Algorithm::kTwoShot, 64, nullptr,
                                     {.shared_slots = shared}, 64 << 10);
    const auto slice = [&](uint64_t budget) {
      return SliceOf(Collective::kAllReduce, Algorithm::kTwoShot, 64, budget, shared);
    };
    EXPECT_EQ(slice(bytes), 64u << 10);
    EXPECT_EQ(slice(bytes - 1), 32u << 10);
  }
}

TunerCall CallOf(int nranks, uint64_t bytes) {
  return {{.collective = Collective::kAllReduce, .nranks = nranks, .count = bytes / 4},
          false,
          false,
          {},
          false,
          nullptr,
          {.bytes = 64 * kMiB}};
}

TEST(SlotBudgetTest, ManyRanksTakeAlgorithmsWithFewPeers) {
  for (const int nranks : {2, 64, 200}) {
    EXPECT_EQ(Choose(CallOf(nranks, 64 * kMiB), {})->algorithm, Algorithm::kTwoShot) << nranks;
  }
  for (const int nranks : {256, 1024, 4096}) {
    EXPECT_EQ(Choose(CallOf(nranks, 64 * kMiB), {})->algorithm, Algorithm::kRing) << nranks;
    EXPECT_EQ(Choose(CallOf(nranks, 1024), {})->algorithm, Algorithm::kRecursiveDoubling) << nranks;
  }
}

TEST(SlotBudgetTest, AnAlgorithmThatDoesNotFitIsAnErrorWithNeedLimitAndVariable) {
  const Result<AlgorithmFilter> direct = AlgorithmFilter::Parse("direct_two_shot");
  ASSERT_TRUE(direct.ok());
  const Result<Choice> choice = Choose(CallOf(256, 64 * kMiB), *direct);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), Code::kInvalidArgument);
  // 4 * 255 lane ends with 4 slots of 16 KiB and a header, in whole pages.
  EXPECT_EQ(choice.status().message(),
            "allreduce: the slots of direct_two_shot on 256 ranks take 83558400 bytes per rank, "
            "more than INCCL_SLOT_BYTES_MAX=67108864; raise it, or admit an algorithm with fewer "
            "peers (INCCL_ALGO, config->algorithm)");
}

}  // namespace
}  // namespace inccl
