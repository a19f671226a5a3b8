// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of perf/call_overhead.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "perf/overhead/measure.h"
#include "perf/overhead/memory.h"

namespace inccl::perf {
namespace {

TEST(BenchOverhead, TakesTheProportionalSizeAndNoOtherLine) {
  const std::string text =
      "5581-7ffd ---p 00000000 00:00 0    [rollup]\n"
      "Rss:                1636 kB\nPss:                 318 kB\nPss_Dirty:           104 kB\n"
      "SwapPss:               0 kB\n";
  const Result<uint64_t> bytes = ParseProportionalSize(text);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(*bytes, 318u * 1024);
}

TEST(BenchOverhead, RefusesATextWithoutIt) {
  for (const char* text : {"", "Rss: 1 kB\n", "\nPss:", "\nPss:   \n", "\nPss: x kB\n",
                           "\nPss: 12 MB\n", "\nSwapPss: 1 kB\n"}) {
    EXPECT_FALSE(ParseProportionalSize(text).ok()) << text;
  }
}

TEST(BenchOverhead, SeesMemoryThatIsTouched) {
  const Result<uint64_t> before = ProportionalSize();
  ASSERT_TRUE(before.ok()) << before.status().message();
  const std::vector<char> memory(32u << 20, 1);
  const Result<uint64_t> after = ProportionalSize();
  ASSERT_TRUE(after.ok());
  // Of pages that other processes have, too, the share changes as these come and go.
  EXPECT_GE(*after, *before + (16u << 20));
  EXPECT_LE(*after, *before + (48u << 20));
}

Overhead RunAt(double base) {
  Overhead o;
  o.init_us = base;
  o.created_bytes = static_cast<uint64_t>(base) + 1;
  o.created_most = static_cast<uint64_t>(base) + 2;
  o.used_bytes = static_cast<uint64_t>(base) + 3;
  o.used_most = static_cast<uint64_t>(base) + 4;
  o.first = {{"allreduce", 4096, base + 5, base + 6}, {"allreduce", 1 << 20, base + 7, base + 8}};
  o.empty = {{"allreduce", base + 9}};
  return o;
}

TEST(BenchOverhead, MediansNumberByNumber) {
  std::vector<Overhead> runs = {RunAt(300), RunAt(100), RunAt(200)};
  runs[0].first[1].second_us = 1;  // 1, 108, 208: not the number of the run in the middle
  const Overhead median = MedianOf(runs);
  EXPECT_EQ(median.init_us, 200);
  EXPECT_EQ(median.created_bytes, 201u);
  EXPECT_EQ(median.created_most, 202u);
  EXPECT_EQ(median.used_bytes, 203u);
  EXPECT_EQ(median.used_most, 204u);
  ASSERT_EQ(median.first.size(), 2u);
  EXPECT_EQ(median.first[0].bytes, 4096u);
  EXPECT_EQ(median.first[0].first_us, 205);
  EXPECT_EQ(median.first[0].second_us, 206);
  EXPECT_EQ(median.first[1].first_us, 207);
  EXPECT_EQ(median.first[1].second_us, 108);
  ASSERT_EQ(median.empty.size(), 1u);
  EXPECT_EQ(median.empty[0].name, "allreduce");
  EXPECT_EQ(median.empty[0].nanoseconds, 209);
}

}  // namespace
}  // namespace inccl::perf
