// SPDX-License-Identifier: Apache-2.0
//
// Sums in groups of ranks. Random calls against the oracle, bytes on the wire, error bounds, and
// what the state refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

void Drop(const std::string& text, std::string* from) {
  const size_t at = from->find(text);
  if (at != std::string::npos) from->erase(at, text.size());
}

// Bits with which every option may be unbiased.
void MakeSureOfBits(Case* c) {
  if (c->options.k > 0 || !c->options.unbiased || c->options.bits8 >= 64) return;
  const size_t at = c->spec.find("bits="), end = c->spec.find(',', at);
  c->options.bits8 = 64;
  c->spec.replace(at, end - at, "bits=8");
}

Case RandomGroups(Rng* rng) {
  Case c = RandomCase(rng);
  while (c.n < 3) c = RandomCase(rng);
  c.count = std::min(c.count, 150000 / static_cast<size_t>(c.n));
  Drop(",ref=ring", &c.spec);
  Drop(",ag=exact", &c.spec);
  c.options.ring = c.options.exact = false;
  c.options.m = 2 + static_cast<int>(rng->Below(static_cast<uint64_t>(c.n)));
  c.spec += fmt::format(",m={}", c.options.m);
  MakeSureOfBits(&c);
  return c;
}

std::vector<float> RunGroups(HbiDriver* driver, const Case& c, Rng* rng, const Vectors& inputs) {
  static const uint32_t kSlices[] = {256, 1024, 4096, kWindow};
  driver->set_group(c.options.m);
  // Sums of all ranks do not come in groups.
  const bool groups = c.options.m < c.n && rng->Below(2) == 0;
  const Way way = groups ? Way::kGroups : Way::kTwoShot;
  return RunFloat(driver, way, kSlices[rng->Below(4)], inputs);
}

