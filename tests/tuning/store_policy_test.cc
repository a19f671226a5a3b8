// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tuning/segmentation.h"

namespace inccl {
namespace {

constexpr uint64_t kMedium = 1 << 20;

// Calls that take so long each way; how many of them went non_temporal the caches.
int Calls(StorePolicy* writes, uint64_t bytes, int calls, Time through, Time non_temporal) {
  int count = 0;
  for (int i = 0; i < calls; ++i) {
    const StorePolicy::Choice way = writes->Choose(bytes, false);
    EXPECT_FALSE(way.until_read);
    count += way.non_temporal ? 1 : 0;
    writes->Learn(bytes, false, way, way.non_temporal ? non_temporal : through);
  }
  return count;
}

TEST(StorePolicyTest, SmallAndLargeCallsNeedNoLearning) {
  StorePolicy writes;
  EXPECT_EQ(Calls(&writes, StorePolicy::kLeast - 1, 100, 9, 1), 0);
  EXPECT_EQ(Calls(&writes, StorePolicy::kMost, 100, 1, 9), 100);
  EXPECT_EQ(Calls(&writes, UINT64_MAX, 100, 1, 9), 100);
}

TEST(StorePolicyTest, TakesTheFasterWayAndProbesTheOther) {
  for (const uint64_t bytes : {StorePolicy::kLeast, kMedium, StorePolicy::kMost - 1}) {
    StorePolicy near, far;
    const int calls = 10 * static_cast<int>(StorePolicy::kProbe) + 1;
    EXPECT_EQ(Calls(&near, bytes, calls, 100, 140), 4 + 10);
    EXPECT_EQ(Calls(&far, bytes, calls, 140, 100), calls - 4 - 10);
  }
}

// A call that takes the other way costs most where that is much slower.
TEST(StorePolicyTest, ProbesRarelyWhatIsMuchSlower) {
  StorePolicy near, far;
  constexpr int kFar = static_cast<int>(StorePolicy::kFarProbe);
  constexpr int kSoon = kFar / static_cast<int>(StorePolicy::kProbe) - 1;
  EXPECT_EQ(Calls(&near, kMedium, 3 * kFar + 1, 100, 200), 4 + kSoon + 3);
  EXPECT_EQ(Calls(&far, kMedium, 3 * kFar + 1, 500, 100), 3 * kFar + 1 - 4 - kSoon - 3);
}

TEST(StorePolicyTest, NoticesAChange) {
  constexpr int kFar = static_cast<int>(StorePolicy::kFarProbe);
  for (const int before : {100, 3 * kFar}) {
    StorePolicy writes;
    Calls(&writes, kMedium, before, 100, 200);
    EXPECT_GT(Calls(&writes, kMedium, 200, 1000, 200), 150);
    EXPECT_LT(Calls(&writes, kMedium, 2 * kFar, 100, 200), kFar + 50);
    EXPECT_EQ(Calls(&writes, kMedium, kFar, 100, 200), 1);
  }
}

TEST(StorePolicyTest, OneSlowCallIsForgiven) {
  StorePolicy writes;
  Calls(&writes, kMedium, 10, 100, 180);
  const StorePolicy::Choice way = writes.Choose(kMedium, false);
  EXPECT_FALSE(way.non_temporal);
  writes.Learn(kMedium, false, way, 100000);
  EXPECT_EQ(Calls(&writes, kMedium, 10, 100, 180), 0);
}

// The first calls are the first to touch slots, whose pages they wait for.
TEST(StorePolicyTest, ColdCallsTeachNothing) {
  StorePolicy writes;
  for (uint32_t i = 0; i < StorePolicy::kCold; ++i) {
    const StorePolicy::Choice way = writes.Choose(kMedium, false);
    writes.Learn(kMedium, false, way, way.non_temporal ? 1 : 1000);
  }
  EXPECT_EQ(Calls(&writes, kMedium, 20, 100, 200), 2);
  EXPECT_FALSE(writes.NonTemporal(kMedium));
}

TEST(StorePolicyTest, WhatIsUnknownTakesNonTemporalStoresIfItIsLarge) {
  StorePolicy writes;
  EXPECT_FALSE(writes.NonTemporal(StorePolicy::kLarge - 1));
  EXPECT_TRUE(writes.NonTemporal(StorePolicy::kLarge));
  Calls(&writes, StorePolicy::kLarge, 20, 100, 200);
  EXPECT_FALSE(writes.NonTemporal(StorePolicy::kLarge));
}

TEST(StorePolicyTest, SizesLearnByThemselves) {
  StorePolicy writes;
  Calls(&writes, kMedium, 50, 500, 100);
  EXPECT_TRUE(writes.Choose(kMedium, false).non_temporal);
  EXPECT_FALSE(writes.Choose(kMedium / 2, false).non_temporal) << "the first of its size";
}

// A root that only writes is done as soon as the slots have it all: only calls that last until all
// have read tell which way is faster.
TEST(StorePolicyTest, WhoOnlyWritesLearnsFromCallsThatAwaitTheReaders) {
  StorePolicy writes;
  int awaited = 0, non_temporal = 0;
  constexpr int kCalls = 10 * static_cast<int>(StorePolicy::kProbe);
  for (int i = 0; i < kCalls; ++i) {
    const StorePolicy::Choice way = writes.Choose(kMedium, true);
    awaited += way.until_read ? 1 : 0;
    non_temporal += way.non_temporal ? 1 : 0;
    const Time slots_filled = way.non_temporal ? 50 : 20, all_read = way.non_temporal ? 100 : 500;
    writes.Learn(kMedium, true, way, way.until_read ? all_read : slots_filled);
  }
  constexpr int kProbes = static_cast<int>(StorePolicy::kFarProbe / StorePolicy::kProbe);
  EXPECT_EQ(non_temporal, kCalls - 4 - kProbes)
      << "the other way four times at first, then once in kProbe calls, up to kFarProbe";
  EXPECT_EQ(awaited, 8 + kProbes + 10);
  EXPECT_FALSE(writes.Choose(StorePolicy::kLarge, true).until_read);
  EXPECT_TRUE(writes.Choose(StorePolicy::kLarge, true).non_temporal);
  EXPECT_FALSE(writes.Choose(StorePolicy::kLeast - 1, true).until_read);
}

}  // namespace
}  // namespace inccl
