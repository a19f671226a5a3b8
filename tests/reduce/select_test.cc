// SPDX-License-Identifier: Apache-2.0
//
// Selections against a sort of all elements, and permutations against their definition.
#include "reduce/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "reduce/permutation.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// NaN before infinity before finite values; of equal ones the lower index first.
std::vector<uint32_t> SortedLargest(const std::vector<float>& x, size_t count) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const bool nan_a = std::isnan(x[a]), nan_b = std::isnan(x[b]);
    if (nan_a || nan_b) return nan_a && !nan_b;
    return std::fabs(x[a]) > std::fabs(x[b]);
  });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectTest, IsThePrefixOfASort) {
  std::mt19937_64 engine(TestSeed());
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> x(1 + engine() % 3000);
    const auto kinds = engine() % 4;
    for (float& value : x) {
      value = normal(engine);
      if (kinds == 1) value = std::round(value);  // many ties
      if (kinds == 2) value = engine() % 10 == 0 ? value : 0.0f;
      if (kinds == 3 && engine() % 100 == 0) value = std::numeric_limits<float>::infinity();
    }
    if (kinds == 3) x[engine() % x.size()] = std::numeric_limits<float>::quiet_NaN();
    for (const size_t count : {size_t{0}, size_t{1}, x.size() / 100, x.size() / 2, x.size()}) {
      std::vector<uint32_t> indices;
      SelectLargest(x, count, &indices);
      ASSERT_EQ(indices, SortedLargest(x, count)) << x.size() << " elements, " << count;
    }
  }
}

TEST(PermutationTest, VisitsEveryPlaceOnce) {
  std::mt19937_64 engine(TestSeed());
  for (uint64_t size = 1; size < 3000; size = size < 20 ? size + 1 : size * 3 / 2) {
    const Permutation places(size, engine());
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t place = places(i);
      ASSERT_LT(place, size);
      ASSERT_FALSE(seen[place]);
      seen[place] = true;
    }
  }
}

// Chi-squared of where the first tenth of the places goes, and of pairs of neighbours.
TEST(PermutationTest, IsUniformOverKeys) {
  constexpr uint64_t kSize = 1000, kTaken = 100, kKeys = 4000;
  std::vector<double> hits(kSize);
  double neighbours = 0;
  for (uint64_t key = 0; key < kKeys; ++key) {
    const Permutation places(kSize, key);
    std::vector<bool> taken(kSize);
    for (uint64_t i = 0; i < kTaken; ++i) taken[places(i)] = true;
    for (uint64_t i = 0; i < kSize; ++i) {
      hits[i] += taken[i] ? 1 : 0;
      neighbours += taken[i] && taken[(i + 1) % kSize] ? 1 : 0;
    }
  }
  double chi = 0;
  constexpr double kExpected = kKeys * 0.1;
  for (const double hit : hits) chi += (hit - kExpected) * (hit - kExpected) / (kExpected * 0.9);
  EXPECT_NEAR(chi, kSize, 5 * std::sqrt(2.0 * kSize));
  // Each of kSize pairs is taken with probability (taken / size) * (taken - 1) / (size - 1).
  const double pairs = kKeys * kSize * 0.1 * 99 / 999;
  EXPECT_NEAR(neighbours, pairs, 6 * std::sqrt(pairs));
}

}  // namespace
}  // namespace inccl::test