TEST(HbiGroups, RandomCallsEqualTheOracle) {
  Rng rng(TestSeed());
  const std::vector<std::string> targets = SimdTargets();
  for (int i = 0; i < 200; ++i) {
    Case c = RandomGroups(&rng);
    if (rng.Below(3) == 0) c.spec += ",checksum=1";
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    ASSERT_TRUE(SetSimdTarget(targets[rng.Below(targets.size())]).ok());
    SCOPED_TRACE(SimdTargetName());
    HbiDriver driver = MakeDriver(c);
    ASSERT_TRUE(SameBytes(RunGroups(&driver, c, &rng, inputs), HbiAllReduce(inputs, c.options)));
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

// Two windows, parts that do not begin where windows do.
TEST(HbiGroups, SeveralWindows) {
  Rng rng(TestSeed());
  Case c;
  c.n = 3;
  c.count = kWindow + 3000;
  c.kind = Kind::kScales;
  c.spec = "hbi:bits=5,m=2";
  c.options.bits8 = 40;
  c.options.m = 2;
  const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
  const std::vector<float> expected = HbiAllReduce(inputs, c.options);
  for (const Way way : {Way::kTwoShot, Way::kGroups}) {
    HbiDriver driver = MakeDriver(c);
    driver.set_group(c.options.m);
    ASSERT_TRUE(SameBytes(RunFloat(&driver, way, 4096, inputs), expected));
  }
}

// One group of all ranks is as none.
TEST(HbiGroups, OneGroupIsAsNone) {
  Rng rng(TestSeed());
  for (int i = 0; i < 30; ++i) {
    Case c = RandomGroups(&rng);
    Drop(fmt::format(",m={}", c.options.m), &c.spec);
    const Case plain = c;
    c.spec += fmt::format(",m={}", c.n + static_cast<int>(rng.Below(3)));
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver one = MakeDriver(c), none = MakeDriver(plain);
    ASSERT_TRUE(SameBytes(RunFloat(&one, Way::kTwoShot, 1024, inputs),
                          RunFloat(&none, Way::kTwoShot, 1024, inputs)));
    ASSERT_EQ(one.data_bytes(), none.data_bytes());
    double bits[2], error[2];
    one.codec().Bound(c.n, &bits[0], &error[0]);
    none.codec().Bound(c.n, &bits[1], &error[1]);
    EXPECT_EQ(bits[0], bits[1]);
    EXPECT_EQ(error[0], error[1]);
  }
}

TEST(HbiGroups, OtherTypesInPlace) {
  Rng rng(TestSeed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (int i = 0; i < 12; ++i) {
      Case c = RandomGroups(&rng);
      c.kind = i % 3 == 0 ? Kind::kSpecial : Kind::kGauss;
      SCOPED_TRACE(Describe(c) + " " + Name(type));
      Vectors values = MakeInputs(c.n, c.count, c.kind, &rng);
      std::vector<Payload> typed(values.size(), Payload(c.count * SizeOf(type)));
      std::vector<std::byte*> memory;
      for (size_t r = 0; r < typed.size(); ++r) {
        FromFloat(type, values[r].data(), typed[r].data(), c.count);
        ToFloat(type, typed[r].data(), values[r].data(), c.count);
        memory.push_back(typed[r].data());
      }
      Payload expected(typed[0].size());
      FromFloat(type, HbiAllReduce(values, c.options).data(), expected.data(), c.count);
      HbiDriver driver = MakeDriver(c, type);
      driver.Run(Way::kTwoShot, 1024, memory, memory);
      for (const Payload& result : typed) ASSERT_EQ(result, expected);
      CodecStats stats;
      driver.state(0).Finish(&stats);
      std::vector<float> result(c.count);
      ToFloat(type, typed[0].data(), result.data(), c.count);
      for (size_t e = 0; e < c.count; ++e) {
        double sum = 0;
        for (const std::vector<float>& x : values) sum += double{x[e]};
        if (c.options.average) sum /= c.n;
        if (!std::isfinite(result[e]) || !std::isfinite(sum)) continue;
        ASSERT_LE(std::fabs(double{result[e]} - sum), stats.error_bound);
      }
    }
  }
}

// Hops of a sum whose payloads have side words of their own.
int CodedHops(int n, const HbiOptions& options) {
  if (options.m >= n) return 0;
  return (n + options.m - 1) / options.m - 1;
}

// What travels is what was planned: fields and words, and within `bits`.
TEST(HbiGroups, BytesEqualThePlan) {
  Rng rng(TestSeed());
  for (int i = 0; i < 60; ++i) {
    Case c = RandomGroups(&rng);
    if (c.options.k > 0) continue;
    if (c.n % c.options.m == 1) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    driver.set_group(c.options.m);
    const bool groups = c.options.m < c.n;
    RunFloat(&driver, groups ? Way::kGroups : Way::kTwoShot, 1024, inputs);
    HbiTrace trace;
    HbiAllReduce(inputs, c.options, &trace);
    const double padded = static_cast<double>(trace.codes.size()) * 32;
    double fields = 0, budget = 0;
    for (const double window : trace.window_bits) fields += window;
    for (const double window : trace.window_budget) budget += window;
    const double words = 0.125 * (c.n - 1 + CodedHops(c.n, c.options)) * padded;
    ASSERT_EQ(8.0 * static_cast<double>(driver.data_bytes()), fields + words);
    // With the agreement, 0.25 over n - 1 hops, what the budget leaves is `bits` in two phases.
    ASSERT_EQ(budget + words + 0.25 * (c.n - 1) * padded,
              2 * (c.n - 1) * c.options.bits8 / 8.0 * padded);
    ASSERT_LE(fields, std::max(budget, 0.0));
    double promised = 0, relative = 0;
    driver.codec().Bound(c.n, &promised, &relative);
    EXPECT_EQ(promised, c.options.bits8 / 8.0);
  }
}

TEST(HbiGroups, BytesOfFixedLevels) {
  constexpr int kRanks = 8;
  constexpr size_t kCount = 16 * 256;
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(kRanks, kCount, Kind::kGauss, &rng);
  const struct {
    const char* spec;
    int m;
    double hops;  // bits per element over the seven hops of the sum
  } kCases[] = {
      {"hbi:k=15,k2=7,m=4", 4, 6 * 5 + 4 + 0.125},
      {"hbi:k=15,k2=7,m=3", 3, 5 * 5 + 2 * (4 + 0.125)},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.spec);
    HbiDriver driver(c.spec, kRanks, DataType::kFloat32, ReduceOp::kSum, kCount);
    driver.set_group(c.m);
    RunFloat(&driver, Way::kGroups, 1024, inputs);
    const double bits = (c.hops + 7 * (4 + 0.125)) * kCount;
    EXPECT_EQ(8.0 * static_cast<double>(driver.data_bytes()), bits);
    double promised = 0, relative = 0;
    driver.codec().Bound(kRanks, &promised, &relative);
    EXPECT_EQ(promised, (c.hops / 7 + 0.25 + 4.125) / 2);
  }
}

TEST(HbiGroups, ErrorBoundsHoldAndAreNotIdle) {
  Rng rng(TestSeed());
  int tight = 0, cases = 0;
  for (int i = 0; i < 120; ++i) {
    const Case c = RandomGroups(&rng);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    const std::vector<float> result = RunGroups(&driver, c, &rng, inputs);
    double error = 0;
    for (size_t e = 0; e < c.count; ++e) {
      double sum = 0;
      for (const std::vector<float>& x : inputs) sum += double{x[e]};
      if (!std::isfinite(result[e]) || !std::isfinite(sum)) continue;
      error = std::max(error, std::fabs(double{result[e]} - sum / (c.options.average ? c.n : 1)));
    }
    CodecStats first, stats;
    driver.state(0).Finish(&first);
    ASSERT_LE(error, first.error_bound);
    for (int r = 1; r < c.n; ++r) {  // every rank knows the same
      driver.state(r).Finish(&stats);
      ASSERT_EQ(stats.error_bound, first.error_bound);
      ASSERT_EQ(stats.dropped_superblocks, first.dropped_superblocks);
    }
    ++cases;
    if (error >= first.error_bound / (c.options.rht ? 300 : 15)) ++tight;
  }
  EXPECT_GT(tight, cases / 5);
}

TEST(HbiGroups, BoundsAPriori) {
  Rng rng(TestSeed());
  for (const char* spec : {"hbi:k=15,k2=31,m=2", "hbi:bits=6,m=3,unbiased=1", "hbi:bits=6,m=2",
                           "hbi:k=63,m=3,unbiased=1", "hbi:bits=8,m=4,rht=1"}) {
    for (const int n : {2, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} n={}", spec, n));
      constexpr size_t kCount = 1 << 13;
      const Vectors inputs = MakeInputs(n, kCount, Kind::kGauss, &rng);
      HbiDriver driver(spec, n, DataType::kFloat32, ReduceOp::kSum, kCount);
      const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 1024, inputs);
      double bits = 0, relative = 0;
      driver.codec().Bound(n, &bits, &relative);
      ASSERT_TRUE(std::isfinite(relative));
      ASSERT_NO_FATAL_FAILURE(ExpectWithinBound(result, inputs, 256, relative));
    }
  }
}

