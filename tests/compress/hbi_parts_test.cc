// SPDX-License-Identifier: Apache-2.0
//
// Policies D and R: payloads with their sender's own scales. Random calls against the oracle,
// sizes, error bounds, and what the state refuses.
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

Case RandomParts(Rng* rng) {
  Case c = RandomCase(rng);
  const size_t n = static_cast<size_t>(c.n);
  c.count = std::min(c.count, 200000 / n);
  c.options.policy = rng->Below(2) == 0 ? HbiPolicy::kD : HbiPolicy::kR;
  c.options.ring = c.options.exact = false;
  c.spec.erase(
      c.spec.find(",ref=ring") == std::string::npos ? c.spec.size() : c.spec.find(",ref=ring"), 9);
  c.spec.erase(
      c.spec.find(",ag=exact") == std::string::npos ? c.spec.size() : c.spec.find(",ag=exact"), 9);
  c.spec += c.options.policy == HbiPolicy::kD ? ",policy=d" : ",policy=r";
  return c;
}

Way WayOf(const Case& c) { return c.options.policy == HbiPolicy::kD ? Way::kTwoShot : Way::kRing; }

TEST(HbiParts, RandomCallsEqualTheOracle) {
  Rng rng(TestSeed());
  const std::vector<std::string> targets = SimdTargets();
  for (int i = 0; i < 150; ++i) {
    Case c = RandomParts(&rng);
    if (rng.Below(3) == 0) c.spec += ",checksum=1";
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    ASSERT_TRUE(SetSimdTarget(targets[rng.Below(targets.size())]).ok());
    SCOPED_TRACE(SimdTargetName());
    HbiDriver driver = MakeDriver(c);
    ASSERT_TRUE(SameBytes(RunFloat(&driver, WayOf(c), 0, inputs), HbiAllReduce(inputs, c.options)));
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

TEST(HbiParts, OtherTypesInPlace) {
  Rng rng(TestSeed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (int i = 0; i < 12; ++i) {
      const Case c = RandomParts(&rng);
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
      driver.Run(WayOf(c), 0, memory, memory);
      for (const Payload& result : typed) ASSERT_EQ(result, expected);
    }
  }
}

// A window in one go, as small calls do it: the payloads of its parts one after the other.
TEST(HbiParts, AWholeWindowAtOnce) {
  Rng rng(TestSeed());
  for (int i = 0; i < 20; ++i) {
    Case c = RandomParts(&rng);
    if (c.options.policy != HbiPolicy::kD) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    driver.Begin();
    const std::vector<std::byte*> in = Memory(inputs);
    const Range all{0, 0, static_cast<uint32_t>(c.count)};
    std::vector<Payload> sent;
    for (int r = 0; r < c.n; ++r) {
      sent.push_back(
          driver.Make(r, all, {driver.In(r, all, in)}, HbiDriver::Sum(1), driver.Capacity(all)));
    }
    for (const int r : {0, c.n - 1}) {
      std::vector<Term> terms;
      for (int q = 0; q < c.n; ++q) {
        terms.push_back(q == r ? driver.In(r, all, in)
                               : HbiDriver::Of(HbiDriver::Sum(1), &sent[static_cast<size_t>(q)]));
      }
      const Payload y = driver.Make(r, all, terms, {Form::kOutput}, c.count * sizeof(float));
      std::vector<float> result(c.count);
      std::memcpy(result.data(), y.data(), y.size());
      ASSERT_TRUE(SameBytes(result, HbiAllReduce(inputs, c.options)));
    }
  }
}

// Payloads have one size whatever is in them: `bits`, and 16 bytes for each part.
TEST(HbiParts, SizesAreFixed) {
  Rng rng(TestSeed());
  for (const char* policy : {"d", "r"}) {
    for (const double bits : {2.0, 4.0, 5.125, 6.0, 16.0}) {
      for (const Kind kind : {Kind::kGauss, Kind::kZero, Kind::kSpecial}) {
        constexpr size_t kCount = 40 * 256;
        constexpr int kRanks = 4;
        const Case c{.n = kRanks,
                     .count = kCount,
                     .kind = kind,
                     .options = {.policy = *policy == 'd' ? HbiPolicy::kD : HbiPolicy::kR},
                     .spec = fmt::format("hbi:bits={},policy={}", bits, policy)};
        HbiDriver driver = MakeDriver(c);
        RunFloat(&driver, WayOf(c), 0, MakeInputs(kRanks, kCount, kind, &rng));
        // Every element's payload travels to n - 1 ranks in both phases.
        const double sent = 8.0 * static_cast<double>(driver.data_bytes() - 2 * 3 * kRanks * 16);
        EXPECT_EQ(sent, 2 * (kRanks - 1) * bits * kCount);
        double promised = 0, relative = 0;
        driver.codec().Bound(kRanks, &promised, &relative);
        EXPECT_EQ(promised, bits);
      }
    }
  }
}

TEST(HbiParts, ErrorBoundsHoldAndAreNotIdle) {
  Rng rng(TestSeed());
  int tight = 0, cases = 0;
  for (int i = 0; i < 120; ++i) {
    Case c = RandomParts(&rng);
    if (c.n > 8) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    const std::vector<float> result = RunFloat(&driver, WayOf(c), 0, inputs);
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
      ASSERT_EQ(stats.zero_blocks, first.zero_blocks);
      ASSERT_EQ(stats.poisoned_blocks, first.poisoned_blocks);
      ASSERT_EQ(stats.dropped_superblocks, first.dropped_superblocks);
    }
    ++cases;
    if (error >= first.error_bound / (c.options.rht ? 200 : 10)) ++tight;
  }
  EXPECT_GT(tight, cases / 5);
}

TEST(HbiParts, BoundsAPriori) {
  Rng rng(TestSeed());
  for (const char* spec :
       {"hbi:k=15,k2=31,policy=d", "hbi:bits=6,policy=d,unbiased=1", "hbi:bits=6,policy=r",
        "hbi:k=63,policy=r", "hbi:bits=5,policy=d,rht=1"}) {
    for (const int n : {2, 5}) {
      SCOPED_TRACE(fmt::format("{} n={}", spec, n));
      constexpr size_t kCount = 1 << 13;
      const Vectors inputs = MakeInputs(n, kCount, Kind::kGauss, &rng);
      HbiDriver driver(spec, n, DataType::kFloat32, ReduceOp::kSum, kCount);
      const bool ring = std::string(spec).find("policy=r") != std::string::npos;
      const std::vector<float> result =
          RunFloat(&driver, ring ? Way::kRing : Way::kTwoShot, 0, inputs);
      double bits = 0, relative = 0;
      driver.codec().Bound(n, &bits, &relative);
      ASSERT_TRUE(std::isfinite(relative));
      ASSERT_NO_FATAL_FAILURE(ExpectWithinBound(result, inputs, 32, relative));
    }
  }
}

TEST(HbiParts, StatisticsCount) {
  constexpr size_t kCount = 12 * 256;
  Vectors inputs(2, std::vector<float>(kCount, 1.0f));
  for (std::vector<float>& x : inputs) {
    std::fill(x.begin() + 256, x.begin() + 512, 0.0f);
    std::fill(x.begin() + 768, x.begin() + 1024, 1e-9f);
  }
  inputs[1][512 + 70] = std::numeric_limits<float>::infinity();
  HbiDriver driver("hbi:bits=2.5,policy=d", 2, DataType::kFloat32, ReduceOp::kSum, kCount);
  const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 0, inputs);
  CodecStats stats;
  driver.state(0).Finish(&stats);
  EXPECT_EQ(stats.poisoned_blocks, 1u);
  EXPECT_GE(stats.zero_blocks, 8u);
  EXPECT_GE(stats.dropped_superblocks, 2u);  // by each sender
  EXPECT_TRUE(std::isnan(result[512 + 70]));
}

