// SPDX-License-Identifier: Apache-2.0
//
// The streaming limit: what it reads and writes for each collective, and that it does.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "perf/support/streaming.h"

namespace inccl::perf {
namespace {

TEST(BenchStreaming, EveryRankReadsItsInputAndWritesItsResult) {
  constexpr int kRanks = 4, kRoot = 2;
  constexpr uint64_t kBytes = 4096, kPart = kBytes / kRanks;
  struct Case {
    Operation operation;
    Streams root, other;
  };
  const Case cases[] = {
      {Operation::kAllReduce, {kBytes, kBytes}, {kBytes, kBytes}},
      {Operation::kReduceScatter, {kBytes, kPart}, {kBytes, kPart}},
      {Operation::kAllGather, {kPart, kBytes}, {kPart, kBytes}},
      {Operation::kAllToAll, {kBytes, kBytes}, {kBytes, kBytes}},
      {Operation::kSendRecv, {kBytes, kBytes}, {kBytes, kBytes}},
      {Operation::kBroadcast, {kBytes, kBytes}, {0, kBytes}},
      {Operation::kReduce, {kBytes, kBytes}, {kBytes, 0}},
      {Operation::kGather, {kPart, kBytes}, {kPart, 0}},
      {Operation::kScatter, {kBytes, kPart}, {0, kPart}},
  };
  for (const Case& c : cases) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Layout layout = LayoutOf(c.operation, kBytes, DataType::kFloat32, kRanks, rank);
      const Streams found = StreamsOf(c.operation, layout, DataType::kFloat32, rank, kRoot);
      const Streams& expected = rank == kRoot ? c.root : c.other;
      EXPECT_EQ(found.read, expected.read) << Name(c.operation) << " rank " << rank;
      EXPECT_EQ(found.write, expected.write) << Name(c.operation) << " rank " << rank;
    }
  }
}

std::vector<std::byte> Counted(size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + 3);
  return values;
}

TEST(BenchStreaming, CopiesRepeatsAndFillsWithinItsBounds) {
  constexpr std::byte kBefore{0xEE};
  for (const size_t read : {0, 1, 255, 256, 257, 1000}) {
    for (const size_t write : {0, 1, 256, 999, 1000, 1001, 3500}) {
      const std::vector<std::byte> from = Counted(read);
      std::vector<std::byte> to(write + 8, kBefore);
      StreamOnce(from, std::span(to).first(write));
      for (size_t i = 0; i < write; ++i) {
        const std::byte expected = read > 0 ? from[i % read] : std::byte{1};
        ASSERT_EQ(to[i], expected) << read << " bytes to " << write << " at " << i;
      }
      EXPECT_TRUE(std::all_of(to.begin() + static_cast<ptrdiff_t>(write), to.end(),
                              [](std::byte b) { return b == kBefore; }));
    }
  }
}

TEST(BenchStreaming, SpanIsFromTheFirstStartToTheLastEnd) {
  const std::vector<Interval> intervals = {{10, 20}, {12, 40}, {8, 9}};
  EXPECT_EQ(SpanOf(intervals), 32);
  EXPECT_EQ(SpanOf({}), 0);
  const double before = SharedMicroseconds();
  EXPECT_GE(SharedMicroseconds(), before);
}

}  // namespace
}  // namespace inccl::perf
