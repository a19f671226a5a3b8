// SPDX-License-Identifier: Apache-2.0
//
// Reduce-scatter and all-gather of the codec hbi: states against the oracle in random calls, the
// bytes that travel, and what the codec promises in numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr Collective kScatter = Collective::kReduceScatter, kGather = Collective::kAllGather;

// A random call whose oracle does not take long.
Case RandomSegments(Rng* rng) {
  Case c = RandomCase(rng);
  const size_t n = static_cast<size_t>(c.n);
  c.count = std::min(c.count, std::max<size_t>(1, 250000 / n / n));
  return c;
}

// What the ranks of a reduce-scatter send: n segments.
Vectors ScatterInputs(const Case& c, Rng* rng) {
  return MakeInputs(c.n, c.count * static_cast<size_t>(c.n), c.kind, rng);
}

std::vector<float> Segment(const std::vector<float>& x, size_t segment, size_t count) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(segment * count);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

TEST(HbiSegments, RandomCallsEqualTheOracle) {
  Rng rng(TestSeed());
  const std::vector<std::string> targets = SimdTargets();
  for (int i = 0; i < 150; ++i) {
    const Case c = RandomSegments(&rng);
    SCOPED_TRACE(Describe(c));
    ASSERT_TRUE(SetSimdTarget(targets[rng.Below(targets.size())]).ok());
    SCOPED_TRACE(SimdTargetName());
    const auto slice = static_cast<uint32_t>(256 * (1 + rng.Below(20)));
    const Vectors inputs = ScatterInputs(c, &rng);
    const Vectors expected = HbiReduceScatter(inputs, c.options);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    for (const Way way : {Way::kDirect, Way::kRing}) {
      const Vectors results = ReduceScatterFloat(&scatter, way, slice, inputs);
      for (size_t r = 0; r < results.size(); ++r) {
        ASSERT_TRUE(SameBytes(results[r], expected[r]))
            << "rank " << r << " way " << static_cast<int>(way) << ", slices of " << slice;
      }
    }
    const Vectors parts = MakeInputs(c.n, c.count, c.kind, &rng);
    const std::vector<float> whole = HbiAllGather(parts, c.options);
    HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
    for (const std::vector<float>& result : AllGatherFloat(&gather, slice, parts)) {
      ASSERT_TRUE(SameBytes(result, whole)) << "slices of " << slice;
    }
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

TEST(HbiSegments, SeveralWindows) {
  Rng rng(TestSeed());
  const Case c{
      .n = 2, .count = 2 * kWindow + 12345, .kind = Kind::kScales, .options = {}, .spec = "hbi"};
  const Vectors inputs = ScatterInputs(c, &rng);
  HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
  const Vectors results = ReduceScatterFloat(&scatter, Way::kDirect, 65536, inputs);
  const Vectors expected = HbiReduceScatter(inputs, c.options);
  for (size_t r = 0; r < 2; ++r) EXPECT_TRUE(SameBytes(results[r], expected[r]));
  const Vectors parts = {Segment(inputs[0], 0, c.count), Segment(inputs[1], 1, c.count)};
  HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
  EXPECT_TRUE(SameBytes(AllGatherFloat(&gather, 65536, parts)[1], HbiAllGather(parts, c.options)));
}

// With fixed levels there is no budget, and a reduce-scatter is an exact all-reduce of each
// segment.
TEST(HbiSegments, FixedLevelsGiveTheSumOfAnExactAllReduce) {
  Rng rng(TestSeed());
  for (const int n : {2, 3, 8}) {
    HbiOptions options{.k = 7, .k2 = 7, .seed = rng.Next(), .step = 5, .exact = true};
    options.average = n == 3;
    const Case c{
        .n = n, .count = 3001, .kind = Kind::kSpecial, .options = options, .spec = "hbi:k=7"};
    const Vectors inputs = ScatterInputs(c, &rng);
    HbiDriver driver = MakeDriver(c, DataType::kFloat32, kScatter);
    const Vectors results = ReduceScatterFloat(&driver, Way::kRing, 512, inputs);
    for (size_t r = 0; r < results.size(); ++r) {
      Vectors segments;
      for (const std::vector<float>& input : inputs) {
        segments.push_back(Segment(input, r, c.count));
      }
      EXPECT_TRUE(SameBytes(results[r], HbiAllReduce(segments, options))) << n << " rank " << r;
    }
  }
}

TEST(HbiSegments, OtherTypesAndInPlace) {
  Rng rng(TestSeed());
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64, DataType::kFloat32}) {
    for (int i = 0; i < 12; ++i) {
      const Case c = RandomSegments(&rng);
      SCOPED_TRACE(Describe(c) + " " + Name(type));
      const auto n = static_cast<size_t>(c.n);
      const size_t bytes = c.count * SizeOf(type);
      const Vectors wide = ScatterInputs(c, &rng);
      std::vector<Payload> typed(n, Payload(n * bytes)), gathered = typed;
      Vectors narrow(n, std::vector<float>(n * c.count)), own(n);
      std::vector<std::byte*> in, scattered, part, all;
      for (size_t r = 0; r < n; ++r) {
        FromFloat(type, wide[r].data(), typed[r].data(), n * c.count);
        ToFloat(type, typed[r].data(), narrow[r].data(), n * c.count);
        own[r] = Segment(narrow[r], r, c.count);
        std::copy_n(typed[r].begin() + static_cast<std::ptrdiff_t>(r * bytes), bytes,
                    gathered[r].begin() + static_cast<std::ptrdiff_t>(r * bytes));
        in.push_back(typed[r].data());
        scattered.push_back(typed[r].data() + r * bytes);
        part.push_back(gathered[r].data() + r * bytes);
        all.push_back(gathered[r].data());
      }
      HbiDriver gather = MakeDriver(c, type, kGather);
      gather.RunAllGather(1024, part, all);
      Payload whole(n * bytes);
      FromFloat(type, HbiAllGather(own, c.options).data(), whole.data(), n * c.count);
      for (const Payload& result : gathered) ASSERT_EQ(result, whole);
      const Vectors expected = HbiReduceScatter(narrow, c.options);
      HbiDriver scatter = MakeDriver(c, type, kScatter);
      scatter.RunReduceScatter(rng.Below(2) == 0 ? Way::kDirect : Way::kRing, 1024, in, scattered);
      for (size_t r = 0; r < n; ++r) {
        Payload want(bytes);
        FromFloat(type, expected[r].data(), want.data(), c.count);
        ASSERT_EQ(std::memcmp(scattered[r], want.data(), bytes), 0) << "rank " << r;
      }
    }
  }
}

