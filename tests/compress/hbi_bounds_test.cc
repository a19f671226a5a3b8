// SPDX-License-Identifier: Apache-2.0
//
// What the codec promises in numbers: bits on the wire, statistics, bounds on the error, and the
// error itself on Gaussian data.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(HbiBounds, TheReferenceAlgorithmSendsWhatThePlanSays) {
  Rng rng(TestSeed());
  for (int i = 0; i < 60; ++i) {
    Case c = RandomCase(&rng);
    if (c.options.k > 0 || c.options.exact || c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiTrace trace;
    HbiAllReduce(inputs, c.options, &trace);
    HbiDriver driver = MakeDriver(c);
    RunFloat(&driver, c.options.ring ? Way::kRing : Way::kTwoShot, 1024, inputs);
    const double elements = 32.0 * static_cast<double>(trace.codes.size()), hops = c.n - 1;
    const double fields = std::accumulate(trace.window_bits.begin(), trace.window_bits.end(), 0.0);
    const double sent = 8.0 * static_cast<double>(driver.data_bytes());
    EXPECT_EQ(sent, fields + hops * 0.125 * elements);
    // The agreement takes 0.125 bits twice; everything together stays within bits per phase.
    EXPECT_LE(sent + hops * 0.25 * elements, 2 * hops * elements * c.options.bits8 / 8);
  }
}

// Bits per element and phase of one call by direct, with the agreement.
double BitsSent(const Case& c, const Vectors& inputs) {
  HbiDriver driver = MakeDriver(c);
  RunFloat(&driver, Way::kTwoShot, 8192, inputs);
  const auto elements = static_cast<double>((c.count + 255) / 256 * 256);
  return (8.0 * static_cast<double>(driver.data_bytes()) / (c.n - 1) / elements + 0.25) / 2;
}

TEST(HbiBounds, CodedPayloadsNeverExceedTheirCap) {
  Rng rng(TestSeed());
  for (int i = 0; i < 150; ++i) {
    const Case c = RandomCase(&rng, true);
    if (!c.options.entropy || c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    double cap = 0, error = 0;
    (*MakeCodec(c.spec))->Bound(c.n, &cap, &error);
    // A part of few superblocks has a head, too, and fields of whole bytes.
    const double heads = 32.0 * c.n / static_cast<double>((c.count + 255) / 256 * 256);
    EXPECT_LE(BitsSent(c, MakeInputs(c.n, c.count, c.kind, &rng)), cap + heads);
  }
}

TEST(HbiBounds, CodedPayloadsOfNormalDataTakeWhatThePlanCounts) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    for (const int bits8 : {20, 24, 32, 48, 64}) {
      Case c{.n = n, .count = 1 << 16, .kind = Kind::kGauss, .options = {}, .spec = ""};
      c.spec = fmt::format("hbi:bits={},code=entropy", bits8 / 8.0);
      const double ratio = 8 * BitsSent(c, MakeInputs(n, c.count, c.kind, &rng)) / bits8;
      EXPECT_GT(ratio, 0.95) << c.spec << ", n = " << n;
      EXPECT_LT(ratio, 1.06) << c.spec << ", n = " << n;
    }
  }
}

TEST(HbiBounds, TheBudgetIsUsed) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    for (const int bits : {4, 6, 8}) {
      const Case c{.n = n,
                   .count = 1 << 16,
                   .kind = Kind::kGauss,
                   .options = {.bits8 = 8 * bits},
                   .spec = fmt::format("hbi:bits={}", bits)};
      HbiDriver driver = MakeDriver(c);
      RunFloat(&driver, Way::kTwoShot, 8192, MakeInputs(n, c.count, c.kind, &rng));
      const double budget = 2.0 * (n - 1) * bits * static_cast<double>(c.count);
      const double sent = 8.0 * static_cast<double>(driver.data_bytes()) +
                          (n - 1) * 0.25 * static_cast<double>(c.count);
      EXPECT_LE(sent, budget);
      EXPECT_GE(sent, 0.99 * budget);
    }
  }
}

// ---------------------------------------------------------------- statistics and bounds

