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
#include "compress/hbi/format.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// Checks the bits of what the reference algorithm sends over all hops, side words included, per
// element of whole superblocks.
class BitsOnTheWire {
 public:
  BitsOnTheWire(int n, bool ring, Rng* rng) : ring_(ring), rng_(rng) {
    c_.n = n;
    c_.options.ring = ring;
  }

  void Reduce(uint64_t count) {
    Draw(count);
    SCOPED_TRACE(Describe(c_));
    HbiDriver driver = MakeDriver(c_);
    const Vectors inputs = MakeInputs(c_.n, count, c_.kind, rng_);
    RunFloat(&driver, ring_ ? Way::kRing : Way::kTwoShot, Slice(count), inputs);
    // Each rank sends its words and gets the agreed ones; those of the result are in data_bytes.
    const double sent = 8.0 * static_cast<double>(driver.data_bytes());
    EXPECT_LE(sent + 2 * kWord * Hops() * Padded(count), 2 * Hops() * Bits() * Padded(count));
    double promised = 0, relative = 0;
    driver.codec().Bound(c_.n, &promised, &relative);
    EXPECT_EQ(promised, Bits());
  }
  void Gather(uint64_t count) {
    Draw(count);
    SCOPED_TRACE(Describe(c_));
    HbiDriver driver = MakeDriver(c_, DataType::kFloat32, kGather);
    AllGatherFloat(&driver, Slice(count), MakeInputs(c_.n, count, c_.kind, rng_));
    EXPECT_LE(8.0 * static_cast<double>(driver.data_bytes() + driver.side_bytes()),
              Hops() * c_.n * Bits() * Padded(count));
  }
  void Scatter(uint64_t count) {
    Draw(count);
    SCOPED_TRACE(Describe(c_));
    HbiDriver driver = MakeDriver(c_, DataType::kFloat32, kScatter);
    ReduceScatterFloat(&driver, ring_ ? Way::kRing : Way::kTwoShot, Slice(count),
                       ScatterInputs(c_, rng_));
    const double all = c_.n * Padded(count);
    EXPECT_LE(8.0 * static_cast<double>(driver.data_bytes()) + 2 * kWord * Hops() * all,
              Hops() * Bits() * all);
  }

 private:
  static constexpr double kWord = 32.0 / 256;  // bits per element of a side word

  void Draw(uint64_t count) {
    c_.count = count;
    c_.kind = rng_->Below(3) == 0 ? Kind::kGauss : Kind::kScales;
    c_.options.bits8 = static_cast<int>(16 + rng_->Below(60));
    c_.spec = fmt::format("hbi:bits={},ref={}", Bits(), ring_ ? "ring" : "direct");
  }
  static uint32_t Slice(uint64_t count) { return count < 10000 ? 1024 : 65536; }
  static double Padded(uint64_t count) { return std::ceil(static_cast<double>(count) / 256) * 256; }
  double Hops() const { return c_.n - 1; }
  double Bits() const { return c_.options.bits8 / 8.0; }

  const bool ring_;
  Rng* const rng_;
  Case c_;
};

TEST(HbiPromises, BitsOnTheWireForEveryNumberOfRanks) {
  Rng rng(TestSeed());
  for (int n = 2; n <= 64; ++n) {
    for (const bool ring : {false, true}) {
      BitsOnTheWire wire(n, ring, &rng);
      for (const uint64_t count : {uint64_t{256}, uint64_t{257}, 256 + rng.Below(6000)}) {
        wire.Reduce(count);
      }
      for (const uint64_t count : {256, 257}) {
        wire.Gather(count);
        if (n <= 24 || n == 64) wire.Scatter(count);
      }
      if (n > 16) continue;
      wire.Gather(256 + rng.Below(1000));
      wire.Scatter(256 + rng.Below(1000));
    }
  }
}

// Several slices a rank, and several windows, the last of one superblock.
TEST(HbiPromises, BitsOnTheWireOfLongVectors) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    for (const bool ring : {false, true}) {
      BitsOnTheWire wire(n, ring, &rng);
      for (const uint64_t count : {4096u, 100000u}) {
        wire.Reduce(count);
        wire.Gather(count);
        wire.Scatter(count);
      }
      if (n == 8) continue;
      wire.Reduce((1 << 20) + 3);
      if (n == 2) wire.Gather((1 << 20) + 3);
      if (n == 2) wire.Scatter((1 << 20) + 3);
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