// ---------------------------------------------------------------- payloads

bool SameBytes(const Payload& payload, const std::vector<uint8_t>& bytes) {
  return payload.size() == bytes.size() &&
         std::memcmp(payload.data(), bytes.data(), bytes.size()) == 0;
}

TEST(HbiSegments, PayloadsAreThoseOfTheFormat) {
  Rng rng(TestSeed());
  for (int i = 0; i < 40; ++i) {
    Case c = RandomSegments(&rng);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = ScatterInputs(c, &rng);
    const std::vector<std::byte*> in = Memory(inputs);
    std::vector<HbiTrace> traces;
    HbiReduceScatter(inputs, c.options, &traces);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    scatter.Begin();
    const auto last = static_cast<uint32_t>(c.n - 1);
    for (uint32_t segment = 0; segment <= last; ++segment) {
      const Range all{segment, 0, static_cast<uint32_t>(c.count)};
      scatter.Agree(0, c.count, in, segment);
      const Payload one =
          scatter.Make(0, all, {scatter.In(0, all, in)}, HbiDriver::Sum(1), scatter.Capacity(all));
      const std::vector<uint32_t> codes =
          HbiQuantize(Segment(inputs[0], segment, c.count), 0, c.n, traces[segment], c.options);
      ASSERT_TRUE(SameBytes(one, HbiPack(codes, traces[segment].k, 1)));
    }
    Vectors parts;
    for (size_t r = 0; r < inputs.size(); ++r) parts.push_back(Segment(inputs[r], r, c.count));
    const std::vector<std::byte*> part = Memory(parts);
    HbiAllGather(parts, c.options, &traces);
    HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
    gather.Begin();
    const Range all{last, 0, static_cast<uint32_t>(c.count)};
    const int sender = c.n - 1;
    const Payload codes = gather.Make(sender, all, {gather.In(sender, all, part)}, {Form::kSide},
                                      HbiDriver::SideCapacity(all));
    ASSERT_TRUE(SameBytes(codes, traces[last].codes));
    gather.Announce(sender, all, part);
    const Payload payload = gather.Make(sender, all, {gather.In(sender, all, part)},
                                        {Form::kResult}, gather.Capacity(all));
    ASSERT_TRUE(SameBytes(payload, HbiPack(traces[last].total, traces[last].k, 1)));
  }
}

// ---------------------------------------------------------------- bits

double PlannedBits(const std::vector<HbiTrace>& traces) {
  double bits = 0;
  for (const HbiTrace& trace : traces) {
    bits = std::accumulate(trace.window_bits.begin(), trace.window_bits.end(), bits);
  }
  return bits;
}

TEST(HbiSegments, TheReferenceAlgorithmSendsWhatThePlanSays) {
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
    ReduceScatterFloat(&scatter, c.options.ring ? Way::kRing : Way::kDirect, 1024, inputs);
    double sent = 8.0 * static_cast<double>(scatter.data_bytes());
    EXPECT_EQ(sent, PlannedBits(traces));
    // The agreement takes 0.25 bits twice.
    EXPECT_LE(sent + hops * 0.5 * elements, hops * elements * bits);

    const Vectors parts = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiAllGather(parts, c.options, &traces);
    HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
    AllGatherFloat(&gather, 1024, parts);
    sent = 8.0 * static_cast<double>(gather.data_bytes());
    EXPECT_EQ(sent, hops * PlannedBits(traces));
    EXPECT_EQ(8.0 * static_cast<double>(gather.side_bytes()), hops * 0.25 * elements);
    EXPECT_LE(sent + hops * 0.25 * elements, hops * elements * bits);
  }
}

