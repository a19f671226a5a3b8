// SPDX-License-Identifier: Apache-2.0
//
// Selections against a sort of all elements, and permutations against their definition.
#include "reduce/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "compress/simd.h"
#include "reduce/methods.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// NaN, by payload, before infinity before finite values; of equal ones the lower index first.
std::vector<uint32_t> Sorted(const std::vector<float>& x) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto payload = [&](uint32_t i) { return std::bit_cast<uint32_t>(x[i]) & 0x7FFFFF; };
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const bool nan_a = std::isnan(x[a]), nan_b = std::isnan(x[b]);
    if (nan_a && nan_b) return payload(a) > payload(b);
    if (nan_a || nan_b) return nan_a;
    return std::fabs(x[a]) > std::fabs(x[b]);
  });
  return order;
}

// The first of them, by index.
std::vector<uint32_t> Largest(const std::vector<uint32_t>& sorted, size_t count) {
  std::vector<uint32_t> largest(sorted.begin(),
                                sorted.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(largest.begin(), largest.end());
  return largest;
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
    const std::vector<uint32_t> sorted = Sorted(x);
    for (const size_t count : {size_t{0}, size_t{1}, x.size() / 100, x.size() / 2, x.size()}) {
      std::vector<uint32_t> indices;
      SelectLargest(x, count, &indices);
      ASSERT_EQ(indices, Largest(sorted, count)) << x.size() << " elements, " << count;
    }
  }
}

// Vectors long enough for a bound from a sample, some of which no sample describes.
std::vector<float> LongVector(uint64_t kind, size_t size, std::mt19937_64* engine) {
  std::normal_distribution<float> normal;
  std::vector<float> x(size);
  for (size_t i = 0; i < size; ++i) {
    switch (kind) {
      case 0: x[i] = normal(*engine); break;
      case 1: x[i] = -1.0f; break;
      case 2: x[i] = (*engine)() % 300 == 0 ? normal(*engine) : 0.0f; break;
      case 3: x[i] = static_cast<float>(i); break;
      case 4: x[i] = -static_cast<float>(size - i); break;
      case 5: x[i] = i % 64 == 0 ? 100 + normal(*engine) : normal(*engine); break;
      case 6: x[i] = std::round(2 * normal(*engine)); break;
      case 7: x[i] = std::bit_cast<float>(static_cast<uint32_t>((*engine)())); break;
      case 8: x[i] = std::ldexp(normal(*engine), i < size / 50 ? 20 : 0); break;
      case 9: x[i] = std::numeric_limits<float>::quiet_NaN(); break;
      case 10: x[i] = std::bit_cast<float>(i % 3 == 0 ? 0x7FFFFFFFu : 0xFFFFFFFFu); break;
      default: x[i] = 0;
    }
  }
  return x;
}

TEST(SelectTest, LongVectorsOnEveryInstructionSet) {
  std::mt19937_64 engine(TestSeed());
  for (const size_t size : {size_t{4095}, size_t{4096}, size_t{4097}, size_t{70001}}) {
    for (uint64_t kind = 0; kind < 12; ++kind) {
      const std::vector<float> x = LongVector(kind, size, &engine);
      const std::vector<uint32_t> sorted = Sorted(x);
      for (const size_t count : {size_t{1}, size / 1000, size / 100, size / 4, size / 2, size}) {
        const std::vector<uint32_t> expected = Largest(sorted, count);
        const uint32_t least = MagnitudeOf(x[sorted[count - 1]]);
        std::vector<uint32_t> from;
        for (uint32_t i = 0; i < size; ++i) {
          if (MagnitudeOf(x[i]) >= least) from.push_back(i);
        }
        for (const std::string& target : SimdTargets()) {
          ASSERT_TRUE(SetSimdTarget(target).ok());
          std::vector<uint32_t> indices = {7};
          SelectLargest(x, count, &indices);
          ASSERT_EQ(indices, expected)
              << target << " kind " << kind << ", " << count << " of " << size;
          SelectFrom(x, least, &indices);
          ASSERT_EQ(indices, from) << target << " kind " << kind << ", " << count << " of " << size;
          ASSERT_EQ(MagnitudeAt(x, count), least);
        }
      }
    }
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
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
