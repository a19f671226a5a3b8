// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "collectives/call.h"
#include "support/seed.h"

namespace inccl {
namespace {

// Slices of all rows, chunks and channels cover every element exactly once, whatever the cut; inner
// borders are whole superblocks; no slice is longer than asked.
void ExpectPartition(const ChunkingOptions& options, const Phase& phase) {
  const Chunking chunking(options);
  const bool segmented = SegmentsOf(options.collective, 2) > 1;
  const uint32_t segments = segmented ? phase.chunks : 1;
  std::vector<std::vector<uint8_t>> seen(segments, std::vector<uint8_t>(options.count));
  for (uint64_t row = 0; row < chunking.windows(); ++row) {
    for (uint32_t chunk = 0; chunk < phase.chunks; ++chunk) {
      for (uint32_t channel = 0; channel < phase.channels; ++channel) {
        const Range part = chunking.Part(row, phase, chunk, channel);
        const uint32_t slices = chunking.Slices(part, phase);
        ASSERT_LE(slices, chunking.Slices(chunking.Part(row, phase, 0, channel), phase));
        for (uint32_t i = 0; i < slices; ++i) {
          const Range slice = chunking.Slice(part, phase, i);
          ASSERT_GT(slice.count, 0u);
          ASSERT_LE(slice.count, options.slice_elements);
          ASSERT_EQ(slice.first % kSuperblock, 0u);
          ASSERT_TRUE(slice.count % kSuperblock == 0 || slice.first + slice.count == options.count);
          ASSERT_EQ(slice.first / options.window_elements,
                    (slice.first + slice.count - 1) / options.window_elements);
          for (uint32_t e = 0; e < slice.count; ++e) ++seen[slice.segment][slice.first + e];
        }
      }
    }
  }
  for (const std::vector<uint8_t>& segment : seen) {
    for (const uint8_t times : segment) ASSERT_EQ(times, 1);
  }
}

TEST(ChunkingTest, RandomCutsPartitionTheVector) {
  Rng rng(test::TestSeed());
  for (int i = 0; i < 200; ++i) {
    ChunkingOptions options;
    options.collective = static_cast<Collective>(rng.Below(kCollectiveKinds));
    options.count = rng.Below(40000);
    options.window_elements = kSuperblock * (1 + rng.Below(60));
    options.slice_elements = static_cast<uint32_t>(kSuperblock * (1 + rng.Below(20)));
    options.group = static_cast<uint32_t>(1 + rng.Below(4));
    const Phase phase{.chunks = static_cast<uint16_t>(1 + rng.Below(9)),
                      .channels = static_cast<uint16_t>(1 + rng.Below(5))};
    ExpectPartition(options, phase);
  }
}

// Where segment s of a call of 3 ranks lies in the buffers of a rank that has it.
TEST(ChunkingTest, SegmentsLieWhereTheCallersBuffersHaveThem) {
  struct Place {
    Collective collective;
    uint32_t segment;
    uint64_t input, output;
  };
  constexpr uint64_t kCount = 1000;
  const Place places[] = {
      {Collective::kAllReduce, 0, 0, 0},
      {Collective::kBroadcast, 0, 0, 0},
      {Collective::kReduce, 0, 0, 0},
      {Collective::kReduceScatter, 2, 2 * kCount, 0},
      {Collective::kAllGather, 2, 0, 2 * kCount},
      {Collective::kGather, 1, 0, kCount},
      {Collective::kScatter, 1, kCount, 0},
      // From rank 1 to rank 2, from 2 to 1, and what rank 2 keeps.
      {Collective::kAllToAll, 5, 2 * kCount, kCount},
      {Collective::kAllToAll, 7, kCount, 2 * kCount},
      {Collective::kAllToAll, 8, 2 * kCount, 2 * kCount},
  };
  for (const Place& place : places) {
    const Chunking chunking(
        {{.collective = place.collective, .nranks = 3, .count = kCount}, kSuperblock, kSuperblock});
    const auto segments = static_cast<uint16_t>(SegmentsOf(place.collective, 3));
    const Phase phase{.chunks = segments, .channels = 1};
    const Range part = chunking.Part(1, phase, place.segment, 0);
    EXPECT_EQ(part.segment, place.segment) << Name(place.collective);
    ASSERT_EQ(part.count, kSuperblock) << Name(place.collective);
    EXPECT_EQ(chunking.InputOffset(part), place.input + kSuperblock) << Name(place.collective);
    EXPECT_EQ(chunking.OutputOffset(part), place.output + kSuperblock) << Name(place.collective);
  }
}

// docs/format.md: the first (superblocks mod n) parts of a window have one superblock more.
TEST(ChunkingTest, PartsOfAWindowAreDealtAsTheFormatSays) {
  ChunkingOptions options;
  options.count = kWindow + 1000;
  options.window_elements = kWindow;
  options.slice_elements = kWindow;
  const Chunking chunking(options);
  const Phase phase{.chunks = 3, .channels = 1};
  ASSERT_EQ(chunking.windows(), 2u);
  EXPECT_EQ(chunking.Part(0, phase, 0, 0).count, 1366u * 256);
  EXPECT_EQ(chunking.Part(0, phase, 1, 0).first, 1366u * 256);
  EXPECT_EQ(chunking.Part(0, phase, 1, 0).count, 1365u * 256);
  EXPECT_EQ(chunking.Part(1, phase, 0, 0).first, uint64_t{kWindow});
  EXPECT_EQ(chunking.Part(1, phase, 0, 0).count, 512u);  // 4 superblocks: 2, 1, 1
  EXPECT_EQ(chunking.Part(1, phase, 1, 0).count, 256u);
  EXPECT_EQ(chunking.Part(1, phase, 2, 0).count, 232u);  // the tail
}

}  // namespace
}  // namespace inccl