double LargestError(const Vectors& inputs, const std::vector<float>& result, double divide) {
  double largest = 0;
  for (size_t e = 0; e < result.size(); ++e) {
    double sum = 0;
    for (const std::vector<float>& x : inputs) sum += double{x[e]};
    if (std::isfinite(result[e]) && std::isfinite(sum)) {
      largest = std::max(largest, std::fabs(double{result[e]} - sum / divide));
    }
  }
  return largest;
}

TEST(HbiBounds, ErrorBoundHoldsAndIsNotIdle) {
  Rng rng(TestSeed());
  int tight = 0, cases = 0;
  for (int i = 0; i < 200; ++i) {
    Case c = RandomCase(&rng, true);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 4096, inputs);
    CodecStats stats;
    driver.state(0).Finish(&stats);
    const double error = LargestError(inputs, result, c.options.average ? c.n : 1);
    EXPECT_LE(error, stats.error_bound);
    ++cases;
    if (error >= stats.error_bound / (c.options.rht ? 64 : 4)) ++tight;
  }
  EXPECT_GT(tight, cases / 5);
}

TEST(HbiBounds, ErrorBoundOfOtherTypesHolds) {
  Rng rng(TestSeed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (int i = 0; i < 10; ++i) {
      Case c = RandomCase(&rng, true);
      c.kind = Kind::kGauss;
      SCOPED_TRACE(Describe(c) + " " + Name(type));
      const Vectors wide = MakeInputs(c.n, c.count, c.kind, &rng);
      std::vector<Payload> typed(wide.size(), Payload(c.count * SizeOf(type)));
      Vectors narrow = wide;
      std::vector<std::byte*> memory;
      for (size_t r = 0; r < wide.size(); ++r) {
        FromFloat(type, wide[r].data(), typed[r].data(), c.count);
        ToFloat(type, typed[r].data(), narrow[r].data(), c.count);
        memory.push_back(typed[r].data());
      }
      HbiDriver driver = MakeDriver(c, type);
      driver.Run(Way::kTwoShot, 2048, memory, memory);
      std::vector<float> result(c.count);
      ToFloat(type, typed[0].data(), result.data(), c.count);
      CodecStats stats;
      driver.state(0).Finish(&stats);
      EXPECT_LE(LargestError(narrow, result, c.options.average ? c.n : 1), stats.error_bound);
      EXPECT_TRUE(std::isfinite(stats.error_bound));
    }
  }
}

TEST(HbiBounds, StatisticsCount) {
  // Six superblocks and a tail; the second is all zero, one element poisons the third; the fourth
  // is so small that a budget of 2 bits drops it.
  const size_t count = 6 * 256 + 40;
  Vectors inputs(2, std::vector<float>(count, 1.0f));
  for (size_t e = 0; e < count; ++e) {
    for (std::vector<float>& x : inputs) x[e] = e % 2 == 0 ? 1.0f : -0.5f;
  }
  for (std::vector<float>& x : inputs) {
    std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
    std::fill(x.begin() + 768, x.begin() + 1024, 1e-6f);
  }
  inputs[1][512 + 70] = std::numeric_limits<float>::infinity();
  HbiDriver driver("hbi:bits=2,levels=energy", 2, DataType::kFloat32, ReduceOp::kSum, count);
  const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 256, inputs);
  for (int r = 0; r < 2; ++r) {
    CodecStats stats;
    driver.state(r).Finish(&stats);
    EXPECT_EQ(stats.zero_blocks, 8u);
    EXPECT_EQ(stats.poisoned_blocks, 8u);
    EXPECT_GE(stats.dropped_superblocks, 1u);
    EXPECT_EQ(stats.error_bound, HUGE_VAL);  // of the elements beside the infinity, too
  }
  for (size_t e = 768; e < 1024; ++e) EXPECT_EQ(result[e], 0.0f);
  for (size_t e = 0; e < count; ++e) EXPECT_EQ(std::isnan(result[e]), e >= 512 && e < 768) << e;
  driver.state(0).Finish(nullptr);

  // Rotated, the infinity reaches the whole superblock, and an element of the tail all of it.
  inputs[0][count - 1] = std::numeric_limits<float>::quiet_NaN();
  HbiDriver rotated("hbi:bits=2,rht=1", 2, DataType::kFloat32, ReduceOp::kSum, count);
  const std::vector<float> y = RunFloat(&rotated, Way::kTwoShot, 256, inputs);
  CodecStats stats;
  rotated.state(1).Finish(&stats);
  EXPECT_EQ(stats.zero_blocks, 8u);
  EXPECT_EQ(stats.poisoned_blocks, 8u + 2u);
  for (size_t e = 0; e < count; ++e) {
    EXPECT_EQ(std::isnan(y[e]), (e >= 512 && e < 768) || e >= 6 * 256) << e;
  }
}

