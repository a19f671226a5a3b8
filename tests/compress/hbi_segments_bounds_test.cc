// SPDX-License-Identifier: Apache-2.0
//
// What reduce-scatter and all-gather of the codec hbi promise in numbers: bits on the wire,
// statistics, bounds on the error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// ---------------------------------------------------------------- bits

double PlannedBits(const std::vector<HbiTrace>& traces) {
  double bits = 0;
  for (const HbiTrace& trace : traces) {
    bits = std::accumulate(trace.window_bits.begin(), trace.window_bits.end(), bits);
  }
  return bits;
}

TEST(HbiSegmentsBounds, TheReferenceAlgorithmSendsWhatThePlanSays) {
  Rng rng(TestSeed());
  for (int i = 0; i < 60; ++i) {
    const Case c = RandomSegments(&rng);
    if (c.options.k > 0 || c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const double hops = c.n - 1, bits = c.options.bits8 / 8.0;
    const double elements = c.n * std::ceil(static_cast<double>(c.count) / 256) * 256;
    std::vector<HbiTrace> traces;
    const Vectors inputs = ScatterInputs(c, &rng);
    HbiReduceScatter(inputs, c.options, &traces);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    ReduceScatterFloat(&scatter, c.options.ring ? Way::kRing : Way::kTwoShot, 1024, inputs);
    double sent = 8.0 * static_cast<double>(scatter.data_bytes());
    EXPECT_EQ(sent, PlannedBits(traces));
    // The agreement takes 0.125 bits twice.
    EXPECT_LE(sent + hops * 0.25 * elements, hops * elements * bits);

    const Vectors parts = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiAllGather(parts, c.options, &traces);
    HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
    AllGatherFloat(&gather, 1024, parts);
    sent = 8.0 * static_cast<double>(gather.data_bytes());
    EXPECT_EQ(sent, hops * PlannedBits(traces));
    EXPECT_EQ(8.0 * static_cast<double>(gather.side_bytes()), hops * 0.125 * elements);
    EXPECT_LE(sent + hops * 0.125 * elements, hops * elements * bits);
  }
}

TEST(HbiSegmentsBounds, TheBudgetIsUsed) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    for (const int bits : {4, 6, 8}) {
      const Case c{.n = n,
                   .count = 1 << 14,
                   .kind = Kind::kGauss,
                   .options = {.bits8 = 8 * bits},
                   .spec = fmt::format("hbi:bits={}", bits)};
      const double elements = static_cast<double>(c.count) * n;
      HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
      ReduceScatterFloat(&scatter, Way::kTwoShot, 8192, ScatterInputs(c, &rng));
      HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
      AllGatherFloat(&gather, 8192, MakeInputs(n, c.count, c.kind, &rng));
      for (const auto& [driver, words] : {std::pair(&scatter, 0.25), std::pair(&gather, 0.125)}) {
        const double sent =
            8.0 * static_cast<double>(driver->data_bytes()) / (n - 1) / elements + words;
        EXPECT_LE(sent, bits);
        EXPECT_GE(sent, 0.98 * bits) << n;
      }
    }
  }
}

// ---------------------------------------------------------------- errors

struct Errors {
  double largest = 0;   // |result - exact|
  double relative = 0;  // the same over the largest magnitude that the bound is about
};

// magnitude[i]: what the bound of element i is relative to.
Errors ErrorsOf(const std::vector<float>& result, const std::vector<double>& exact,
                const std::vector<double>& magnitude) {
  Errors errors;
  for (size_t e = 0; e < result.size(); ++e) {
    if (!std::isfinite(result[e]) || !std::isfinite(exact[e])) continue;
    const double error = std::fabs(double{result[e]} - exact[e]);
    errors.largest = std::max(errors.largest, error);
    if (magnitude[e] > 0) errors.relative = std::max(errors.relative, error / magnitude[e]);
  }
  return errors;
}

// The largest magnitude of each element's superblock, over all vectors.
std::vector<double> Magnitudes(const Vectors& vectors) {
  std::vector<double> magnitudes(vectors[0].size());
  for (size_t b = 0; b < magnitudes.size(); b += 256) {
    const size_t end = std::min(magnitudes.size(), b + 256);
    double largest = 0;
    for (const std::vector<float>& x : vectors) {
      for (size_t e = b; e < end; ++e) largest = std::max(largest, std::fabs(double{x[e]}));
    }
    std::fill(magnitudes.begin() + static_cast<std::ptrdiff_t>(b),
              magnitudes.begin() + static_cast<std::ptrdiff_t>(end), largest);
  }
  return magnitudes;
}

Errors ScatterErrors(const Case& c, const Vectors& inputs, const Vectors& results) {
  Errors all;
  for (size_t r = 0; r < results.size(); ++r) {
    Vectors segments;
    std::vector<double> exact(c.count);
    for (const std::vector<float>& input : inputs) {
      segments.push_back(Segment(input, r, c.count));
      for (size_t e = 0; e < c.count; ++e) exact[e] += double{segments.back()[e]};
    }
    for (double& x : exact) x /= c.options.average ? c.n : 1;
    std::vector<double> magnitudes = Magnitudes(segments);
    for (double& x : magnitudes) x *= c.n;
    const Errors errors = ErrorsOf(results[r], exact, magnitudes);
    all = {std::max(all.largest, errors.largest), std::max(all.relative, errors.relative)};
  }
  return all;
}