// Bounds of results that were rounded to a narrower type, or converted from a wider one.
TEST(HbiParts, ErrorBoundsOfOtherTypesHold) {
  Rng rng(TestSeed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    int finite = 0;
    for (int i = 0; i < 10; ++i) {
      Case c = RandomParts(&rng);
      c.kind = Kind::kGauss;
      SCOPED_TRACE(Describe(c) + " " + Name(type));
      Vectors values = MakeInputs(c.n, c.count, c.kind, &rng);
      std::vector<Payload> typed(values.size(), Payload(c.count * SizeOf(type)));
      std::vector<std::byte*> memory;
      for (size_t r = 0; r < typed.size(); ++r) {
        FromFloat(type, values[r].data(), typed[r].data(), c.count);
        ToFloat(type, typed[r].data(), values[r].data(), c.count);
        memory.push_back(typed[r].data());
      }
      HbiDriver driver = MakeDriver(c, type);
      driver.Run(WayOf(c), 0, memory, memory);
      std::vector<float> result(c.count);
      ToFloat(type, typed[0].data(), result.data(), c.count);
      CodecStats stats;
      driver.state(0).Finish(&stats);
      // What many ranks rotate and round again may, at its worst, be more than fp16 holds.
      EXPECT_TRUE(std::isfinite(stats.error_bound) || type == DataType::kFloat16);
      finite += std::isfinite(stats.error_bound) ? 1 : 0;
      for (size_t e = 0; e < c.count; ++e) {
        double sum = 0;
        for (const std::vector<float>& x : values) sum += double{x[e]};
        if (c.options.average) sum /= c.n;
        ASSERT_LE(std::fabs(double{result[e]} - sum), stats.error_bound);
      }
    }
    EXPECT_GT(finite, 5) << Name(type);
  }
}

