// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "perf/support/layout.h"

namespace inccl::perf {
namespace {

TEST(BenchLayout, SizesWithSuffixes) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {{"0", 0},
               {"64", 64},
               {"4K", 4096},
               {"4k", 4096},
               {"64M", 64u << 20},
               {"1.5M", 3u << 19},
               {"2G", uint64_t{2} << 30},
               {"16KB", 16384},
               {"16KiB", 16384},
               {"7B", 7},
               {"0.5k", 512}};
  for (const auto& c : cases) {
    Result<uint64_t> size = ParseSize(c.text);
    ASSERT_TRUE(size.ok()) << c.text << ": " << size.status().message();
    EXPECT_EQ(*size, c.bytes) << c.text;
  }
}

TEST(BenchLayout, WhatIsNoSizeIsNamed) {
  for (const char* text : {"", "K", "-1", "4X", "4KK", "4 K", "nan", "inf", "1e3", "0x10",
                           "9999999G", "4Kib", "12z"}) {
    Result<uint64_t> size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), Code::kInvalidArgument);
    EXPECT_NE(size.status().message().find(fmt::format("'{}'", text)), std::string::npos);
  }
}

TEST(BenchLayout, SweepByFactorAndByStep) {
  EXPECT_EQ(*Sweep(4096, 65536, 1 << 20, 4), (std::vector<uint64_t>{4096, 16384, 65536}));
  EXPECT_EQ(*Sweep(4096, 65535, 1 << 20, 4), (std::vector<uint64_t>{4096, 16384}));
  EXPECT_EQ(*Sweep(10, 35, 10, 1), (std::vector<uint64_t>{10, 20, 30}));
  EXPECT_EQ(*Sweep(8, 8, 0, 1), (std::vector<uint64_t>{8}));
  EXPECT_EQ(*Sweep(0, 8, 4, 1), (std::vector<uint64_t>{0, 4, 8}));
  // No overflow at the end of the range.
  const uint64_t top = ~uint64_t{0};
  EXPECT_EQ(*Sweep(top - 1, top, 3, 1), (std::vector<uint64_t>{top - 1}));
  EXPECT_EQ(*Sweep(top / 2, top, 1, 3), (std::vector<uint64_t>{top / 2}));
}

TEST(BenchLayout, SweepsThatDoNotEndAreErrors) {
  EXPECT_EQ(Sweep(2, 1, 1, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Sweep(0, 8, 0, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Sweep(0, 8, 1, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Sweep(0, uint64_t{1} << 40, 1, 1).status().code(), Code::kInvalidArgument);
}

TEST(BenchLayout, CountsAndBuffers) {
  const Layout all = LayoutOf(Operation::kAllReduce, 1000, DataType::kFloat64, 4, 2);
  EXPECT_EQ(all.count, 125u);
  EXPECT_EQ(all.send, 125u);
  EXPECT_EQ(all.recv, 125u);
  EXPECT_EQ(all.bytes, 1000u);
  EXPECT_EQ(all.in_place, 125u);
  EXPECT_EQ(all.in_place_recv, 0u);

  // 1000 B of fp32 for 4 ranks: 62 elements each, rounded down to 16 bytes: 60.
  const Layout scatter = LayoutOf(Operation::kReduceScatter, 1000, DataType::kFloat32, 4, 2);
  EXPECT_EQ(scatter.count, 60u);
  EXPECT_EQ(scatter.send, 240u);
  EXPECT_EQ(scatter.recv, 60u);
  EXPECT_EQ(scatter.in_place_send, 0u);
  EXPECT_EQ(scatter.in_place_recv, 120u);
  EXPECT_EQ(scatter.bytes, 960u);

  const Layout gather = LayoutOf(Operation::kAllGather, 1000, DataType::kInt8, 3, 1);
  EXPECT_EQ(gather.count, 320u);
  EXPECT_EQ(gather.send, 320u);
  EXPECT_EQ(gather.recv, 960u);
  EXPECT_EQ(gather.in_place_send, 320u);
  EXPECT_EQ(gather.in_place_recv, 0u);

  const Layout to_root = LayoutOf(Operation::kGather, 1000, DataType::kInt8, 3, 1);
  EXPECT_EQ(to_root.count, 320u);
  EXPECT_EQ(to_root.send, 320u);
  EXPECT_EQ(to_root.recv, 960u);
  EXPECT_EQ(to_root.in_place_send, 320u);
  EXPECT_EQ(to_root.bytes, 960u);

  const Layout from_root = LayoutOf(Operation::kScatter, 1000, DataType::kFloat32, 4, 2);
  EXPECT_EQ(from_root.send, 240u);
  EXPECT_EQ(from_root.recv, 60u);
  EXPECT_EQ(from_root.in_place_recv, 120u);
  EXPECT_EQ(from_root.bytes, 960u);

  const Layout each = LayoutOf(Operation::kAllToAll, 1000, DataType::kFloat32, 4, 2);
  EXPECT_EQ(each.count, 60u);
  EXPECT_EQ(each.send, 240u);
  EXPECT_EQ(each.recv, 240u);
  EXPECT_EQ(each.bytes, 960u);
  EXPECT_FALSE(HasInPlace(Operation::kAllToAll));

  const Layout shift = LayoutOf(Operation::kSendRecv, 1000, DataType::kFloat32, 3, 1);
  EXPECT_EQ(shift.count, 250u);
  EXPECT_EQ(shift.send, 250u);
  EXPECT_EQ(shift.recv, 250u);
  EXPECT_EQ(shift.bytes, 1000u);
  EXPECT_FALSE(HasInPlace(Operation::kSendRecv));
  EXPECT_EQ(NextRank(2, 3), 0);
  EXPECT_EQ(PreviousRank(0, 3), 2);
  EXPECT_TRUE(HasInPlace(Operation::kGather));

  EXPECT_EQ(LayoutOf(Operation::kReduceScatter, 15, DataType::kInt8, 1, 0).count, 0u);
  EXPECT_EQ(LayoutOf(Operation::kBroadcast, 3, DataType::kFloat32, 2, 0).count, 0u);
}

TEST(BenchLayout, BandwidthsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(AlgorithmBandwidth(1000000, 1000), 1.0);  // 1 MB in 1 ms is 1 GB/s
  EXPECT_DOUBLE_EQ(AlgorithmBandwidth(1000000, 0), 0.0);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllGather, 2), 0.5);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kBroadcast, 8), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kReduce, 8), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllReduce, 1), 0);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kSendRecv, 4), 1);
}

}  // namespace
}  // namespace inccl::perf