Errors GatherErrors(const Case& c, const Vectors& parts, const std::vector<float>& result) {
  Errors all;
  for (size_t r = 0; r < parts.size(); ++r) {
    const Errors errors = ErrorsOf(Segment(result, r, c.count), {parts[r].begin(), parts[r].end()},
                                   Magnitudes({parts[r]}));
    all = {std::max(all.largest, errors.largest), std::max(all.relative, errors.relative)};
  }
  return all;
}

double ReportedBound(HbiDriver* driver) {
  CodecStats stats;
  driver->state(0).Finish(&stats);
  return stats.error_bound;
}

TEST(HbiSegmentsBounds, ErrorBoundsHoldAndAreNotIdle) {
  Rng rng(TestSeed());
  int tight_scatters = 0, tight_gathers = 0, cases = 0;
  for (int i = 0; i < 150; ++i) {
    const Case c = RandomSegments(&rng, true);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    ++cases;
    const Vectors inputs = ScatterInputs(c, &rng);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    const Vectors results = ReduceScatterFloat(&scatter, Way::kTwoShot, 4096, inputs);
    double error = ScatterErrors(c, inputs, results).largest, bound = ReportedBound(&scatter);
    EXPECT_LE(error, bound);
    tight_scatters += error >= bound / 4 ? 1 : 0;

    const Vectors parts = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
    error = GatherErrors(c, parts, AllGatherFloat(&gather, 4096, parts)[0]).largest;
    bound = ReportedBound(&gather);
    EXPECT_LE(error, bound);
    tight_gathers += error >= bound / 4 ? 1 : 0;
  }
  EXPECT_GT(tight_scatters, cases / 5);
  EXPECT_GT(tight_gathers, cases / 3);
}

TEST(HbiSegmentsBounds, BoundsAPriori) {
  Rng rng(TestSeed());
  for (const char* spec : {"hbi:k=15,k2=31", "hbi:k=1", "hbi:k=31,k2=2,ag=exact", "hbi:bits=5",
                           "hbi:bits=8,ag=exact", "hbi:k=7,k2=7,ref=ring"}) {
    for (const int n : {2, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} n={}", spec, n));
      const Case c{.n = n, .count = 1 << 12, .kind = Kind::kGauss, .options = {}, .spec = spec};
      const double elements = static_cast<double>(c.count) * n;
      const bool ring = c.spec.find("ring") != std::string::npos;
      const bool fixed = c.spec.find("k=") != std::string::npos;
      const Vectors inputs = ScatterInputs(c, &rng);
      HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
      const Vectors results =
          ReduceScatterFloat(&scatter, ring ? Way::kRing : Way::kTwoShot, 4096, inputs);
      const Vectors parts = MakeInputs(n, c.count, c.kind, &rng);
      HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
      const std::vector<float> whole = AllGatherFloat(&gather, 4096, parts)[0];
      double bits = 0, relative = 0, any_bits = 0, any_relative = 0;
      scatter.codec().Bound(n, &any_bits, &any_relative);
      for (const Collective what : {kScatter, kGather}) {
        HbiDriver& driver = what == kScatter ? scatter : gather;
        driver.codec().Bound(what, n, &bits, &relative);
        const double sent = 8.0 * static_cast<double>(driver.data_bytes()) / (n - 1) / elements +
                            (what == kScatter ? 0.25 : 0.125);
        if (fixed) {
          EXPECT_DOUBLE_EQ(sent, bits) << Name(what);
        } else {
          EXPECT_LE(sent, bits) << Name(what);
        }
        const double error = what == kScatter ? ScatterErrors(c, inputs, results).relative
                                              : GatherErrors(c, parts, whole).relative;
        EXPECT_LE(error, relative) << Name(what);
        if (fixed) {
          EXPECT_GE(error, relative / 4) << Name(what);
        }
        // What is promised of an all-reduce holds for its halves.
        EXPECT_LE(relative, any_relative) << Name(what);
      }
    }
  }
}

TEST(HbiSegmentsBounds, StatisticsCountAllSegments) {
  // Segments of 3 superblocks and a tail. Zeros: a block in each rank's first segment, which counts
  // for nothing, and a superblock that only rank 1 has something in; a NaN in segment 1.
  constexpr size_t kCount = 3 * 256 + 40;
  Vectors inputs(2, std::vector<float>(2 * kCount, 1.0f));
  for (size_t r = 0; r < 2; ++r) {
    std::fill_n(inputs[r].begin() + 32, 32, 0.0f);
    if (r == 0) std::fill_n(inputs[r].begin() + 256, 256, -0.0f);
  }
  inputs[1][kCount + 5] = std::nanf("");
  HbiDriver scatter("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0, kScatter);
  const Vectors results = ReduceScatterFloat(&scatter, Way::kTwoShot, 256, inputs);
  const Vectors parts = {Segment(inputs[0], 0, kCount), Segment(inputs[1], 1, kCount)};
  HbiDriver gather("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0, kGather);
  AllGatherFloat(&gather, 256, parts);
  for (int r = 0; r < 2; ++r) {
    CodecStats stats;
    scatter.state(r).Finish(&stats);
    EXPECT_EQ(stats.zero_blocks, 0u);
    EXPECT_EQ(stats.poisoned_blocks, 8u);
    EXPECT_EQ(stats.dropped_superblocks, 0u);
    gather.state(r).Finish(&stats);
    EXPECT_EQ(stats.zero_blocks, 8u);
    EXPECT_EQ(stats.poisoned_blocks, 8u);
  }
  for (size_t e = 0; e < kCount; ++e) {
    EXPECT_EQ(std::isnan(results[1][e]), e < 256) << e;
    EXPECT_FALSE(std::isnan(results[0][e])) << e;
  }
}

}  // namespace
}  // namespace inccl::test