// The mean of many steps comes near the sum: no quantization on the way has a bias.
TEST(HbiGroups, UnbiasedOnTheAverage) {
  constexpr int kRanks = 6, kSteps = 256;
  constexpr size_t kCount = 4096;
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(kRanks, kCount, Kind::kGauss, &rng);
  for (const char* spec : {"hbi:bits=5,m=2,unbiased=1", "hbi:bits=4,m=3,unbiased=1"}) {
    SCOPED_TRACE(spec);
    std::vector<double> mean(kCount, 0), sum(kCount, 0);
    for (const std::vector<float>& x : inputs) {
      for (size_t e = 0; e < kCount; ++e) sum[e] += double{x[e]};
    }
    double one = 0, all = 0;
    for (int step = 1; step <= kSteps; ++step) {
      HbiDriver driver(spec, kRanks, DataType::kFloat32, ReduceOp::kSum, kCount, 0,
                       static_cast<uint64_t>(step));
      const std::vector<float> y = RunFloat(&driver, Way::kTwoShot, kWindow, inputs);
      for (size_t e = 0; e < kCount; ++e) {
        one += std::pow(double{y[e]} - sum[e], 2) / kSteps;
        mean[e] += double{y[e]} / kSteps;
      }
    }
    for (size_t e = 0; e < kCount; ++e) all += std::pow(mean[e] - sum[e], 2);
    EXPECT_LE(all, 1.3 * one / kSteps);
  }
}

// ---------------------------------------------------------------- what is refused

class HbiGroupsRefused : public testing::Test {
 protected:
  static constexpr uint32_t kCount = 1000, kSum = 4 * 32 * 4, kCoded = kSum + 4 * 4;