// Back from a rotation, elements are added up before they are divided.
TEST(HbiBounds, SumsOfManyRotatedRanksMayLeaveFp32) {
  constexpr int kRanks = 520;
  constexpr size_t kCount = 256;
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kCount)), outputs = inputs;
  std::vector<std::byte*> in, out;
  for (size_t r = 0; r < kRanks; ++r) {
    inputs[r][0] = 0x1p115F;
    in.push_back(reinterpret_cast<std::byte*>(inputs[r].data()));
    out.push_back(reinterpret_cast<std::byte*>(outputs[r].data()));
  }
  HbiDriver driver("hbi:bits=8,rht=1,ag=exact", kRanks, DataType::kFloat32, ReduceOp::kSum, kCount);
  driver.Run(Way::kTwoShot, 256, in, out);
  CodecStats stats;
  driver.state(0).Finish(&stats);
  EXPECT_LE(std::abs(double{outputs[0][0]} - kRanks * 0x1p115), stats.error_bound);
}

// What is finite but not zero, and zero or not finite where it is coded, has a bound.
TEST(HbiBounds, WhatFp32DoesNotHold) {
  struct Extreme {
    const char* spec;
    DataType type;
    std::vector<double> elements;  // on each of two ranks; zeros follow
    bool nan;                      // the result; else zero
  };
  const std::vector<Extreme> extremes = {
      {"hbi", DataType::kFloat64, {1e-46}, false},
      {"hbi:rht=1", DataType::kFloat64, {1e-46}, false},
      {"hbi:rht=1", DataType::kFloat32, {0x1p-149}, false},
      {"hbi", DataType::kFloat64, {1e300, 1}, true},
      {"hbi:rht=1", DataType::kFloat32, {2e38, 2e38}, true},
      {"hbi:rht=1", DataType::kFloat32, std::vector<double>(256, 7.8e36), true},
  };
  for (const Extreme& extreme : extremes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      SCOPED_TRACE(fmt::format("{} {} {}", extreme.spec, Name(extreme.type), extreme.elements[0]));
      const bool wide = extreme.type == DataType::kFloat64;
      constexpr size_t kCount = 300;
      std::vector<Payload> inputs(2, Payload(kCount * SizeOf(extreme.type))), outputs = inputs;
      std::vector<std::byte*> in, out;
      for (size_t r = 0; r < 2; ++r) {
        for (size_t i = 0; i < extreme.elements.size(); ++i) {
          const double x = extreme.elements[i];
          const auto narrow = static_cast<float>(x);
          if (wide) std::memcpy(inputs[r].data() + i * sizeof x, &x, sizeof x);
          if (!wide) std::memcpy(inputs[r].data() + i * sizeof narrow, &narrow, sizeof narrow);
        }
        in.push_back(inputs[r].data());
        out.push_back(outputs[r].data());
      }
      HbiDriver driver(extreme.spec, 2, extreme.type, op, kCount);
      driver.Run(Way::kTwoShot, 256, in, out);
      std::vector<float> result(kCount);
      ToFloat(extreme.type, outputs[0].data(), result.data(), kCount);
      CodecStats stats;
      driver.state(0).Finish(&stats);
      if (extreme.nan) {
        EXPECT_TRUE(std::isnan(result[1]));
        EXPECT_EQ(stats.error_bound, HUGE_VAL);
        continue;
      }
      EXPECT_EQ(result[0], 0);
      EXPECT_GE(stats.error_bound, extreme.elements[0] * (op == ReduceOp::kAvg ? 1 : 2));
      EXPECT_LE(stats.error_bound, 1e-40);
    }
  }
}

