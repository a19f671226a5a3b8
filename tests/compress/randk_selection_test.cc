// SPDX-License-Identifier: Apache-2.0
//
// The selections of randk: what superblocks select has nothing to do with what others select, for
// any two elements of each. Numbers of trials, seeds and bounds are fixed, so that nothing fails by
// chance; the bounds are six standard deviations and more.
#include <gtest/gtest.h>

#include <bitset>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "compress/qsgd/qsgd_config.h"
#include "compress/qsgd/selection.h"

namespace inccl::qsgd {
namespace {

using Places = std::bitset<kSuperblock>;

class Step {
 public:
  Step(uint64_t seed, uint64_t step, uint32_t selected) { selection_.Begin(seed, step, selected); }
  uint32_t size() const { return selection_.size(); }
  std::vector<uint8_t> List(uint64_t superblock, uint32_t segment = 0) const {
    uint8_t places[kSuperblock];
    const uint32_t picked = selection_.Pick(segment, superblock, kSuperblock, places);
    EXPECT_EQ(picked, selection_.size());
    return {places, places + picked};
  }
  Places Set(uint64_t superblock, uint32_t segment = 0) const {
    Places set;
    for (const uint8_t place : List(superblock, segment)) set.set(place);
    EXPECT_EQ(set.count(), selection_.size());
    return set;
  }

 private:
  Selection selection_;
};

// Of 2^24 maps two in 4096 superblocks are the same by chance once in two steps.
TEST(RandkSelection, SuperblocksOfAStepHaveTheirOwnPatterns) {
  constexpr uint64_t kSuperblocks = 4096;
  for (const uint32_t selected : {16u, 26u, 128u}) {
    const Step step(7, 3, selected);
    std::set<std::string> patterns;
    for (uint64_t s = 0; s < kSuperblocks; ++s) patterns.insert(step.Set(s).to_string());
    EXPECT_GT(patterns.size(), kSuperblocks - 20) << selected << " of " << kSuperblock;
  }
  // Segments are vectors of their own.
  std::set<std::string> patterns;
  const Step step(7, 3, 26);
  for (uint32_t segment = 0; segment < 64; ++segment) {
    for (uint64_t s = 0; s < 16; ++s) patterns.insert(step.Set(s, segment).to_string());
  }
  EXPECT_GT(patterns.size(), 64u * 16 - 20);
}

// counts[i][j]: how often element i of one and element j of another were selected together.
using Counts = std::vector<std::vector<uint32_t>>;

// Of whole sweeps, in each of which two elements meet once or not at all.
void ExpectProbability(const Counts& counts, uint64_t trials, uint32_t sweep, double probability,
                       bool diagonal) {
  const double mean = static_cast<double>(trials) * probability;
  const double deviation = std::sqrt(mean * (1 - probability * sweep));
  double squares = 0;
  uint32_t cells = 0;
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    for (uint32_t j = 0; j < kSuperblock; ++j) {
      if (i == j && !diagonal) continue;
      const double off = (counts[i][j] - mean) / deviation;
      ASSERT_LT(std::fabs(off), 6.5) << i << ", " << j << ": " << counts[i][j] << " of " << mean;
      squares += off * off;
      ++cells;
    }
  }
  // Of cells that were independent: 1, with a deviation of sqrt(2 / cells) = 0.0055.
  EXPECT_NEAR(squares / cells, 1, 0.05);
}

// Element i of superblock a and element j of superblock b: k * k, whatever i, j and the distance
// are, over steps of many sweeps.
TEST(RandkSelection, ElementsOfTwoSuperblocksMeetAsIndependentOnesDo) {
  constexpr uint64_t kPairs = 64, kSteps = 1024;
  for (const uint32_t selected : {16u, 32u}) {
    for (const uint64_t distance : {uint64_t{1}, uint64_t{256}, uint64_t{4096}}) {
      SCOPED_TRACE(testing::Message() << selected << " of 256, " << distance << " apart");
      Counts counts(kSuperblock, std::vector<uint32_t>(kSuperblock));
      for (uint64_t s = 0; s < kSteps; ++s) {
        const Step step(11, s, selected);
        for (uint64_t pair = 0; pair < kPairs; ++pair) {
          const uint64_t a = pair / distance * 2 * distance + pair % distance;
          const std::vector<uint8_t> there = step.List(a + distance);
          for (const uint8_t i : step.List(a)) {
            for (const uint8_t j : there) ++counts[i][j];
          }
        }
      }
      const double k = selected / 256.0;
      ExpectProbability(counts, kPairs * kSteps, Sweep(selected), k * k, true);
    }
  }
}

// Two elements of one superblock: as drawn without putting back.
TEST(RandkSelection, ElementsOfOneSuperblockMeetAsDrawnOnesDo) {
  constexpr uint64_t kSuperblocks = 64, kSteps = 1024;
  constexpr uint32_t kSelected = 32;
  Counts counts(kSuperblock, std::vector<uint32_t>(kSuperblock));
  for (uint64_t s = 0; s < kSteps; ++s) {
    const Step step(13, s, kSelected);
    for (uint64_t superblock = 0; superblock < kSuperblocks; ++superblock) {
      const std::vector<uint8_t> places = step.List(superblock);
      for (const uint8_t i : places) {
        for (const uint8_t j : places) ++counts[i][j];
      }
    }
  }
  ExpectProbability(counts, kSuperblocks * kSteps, Sweep(kSelected),
                    kSelected * (kSelected - 1) / (256.0 * 255), false);
}

// How many places two superblocks have in common is distributed as for two draws: mean and variance
// are those of the hypergeometric distribution. Superblocks that share a pattern more often than by
// chance have a larger variance.
TEST(RandkSelection, CommonPlacesVaryAsThoseOfIndependentDraws) {
  constexpr uint64_t kSuperblocks = 400;
  for (const uint32_t selected : {16u, 26u, 64u}) {
    double sum = 0, squares = 0;
    uint64_t pairs = 0;
    for (uint64_t s = 0; s < 5; ++s) {
      const Step step(17, s * Sweep(selected), selected);  // a sweep each
      std::vector<Places> sets;
      for (uint64_t b = 0; b < kSuperblocks; ++b) sets.push_back(step.Set(b));
      for (uint64_t a = 0; a < kSuperblocks; ++a) {
        for (uint64_t b = 0; b < a; ++b) {
          const auto common = static_cast<double>((sets[a] & sets[b]).count());
          sum += common;
          squares += common * common;
          ++pairs;
        }
      }
    }
    const double n = selected, mean = n * n / 256;
    const double variance = mean * (256 - n) * (256 - n) / (256 * 255.0);
    const double found = sum / static_cast<double>(pairs);
    EXPECT_NEAR(found, mean, 6 * std::sqrt(variance / static_cast<double>(pairs))) << selected;
    EXPECT_NEAR(squares / static_cast<double>(pairs) - found * found, variance, 0.03 * variance)
        << selected;
  }
}

}  // namespace
}  // namespace inccl::qsgd