// ---------------------------------------------------------------- what is refused

class HbiPartsRefused : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kCount = 2000;  // 8 superblocks: 3, 3 and 2 for three ranks
  HbiPartsRefused()
      : driver_(fmt::format("hbi:policy={}", GetParam()), 3, DataType::kFloat32, ReduceOp::kSum,
                kCount),
        inputs_(3, std::vector<float>(kCount, 1.5f)),
        in_(Memory(inputs_)) {
    driver_.Begin();
  }
  void Refused(const Range& range, const std::vector<Term>& inputs, std::vector<Term> outputs,
               const char* part) {
    const Status status = driver_.state(0).Combine(range, inputs, outputs);
    ASSERT_EQ(status.code(), Code::kInternalError) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  const Range part_{0, 0, 768};
  HbiDriver driver_;
  Vectors inputs_;
  std::vector<std::byte*> in_;
  Payload room_ = Payload(1 << 14);
};

TEST_P(HbiPartsRefused, RangesThatAreNoParts) {
  for (const Range range :
       {Range{0, 0, 256}, Range{0, 256, 512}, Range{0, 0, 1024}, Range{0, 768, 1233},
        Range{1, 0, 768}, Range{0, 0, 0}, Range{0, UINT64_MAX - 255, 256}}) {
    const Term input{{Form::kInput}, in_[0], range.count * 4};
    Refused(range, {input}, {HbiDriver::Of(HbiDriver::Sum(1), &room_)}, "whole parts");
  }
}