TEST(HbiBounds, BoundsAPriori) {
  Rng rng(TestSeed());
  for (const char* spec : {"hbi:k=15,k2=31", "hbi:k=1", "hbi:k=3,k2=127,ag=exact", "hbi:bits=5",
                           "hbi:bits=8,ag=exact", "hbi:k=7,k2=7,ref=ring", "hbi:k=7,rht=1",
                           "hbi:bits=5,unbiased=1", "hbi:k=3,k2=5,unbiased=1,rht=1"}) {
    for (const int n : {2, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} n={}", spec, n));
      constexpr size_t kCount = 1 << 14;
      const Vectors inputs = MakeInputs(n, kCount, Kind::kGauss, &rng);
      HbiDriver driver(spec, n, DataType::kFloat32, ReduceOp::kSum, kCount);
      const bool ring = std::string(spec).find("ring") != std::string::npos;
      const std::vector<float> result =
          RunFloat(&driver, ring ? Way::kRing : Way::kTwoShot, 4096, inputs);
      double bits = 0, relative = 0;
      driver.codec().Bound(n, &bits, &relative);
      const double sent = 8.0 * static_cast<double>(driver.data_bytes()) / kCount / (n - 1) + 0.25;
      if (std::string(spec).find("k=") != std::string::npos) {
        EXPECT_DOUBLE_EQ(sent / 2, bits);
      } else {
        EXPECT_LE(sent / 2, bits);
        EXPECT_LE(bits, sent / 2 + 4);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectWithinBound(result, inputs, 256, relative));
    }
  }
}

// A plan chooses only what the a priori bound counts.
void ExpectChoices(int n, const std::string& bits, const Vectors& inputs) {
  const hbi::Config config = *hbi::ParseConfig(*CodecSpec::Parse("hbi:bits=" + bits));
  const hbi::Planner planner(Collective::kAllReduce, n, config);
  const std::vector<uint16_t> codes = HbiAgree(inputs);
  std::vector<uint32_t> words;
  for (size_t b = 0; b < codes.size(); b += 8) words.push_back(HbiWord(&codes[b]));
  std::vector<uint8_t> points(words.size());
  hbi::PlanSummary summary;
  planner.Plan(reinterpret_cast<const uint8_t*>(words.data()), points, &summary);
  const auto first = static_cast<uint8_t>(planner.points().size() - planner.choices().size());
  EXPECT_GE(int{*std::min_element(points.begin(), points.end())}, int{first});
}

// Whatever the others are like: superblocks over 26 octaves, one large or one small among equals,
// any.
TEST(HbiBounds, EvenLevelsBoundTheRelativeErrorOfEverySuperblock) {
  Rng rng(TestSeed());
  constexpr size_t kSuperblocks = 90, kCount = kSuperblocks * 256;
  uint64_t dropped_by_energy = 0;
  for (const int n : {2, 3, 8}) {
    for (const char* bits : {"2.25", "2.5", "3", "4", "6", "9"}) {
      for (int shape = 0; shape < 4; ++shape) {
        SCOPED_TRACE(fmt::format("n={} bits={} shape={}", n, bits, shape));
        Vectors inputs = MakeInputs(n, kCount, Kind::kGauss, &rng);
        int octaves = 0;
        for (size_t e = 0; e < kCount; ++e) {
          const size_t s = e / 256;
          if (e % 256 == 0) {
            const auto random = static_cast<int>(rng.Below(rng.Below(27) + 1));
            octaves = shape == 0 ? static_cast<int>(s % 27) : (s == 7) == (shape == 1) ? 0 : 26;
            if (shape == 3) octaves = random;
          }
          for (std::vector<float>& x : inputs) x[e] = std::ldexp(x[e], -octaves);
        }
        const auto run = [&](const std::string& spec, CodecStats* stats, double* relative) {
          HbiDriver driver(spec, n, DataType::kFloat32, ReduceOp::kSum, kCount);
          std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 4096, inputs);
          driver.state(0).Finish(stats);
          double unused = 0;
          driver.codec().Bound(Collective::kAllReduce, n, &unused, relative);
          return result;
        };
        CodecStats stats;
        double relative = 0;
        const std::vector<float> even = run(fmt::format("hbi:bits={}", bits), &stats, &relative);
        EXPECT_EQ(stats.dropped_superblocks, 0u);
        ExpectChoices(n, bits, inputs);
        EXPECT_LT(relative, std::string(bits) == "9" ? 0.02 : 1.7);
        ASSERT_NO_FATAL_FAILURE(ExpectWithinBound(even, inputs, 256, relative));
        run(fmt::format("hbi:bits={},levels=energy", bits), &stats, &relative);
        dropped_by_energy += stats.dropped_superblocks;
      }
    }
  }
  EXPECT_GT(dropped_by_energy, 100u) << "the test cannot tell";
}

