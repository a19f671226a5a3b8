// SPDX-License-Identifier: Apache-2.0
//
// What a caller of the codec hbi may count on whatever the data: the bits on the wire, for every
// number of ranks, and the expectation over seeds and steps, with unbiased=1 and without.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/element.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// Bytes of what the reference algorithm sends over all hops, side words included, of elements that
// whole superblocks have.
TEST(HbiPromises, BitsOnTheWireForEveryNumberOfRanks) {
  Rng rng(TestSeed());
  for (int n = 2; n <= 64; ++n) {
    for (const bool ring : {false, true}) {
      Case c;
      c.n = n;
      c.count = rng.Below(2) == 0 ? 256 : 256 + rng.Below(n < 20 ? 6000 : 1200);
      c.kind = rng.Below(3) == 0 ? Kind::kGauss : Kind::kScales;
      c.options.bits8 = static_cast<int>(16 + rng.Below(60));
      c.options.ring = ring;
      c.spec = fmt::format("hbi:bits={},ref={}", c.options.bits8 / 8.0, ring ? "ring" : "direct");
      SCOPED_TRACE(Describe(c));
      const double hops = n - 1, bits = c.options.bits8 / 8.0;
      const double padded = std::ceil(static_cast<double>(c.count) / 256) * 256;
      const double word = 32.0 / 256;  // bits per element of a side word
      const Vectors inputs = MakeInputs(n, c.count, c.kind, &rng);
      HbiDriver reduce = MakeDriver(c);
      RunFloat(&reduce, ring ? Way::kRing : Way::kTwoShot, 1024, inputs);
      // Each rank sends its words and gets the agreed ones; those of the result are in data_bytes.
      const double sent = 8.0 * static_cast<double>(reduce.data_bytes());
      EXPECT_LE(sent + 2 * word * hops * padded, 2 * hops * bits * padded);
      double promised = 0, relative = 0;
      reduce.codec().Bound(n, &promised, &relative);
      EXPECT_EQ(promised, bits);

      HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
      AllGatherFloat(&gather, 4096, inputs);
      EXPECT_LE(8.0 * static_cast<double>(gather.data_bytes() + gather.side_bytes()),
                hops * n * bits * padded);
      if (n > 16) continue;
      c.count = 256 + rng.Below(1000);
      HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
      ReduceScatterFloat(&scatter, ring ? Way::kRing : Way::kTwoShot, 1024, ScatterInputs(c, &rng));
      const double segment = std::ceil(static_cast<double>(c.count) / 256) * 256;
      EXPECT_LE(8.0 * static_cast<double>(scatter.data_bytes()) + 2 * word * hops * n * segment,
                hops * n * bits * segment);
    }
  }
}

// The mean code of a value over all random numbers, minus K.
double MeanCode(float value, uint32_t k, const hbi::Offsets& offsets) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < 65536; ++r) {
    sum += hbi::QuantizeElement(value, 65536.0f, k, hbi::RoundingOffset(r, 0, offsets));
  }
  return static_cast<double>(sum) / 65536 - k;
}

// `value` in steps of the grid, in units of 2^-16 without rounding.
TEST(HbiPromises, ExpectationOfOneCode) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 4, 8, 37, 64}) {
    for (int round = 0; round < 40; ++round) {
      const int rank = static_cast<int>(rng.Below(static_cast<uint64_t>(n)));
      const float value =
          static_cast<float>(static_cast<int>(rng.Below(6 * 65536 + 1)) - 3 * 65536) / 65536;
      SCOPED_TRACE(testing::Message() << value << " at rank " << rank << " of " << n);
      // unbiased=1: the value itself, exactly.
      ASSERT_EQ(MeanCode(value, 3, hbi::OffsetsOf(rank, n, true)), double{value});
      // Else the value rounded to a grid n times finer.
      const double mean = MeanCode(value, 3, hbi::OffsetsOf(rank, n, false));
      if ((n & (n - 1)) == 0) {
        ASSERT_EQ(mean, std::floor(double{value} * n + 0.5) / n);
      } else {
        ASSERT_LE(std::fabs(mean - double{value}), 0.5 / n + 0x1p-15 * n);
      }
    }
  }
}

// The squared error of the mean over many steps, over that of one step.
template <typename Run>
double ErrorOfTheMean(int steps, const std::vector<double>& exact, const Run& run) {
  std::vector<double> mean(exact.size());
  double one = 0, all = 0;
  for (int step = 1; step <= steps; ++step) {
    const std::vector<float> result = run(static_cast<uint64_t>(step));
    for (size_t e = 0; e < exact.size(); ++e) {
      one += std::pow(double{result[e]} - exact[e], 2) / steps;
      mean[e] += double{result[e]} / steps;
    }
  }
  for (size_t e = 0; e < exact.size(); ++e) all += std::pow(mean[e] - exact[e], 2);
  return all / one;
}

TEST(HbiPromises, UnbiasedMeansOfSegments) {
  constexpr int kRanks = 3, kSteps = 256;
  constexpr size_t kCount = 2048;
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(kRanks, kRanks * kCount, Kind::kScales, &rng);
  Vectors parts;
  std::vector<double> sums(kCount), all;
  for (size_t r = 0; r < kRanks; ++r) {
    const std::vector<float> first = Segment(inputs[r], 0, kCount);
    for (size_t e = 0; e < kCount; ++e) sums[e] += double{first[e]};
    parts.push_back(first);
    all.insert(all.end(), first.begin(), first.end());
  }
  for (const bool unbiased : {true, false}) {
    Case c{.n = kRanks, .count = kCount, .kind = Kind::kScales, .options = {}, .spec = ""};
    c.spec = fmt::format("hbi:bits=4,unbiased={:d}", unbiased);
    const double scattered = ErrorOfTheMean(kSteps, sums, [&](uint64_t step) {
      c.options.step = step;
      HbiDriver driver = MakeDriver(c, DataType::kFloat32, kScatter);
      return ReduceScatterFloat(&driver, Way::kTwoShot, 4096, inputs)[0];
    });
    const double gathered = ErrorOfTheMean(kSteps, all, [&](uint64_t step) {
      c.options.step = step;
      HbiDriver driver = MakeDriver(c, DataType::kFloat32, kGather);
      return AllGatherFloat(&driver, 4096, parts)[1];
    });
    for (const double ratio : {scattered, gathered}) {
      if (unbiased) {
        EXPECT_LE(ratio, 1.3 / kSteps);
      } else {
        EXPECT_GT(ratio, 1.3 / kSteps) << "the test cannot tell";
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