TEST_P(HbiPartsRefused, FormatsAndLengths) {
  constexpr size_t kBytes = 3 * 192 + 16;
  const Term own = driver_.In(0, part_, in_);
  Payload sum = driver_.Make(1, part_, {driver_.In(1, part_, in_)}, HbiDriver::Sum(1), 4096);
  ASSERT_EQ(sum.size(), kBytes);
  const Term good = HbiDriver::Of(HbiDriver::Sum(1), &sum);
  const auto to = [&](const Format& format) {
    return std::vector<Term>{HbiDriver::Of(format, &room_)};
  };
  for (const uint32_t bytes : {0u, 1u, 575u, 591u, 593u}) {
    Term wrong = good;
    wrong.bytes = bytes;
    Payload copy(sum.begin(), sum.begin() + std::min<size_t>(bytes, kBytes));
    if (bytes <= kBytes) wrong.data = copy.data();
    Refused(part_, {wrong, good, own}, to({Form::kResult}), "592");
    wrong.format = {Form::kResult};
    Refused(part_, {wrong}, to({Form::kOutput}), "592");
  }
  Refused(part_, {}, to(HbiDriver::Sum(1)), "0 inputs");
  Refused(part_, {own}, {}, "0 outputs");
  Refused(part_, {own, own}, to({Form::kResult}), "2 of 3");
  Refused(part_, {own, own, own, own}, to({Form::kResult}), "4 contributions");
  Refused(part_, {own}, to(HbiDriver::Sum(2)), "sum of 2");
  Refused(part_, {own}, to({Form::kSide}), "side");
  Refused(part_, {HbiDriver::Of({Form::kSide}, &sum)}, to(HbiDriver::Sum(1)), "side");
  Payload small(kBytes - 1);
  Refused(part_, {own}, {HbiDriver::Of(HbiDriver::Sum(1), &small)}, "room for 591");
  Term shorter = own;
  shorter.bytes -= 1;
  Refused(part_, {shorter}, to(HbiDriver::Sum(1)), "3071 bytes");
  Payload reserved = sum;
  reserved[3] = std::byte{250};
  Refused(part_, {good, HbiDriver::Of(HbiDriver::Sum(1), &reserved), own}, to({Form::kResult}),
          "reserved");
  Payload claim = sum;
  const double wrong_error = -1;
  std::memcpy(claim.data() + 576, &wrong_error, sizeof wrong_error);
  Refused(part_, {good, HbiDriver::Of(HbiDriver::Sum(1), &claim), own}, to({Form::kResult}),
          "error of -1");
}

// Whatever stands in a payload of the right length: numbers, or an error.
TEST_P(HbiPartsRefused, GarbageIsHarmless) {
  Rng rng(TestSeed());
  for (int round = 0; round < 300; ++round) {
    Payload garbage(3 * 192 + 16);
    for (std::byte& b : garbage) b = static_cast<std::byte>(rng.Below(246));
    std::vector<Term> outputs = {HbiDriver::Of({Form::kOutput}, &room_)};
    const Term term = HbiDriver::Of({Form::kResult}, &garbage);
    const Status status = driver_.state(0).Combine(part_, {&term, 1}, outputs);
    if (!status.ok()) {
      EXPECT_NE(status.message().find("error of"), std::string::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, HbiPartsRefused, testing::Values("d", "r"),
                         [](const auto& policy) { return std::string(policy.param); });

TEST(HbiParts, NoFlippedBitGetsThroughAChecksum) {
  constexpr uint32_t kCount = 300;
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(2, kCount, Kind::kGauss, &rng);
  HbiDriver driver("hbi:policy=d,checksum=1", 2, DataType::kFloat32, ReduceOp::kSum, kCount);
  driver.Begin();
  const std::vector<std::byte*> in = Memory(inputs);
  const Range all{0, 0, kCount};
  Payload sum = driver.Make(0, all, {driver.In(0, all, in)}, HbiDriver::Sum(1), 4096);
  Payload result =
      driver.Make(1, all, {HbiDriver::Of(HbiDriver::Sum(1), &sum), driver.In(1, all, in)},
                  {Form::kResult}, 4096);
  Payload room(4096);
  const auto take = [&](Form form) {
    std::vector<Term> inputs_of = {form == Form::kSum ? HbiDriver::Of(HbiDriver::Sum(1), &sum)
                                                      : HbiDriver::Of({form}, &result)};
    if (form == Form::kSum) inputs_of.push_back(driver.In(1, all, in));
    std::vector<Term> outputs = {HbiDriver::Of({Form::kOutput}, &room)};
    return driver.state(1).Combine(all, inputs_of, outputs);
  };
  for (const Form form : {Form::kSum, Form::kResult}) {
    ASSERT_TRUE(take(form).ok());
    Payload& payload = form == Form::kSum ? sum : result;
    for (size_t bit = 0; bit < 8 * payload.size(); ++bit) {
      payload[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      const Status status = take(form);
      payload[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      ASSERT_NE(status.message().find("checksum"), std::string::npos) << "bit " << bit;
    }
  }
}

}  // namespace
}  // namespace inccl::test