  void Start(const char* spec, int n) {
    n_ = n;
    inputs_.assign(static_cast<size_t>(n), std::vector<float>(kCount, 1.5f));
    in_ = Memory(inputs_);
    driver_.emplace(spec, n, DataType::kFloat32, ReduceOp::kSum, kCount);
    driver_->Begin();
    driver_->Agree(0, kCount, in_);
  }
  Term Own(int rank) { return driver_->In(rank, all_, in_); }
  Payload Sum(int rank, const std::vector<Term>& inputs, int contributions) {
    return driver_->Make(rank, all_, inputs, HbiDriver::Sum(contributions), 1 << 14);
  }
  static Term As(int contributions, Payload* payload) {
    return HbiDriver::Of(HbiDriver::Sum(contributions), payload);
  }
  void Refused(int rank, const std::vector<Term>& inputs, const Format& format, const char* part) {
    std::vector<Term> outputs = {HbiDriver::Of(format, &room_)};
    const Status status = driver_->state(rank).Combine(all_, inputs, outputs);
    ASSERT_EQ(status.code(), Code::kInternalError) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  const Range all_{0, 0, kCount};
  int n_ = 0;
  std::optional<HbiDriver> driver_;
  Vectors inputs_;
  std::vector<std::byte*> in_;
  Payload room_ = Payload(1 << 14);
};

TEST_F(HbiGroupsRefused, SumsOfGroups) {
  Start("hbi:k=7,m=2", 5);  // 0 and 1, 2 and 3, 4
  Payload one = Sum(1, {Own(1)}, 1), last = Sum(4, {Own(4)}, 1), two = Sum(2, {Own(2)}, 1);
  Payload group = Sum(3, {As(1, &two), Own(3)}, 2);
  ASSERT_EQ(one.size(), kSum);
  ASSERT_EQ(group.size(), kCoded);
  const Format result{Form::kResult};
  std::vector<Term> outputs = {HbiDriver::Of(result, &room_)};
  const std::vector<Term> right = {Own(0), As(1, &one), As(2, &group), As(1, &last)};
  ASSERT_TRUE(driver_->state(0).Combine(all_, right, outputs).ok());
  Refused(0, {Own(0), As(2, &group), As(1, &one), As(1, &last)}, result, "cannot be an input");
  Refused(0, {As(3, &group), Own(0), As(1, &last)}, result, "cannot be an input");
  Refused(0, {Own(0), As(1, &one), As(2, &group)}, result, "4 contributions of 5 ranks");
  Refused(0, {Own(0), As(1, &one), As(1, &two)}, HbiDriver::Sum(3), "in groups of 2");
  Refused(0, {Own(0), As(1, &one), As(2, &group), As(2, &group)}, result, "6 contributions");
  Refused(0, right, HbiDriver::Sum(5), "sum of 5");
  Refused(0, {Own(0), As(1, &one)}, result, "2 of 5");
  Refused(0, {Own(0), As(1, &one), As(0, &group)}, HbiDriver::Sum(2), "cannot be an input");
  Payload reserved = group;
  reserved[12] = std::byte{254};  // a top of 1224, above the last code
  reserved[13] = std::byte{200};
  Refused(0, {Own(0), As(1, &one), As(2, &reserved), As(1, &last)}, result, "invalid");
  for (const size_t bytes : {size_t{0}, size_t{512}, size_t{527}, size_t{529}}) {
    Payload wrong(bytes);
    Refused(0, {Own(0), As(1, &one), As(2, &wrong), As(1, &last)}, result, "expected 528 bytes");
  }
}

// Whatever stands in a payload of the right length: numbers, or an error that says why.
TEST_F(HbiGroupsRefused, GarbageIsHarmless) {
  Rng rng(TestSeed());
  int taken = 0;
  Start("hbi:k=7,m=2", 5);
  Payload one = Sum(0, {Own(0)}, 1);
  for (int round = 0; round < 600; ++round) {
    Payload garbage(kCoded);
    for (std::byte& b : garbage) b = static_cast<std::byte>(rng.Below(256));
    const int low = static_cast<int>(rng.Below(3) == 0 ? 0 : 150);
    for (size_t s = 0; s < 4; ++s) {
      garbage[4 * s] = static_cast<std::byte>(low + rng.Below(96));
      if (rng.Below(8) != 0) garbage[4 * s + 1] &= std::byte{0xf8};
    }
    const std::vector<Term> inputs = {As(2, &garbage), Own(2), As(1, &one), As(1, &one)};
    std::vector<Term> outputs = {HbiDriver::Of({Form::kOutput}, &room_)};
    const Status status = driver_->state(2).Combine(all_, inputs, outputs);
    ASSERT_EQ(status.ok(), status.message().empty());
    taken += status.ok() ? 1 : 0;
  }
  EXPECT_GT(taken, 100);
}

TEST_F(HbiGroupsRefused, NoFlippedBitGetsThroughAChecksum) {
  Rng rng(TestSeed());
  Start("hbi:k=3,m=2,checksum=1", 5);
  Payload one = Sum(0, {Own(0)}, 1), group = Sum(1, {As(1, &one), Own(1)}, 2);
  for (int round = 0; round < 400; ++round) {
    Payload damaged = group;
    damaged[rng.Below(damaged.size())] ^= static_cast<std::byte>(1 << rng.Below(8));
    Refused(2, {As(2, &damaged), Own(2), As(1, &one), As(1, &one)}, {Form::kOutput}, "checksum");
  }
}

}  // namespace
}  // namespace inccl::test