TEST(HbiSegments, TheBudgetIsUsed) {
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
      ReduceScatterFloat(&scatter, Way::kDirect, 8192, ScatterInputs(c, &rng));
      HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
      AllGatherFloat(&gather, 8192, MakeInputs(n, c.count, c.kind, &rng));
      for (const auto& [driver, codes] : {std::pair(&scatter, 0.5), std::pair(&gather, 0.25)}) {
        const double sent =
            8.0 * static_cast<double>(driver->data_bytes()) / (n - 1) / elements + codes;
        EXPECT_LE(sent, bits);
        EXPECT_GE(sent, 0.98 * bits) << n;
      }
    }
  }
}

// ---------------------------------------------------------------- errors

struct Errors {
  double largest = 0;   // |result - exact|
  double relative = 0;  // the same over the largest magnitude that the block's bound is about
};

// blocks[i]: what the bound of element i's block is relative to.
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

// The largest magnitude of each element's block, over all vectors.
std::vector<double> BlockMagnitudes(const Vectors& vectors) {
  std::vector<double> magnitudes(vectors[0].size());
  for (size_t b = 0; b < magnitudes.size(); b += 32) {
    const size_t end = std::min(magnitudes.size(), b + 32);
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
    std::vector<double> magnitudes = BlockMagnitudes(segments);
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
                                   BlockMagnitudes({parts[r]}));
    all = {std::max(all.largest, errors.largest), std::max(all.relative, errors.relative)};
  }
  return all;
}

double ReportedBound(HbiDriver* driver) {
  CodecStats stats;
  driver->state(0).Finish(&stats);
  return stats.error_bound;
}

TEST(HbiSegments, ErrorBoundsHoldAndAreNotIdle) {
  Rng rng(TestSeed());
  int tight_scatters = 0, tight_gathers = 0, cases = 0;
  for (int i = 0; i < 150; ++i) {
    const Case c = RandomSegments(&rng);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    ++cases;
    const Vectors inputs = ScatterInputs(c, &rng);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    const Vectors results = ReduceScatterFloat(&scatter, Way::kDirect, 4096, inputs);
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

TEST(HbiSegments, BoundsAPriori) {
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
          ReduceScatterFloat(&scatter, ring ? Way::kRing : Way::kDirect, 4096, inputs);
      const Vectors parts = MakeInputs(n, c.count, c.kind, &rng);
      HbiDriver gather = MakeDriver(c, DataType::kFloat32, kGather);
      const std::vector<float> whole = AllGatherFloat(&gather, 4096, parts)[0];
      double bits = 0, relative = 0, any_bits = 0, any_relative = 0;
      scatter.codec().Bound(n, &any_bits, &any_relative);
      for (const Collective what : {kScatter, kGather}) {
        HbiDriver& driver = what == kScatter ? scatter : gather;
        driver.codec().Bound(what, n, &bits, &relative);
        const double sent = 8.0 * static_cast<double>(driver.data_bytes()) / (n - 1) / elements +
                            (what == kScatter ? 0.5 : 0.25);
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

TEST(HbiSegments, StatisticsCountAllSegments) {
  // Segments of 3 superblocks and a tail. Blocks of zeros: one in each rank's first segment, a
  // superblock that only rank 1 has something in; a NaN in segment 1.
  constexpr size_t kCount = 3 * 256 + 40;
  Vectors inputs(2, std::vector<float>(2 * kCount, 1.0f));
  for (size_t r = 0; r < 2; ++r) {
    std::fill_n(inputs[r].begin() + 32, 32, 0.0f);
    if (r == 0) std::fill_n(inputs[r].begin() + 256, 256, -0.0f);
  }
  inputs[1][kCount + 5] = std::nanf("");
  HbiDriver scatter("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0, kScatter);
  const Vectors results = ReduceScatterFloat(&scatter, Way::kDirect, 256, inputs);
  const Vectors parts = {Segment(inputs[0], 0, kCount), Segment(inputs[1], 1, kCount)};
  HbiDriver gather("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0, kGather);
  AllGatherFloat(&gather, 256, parts);
  for (int r = 0; r < 2; ++r) {
    CodecStats stats;
    scatter.state(r).Finish(&stats);
    EXPECT_EQ(stats.zero_blocks, 1u);
    EXPECT_EQ(stats.poisoned_blocks, 1u);
    EXPECT_EQ(stats.dropped_superblocks, 0u);
    gather.state(r).Finish(&stats);
    EXPECT_EQ(stats.zero_blocks, 9u);
    EXPECT_EQ(stats.poisoned_blocks, 1u);
  }
  for (size_t e = 0; e < kCount; ++e) {
    EXPECT_EQ(std::isnan(results[1][e]), e < 32) << e;
    EXPECT_FALSE(std::isnan(results[0][e])) << e;
  }
}

}  // namespace
}  // namespace inccl::test