// With offsets of n-ths the error of the sum is that of n / 12 steps squared; with unbiased=1 it is
// (n + 1) / 12.
TEST(HbiBounds, MeanSquareErrorOfGaussianSums) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    for (const int k : {3, 7, 31}) {
      constexpr size_t kCount = 1 << 17;
      HbiOptions options{.k = k, .k2 = k, .step = rng.Next(), .exact = true};
      options.unbiased = k == 7;
      const Vectors inputs = MakeInputs(n, kCount, Kind::kGauss, &rng);
      HbiTrace trace;
      HbiAllReduce(inputs, options, &trace);
      HbiDriver driver(fmt::format("hbi:k={},ag=exact,unbiased={:d}", k, options.unbiased), n,
                       DataType::kFloat32, ReduceOp::kSum, kCount, options.seed, options.step);
      const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 16384, inputs);
      double error = 0, expected = 0;
      for (size_t e = 0; e < kCount; ++e) {
        double sum = 0;
        for (const std::vector<float>& x : inputs) sum += double{x[e]};
        error += std::pow(double{result[e]} - sum, 2);
        const double m = std::exp2((trace.codes[e / 32] - 501) / 5.0);
        expected += (options.unbiased ? n + 1 : n) / 12.0 * m * m / (k * k);
      }
      EXPECT_GT(error / expected, 0.95) << "n=" << n << " k=" << k;
      EXPECT_LT(error / expected, 1.05) << "n=" << n << " k=" << k;
    }
  }
}

// The mean over many steps approaches the sum as fast as independent errors let it.
TEST(HbiBounds, UnbiasedMeansUnbiased) {
  Rng rng(TestSeed());
  constexpr int kRanks = 4, kSteps = 256;
  constexpr size_t kCount = 8192;
  const Vectors inputs = MakeInputs(kRanks, kCount, Kind::kScales, &rng);
  std::vector<double> sum(kCount), mean(kCount);
  for (const std::vector<float>& x : inputs) {
    for (size_t e = 0; e < kCount; ++e) sum[e] += double{x[e]};
  }
  for (const bool unbiased : {true, false}) {
    std::fill(mean.begin(), mean.end(), 0.0);
    double one = 0, all = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      HbiDriver driver(fmt::format("hbi:bits=4,unbiased={}", unbiased ? 1 : 0), kRanks,
                       DataType::kFloat32, ReduceOp::kSum, kCount, 5, step);
      const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 8192, inputs);
      for (size_t e = 0; e < kCount; ++e) {
        one += std::pow(double{result[e]} - sum[e], 2) / kSteps;
        mean[e] += double{result[e]} / kSteps;
      }
    }
    for (size_t e = 0; e < kCount; ++e) {
      all += std::pow(mean[e] - sum[e], 2);
    }
    if (unbiased) {
      EXPECT_LE(all, 1.3 * one / kSteps);
    } else {
      EXPECT_GT(all, 1.3 * one / kSteps) << "the test cannot tell";
    }
  }
}

}  // namespace
}  // namespace inccl::test
