// SPDX-License-Identifier: Apache-2.0
#include "slot_writes.h"

#include <gtest/gtest.h>

namespace inccl {
namespace {

constexpr uint64_t kMedium = 1 << 20;

// Calls that take so long each way; how many of them went past the caches.
int Calls(SlotWrites* writes, uint64_t bytes, int calls, Time through, Time past) {
  int count = 0;
  for (int i = 0; i < calls; ++i) {
    const bool chosen = writes->Choose(bytes);
    count += chosen ? 1 : 0;
    writes->Learn(bytes, chosen, chosen ? past : through);
  }
  return count;
}

TEST(SlotWritesTest, SmallAndLargeCallsNeedNoLearning) {
  SlotWrites writes;
  EXPECT_EQ(Calls(&writes, SlotWrites::kLeast - 1, 100, 9, 1), 0);
  EXPECT_EQ(Calls(&writes, SlotWrites::kMost, 100, 1, 9), 100);
  EXPECT_EQ(Calls(&writes, UINT64_MAX, 100, 1, 9), 100);
}

TEST(SlotWritesTest, TakesTheFasterWayAndProbesTheOther) {
  for (const uint64_t bytes : {SlotWrites::kLeast, kMedium, SlotWrites::kMost - 1}) {
    SlotWrites near, far;
    const int calls = 10 * static_cast<int>(SlotWrites::kProbe) + 1;
    EXPECT_EQ(Calls(&near, bytes, calls, 100, 200), 2 + 10);
    EXPECT_EQ(Calls(&far, bytes, calls, 500, 100), calls - 2 - 10);
  }
}

TEST(SlotWritesTest, NoticesAChange) {
  SlotWrites writes;
  Calls(&writes, kMedium, 100, 100, 200);
  EXPECT_GT(Calls(&writes, kMedium, 200, 1000, 200), 150);
  EXPECT_LT(Calls(&writes, kMedium, 200, 100, 200), 50);
}

TEST(SlotWritesTest, OneSlowCallIsForgiven) {
  SlotWrites writes;
  Calls(&writes, kMedium, 10, 100, 180);
  const bool chosen = writes.Choose(kMedium);
  EXPECT_FALSE(chosen);
  writes.Learn(kMedium, chosen, 300);  // the estimate: 150
  EXPECT_EQ(Calls(&writes, kMedium, 10, 100, 180), 0);
}

TEST(SlotWritesTest, SizesLearnByThemselves) {
  SlotWrites writes;
  Calls(&writes, kMedium, 50, 500, 100);
  EXPECT_TRUE(writes.Choose(kMedium));
  EXPECT_FALSE(writes.Choose(kMedium / 2)) << "the first of its size";
}

}  // namespace
}  // namespace inccl
