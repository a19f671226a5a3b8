// SPDX-License-Identifier: Apache-2.0
//
// The codec's states against the oracle: random calls through three algorithms' folds, every type,
// every way to group contributions.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(HbiState, RandomCallsEqualTheOracle) {
  Rng rng(TestSeed());
  const std::vector<std::string> targets = SimdTargets();
  for (int i = 0; i < 250; ++i) {
    Case c = RandomCase(&rng, true);
    if (rng.Below(3) == 0) c.spec += ",checksum=1";
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    const std::vector<float> expected = HbiAllReduce(inputs, c.options);
    ASSERT_TRUE(SetSimdTarget(targets[rng.Below(targets.size())]).ok());
    SCOPED_TRACE(SimdTargetName());
    HbiDriver driver = MakeDriver(c);
    const bool power_of_two = (c.n & (c.n - 1)) == 0;
    for (const Way way : {Way::kTwoShot, Way::kRing, Way::kDoubling}) {
      if (way == Way::kDoubling && !power_of_two) continue;
      const auto slice = static_cast<uint32_t>(256 * (1 + rng.Below(20)));
      ASSERT_TRUE(SameBytes(RunFloat(&driver, way, slice, inputs), expected))
          << "way " << static_cast<int>(way) << ", slices of " << slice;
    }
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

TEST(HbiState, SeveralWindows) {
  Rng rng(TestSeed());
  Case c{.n = 2, .count = 2 * kWindow + 12345, .kind = Kind::kScales, .options = {}, .spec = "hbi"};
  const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
  HbiDriver driver = MakeDriver(c);
  EXPECT_TRUE(
      SameBytes(RunFloat(&driver, Way::kRing, 65536, inputs), HbiAllReduce(inputs, c.options)));
}

// Elements of another type: inputs are what the type can hold, the result is the oracle's, rounded
// to the type once.
TEST(HbiState, OtherTypes) {
  Rng rng(TestSeed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (int i = 0; i < 20; ++i) {
      Case c = RandomCase(&rng, true);
      SCOPED_TRACE(Describe(c) + " " + Name(type));
      const Vectors wide = MakeInputs(c.n, c.count, c.kind, &rng);
      const size_t bytes = c.count * SizeOf(type);
      std::vector<Payload> typed(static_cast<size_t>(c.n), Payload(bytes)), results = typed;
      Vectors narrow(typed.size(), std::vector<float>(c.count));
      std::vector<std::byte*> in, out;
      for (size_t r = 0; r < typed.size(); ++r) {
        FromFloat(type, wide[r].data(), typed[r].data(), c.count);
        ToFloat(type, typed[r].data(), narrow[r].data(), c.count);
        in.push_back(typed[r].data());
        out.push_back(results[r].data());
      }
      if (type == DataType::kFloat64) {
        EXPECT_TRUE(SameBytes(narrow[0], wide[0]));
        // Beyond fp32 is not finite here.
        const double beyond = 1e300;
        std::memcpy(typed[0].data(), &beyond, sizeof beyond);
        narrow[0][0] = std::numeric_limits<float>::infinity();
      }
      Payload expected(bytes);
      FromFloat(type, HbiAllReduce(narrow, c.options).data(), expected.data(), c.count);
      HbiDriver driver = MakeDriver(c, type);
      driver.Run(rng.Below(2) == 0 ? Way::kTwoShot : Way::kRing, 1024, in, out);
      for (const Payload& result : results) ASSERT_EQ(result, expected);
    }
  }
}

// docs/format.md, "Types": one NaN for each type, whatever poisons the superblock, in all of it.
TEST(HbiState, BitsOfNan) {
  constexpr size_t kCount = 700;
  const struct {
    DataType type;
    uint64_t bits;
  } kNans[] = {{DataType::kFloat32, 0x7fc00000},
               {DataType::kFloat16, 0x7e00},
               {DataType::kBfloat16, 0x7fc0},
               {DataType::kFloat64, 0x7ff8000000000000}};
  const uint32_t kPoisons[] = {0xffc12345, 0x7f800001, 0x7f800000, 0xff800000};
  Rng rng(TestSeed());
  for (const std::string& target : SimdTargets()) {
    ASSERT_TRUE(SetSimdTarget(target).ok());
    for (const auto& nan : kNans) {
      for (const char* spec : {"hbi:bits=6", "hbi:bits=6,ag=exact", "hbi:k=7,rht=1", "hbi:m=2"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", target, Name(nan.type), spec));
        Vectors inputs = MakeInputs(3, kCount, Kind::kGauss, &rng);
        const auto poison = std::bit_cast<float>(kPoisons[rng.Below(4)]);
        inputs[rng.Below(3)][256 + rng.Below(256)] = poison;
        const size_t size = SizeOf(nan.type);
        std::vector<Payload> typed(3, Payload(kCount * size)), results = typed;
        std::vector<std::byte*> in, out;
        for (size_t r = 0; r < 3; ++r) {
          FromFloat(nan.type, inputs[r].data(), typed[r].data(), kCount);
          in.push_back(typed[r].data());
          out.push_back(results[r].data());
        }
        HbiDriver driver(spec, 3, nan.type, rng.Below(2) == 0 ? ReduceOp::kSum : ReduceOp::kAvg,
                         kCount);
        driver.Run(Way::kTwoShot, 1024, in, out);
        for (const Payload& result : results) {
          for (size_t e = 0; e < kCount; ++e) {
            uint64_t bits = 0;
            std::memcpy(&bits, result.data() + e * size, size);
            const bool poisoned = e >= 256 && e < 512;
            ASSERT_EQ(bits == nan.bits, poisoned) << e << ": " << std::hex << bits;
          }
        }
      }
    }
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

TEST(HbiState, InPlace) {
  Rng rng(TestSeed());
  for (int i = 0; i < 20; ++i) {
    const Case c = RandomCase(&rng);
    SCOPED_TRACE(Describe(c));
    Vectors vectors = MakeInputs(c.n, c.count, c.kind, &rng);
    const std::vector<float> expected = HbiAllReduce(vectors, c.options);
    std::vector<std::byte*> memory;
    for (std::vector<float>& x : vectors) memory.push_back(reinterpret_cast<std::byte*>(x.data()));
    HbiDriver driver = MakeDriver(c);
    driver.Run(Way::kRing, 2048, memory, memory);
    for (const std::vector<float>& x : vectors) ASSERT_TRUE(SameBytes(x, expected));
  }
}

TEST(HbiState, ElementsThatAreZeroOnAllRanksAreExactlyPlusZero) {
  Rng rng(TestSeed());
  for (const char* spec : {"hbi:bits=4", "hbi:bits=8,ag=exact", "hbi:k=1", "hbi:k=4,k2=2"}) {
    Vectors inputs = MakeInputs(4, 5000, Kind::kGauss, &rng);
    for (size_t e = 0; e < 5000; e += 3) {
      for (std::vector<float>& x : inputs) x[e] = rng.Below(2) == 0 ? 0.0f : -0.0f;
    }
    HbiDriver driver(spec, 4, DataType::kFloat32, ReduceOp::kSum, 5000);
    const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 1024, inputs);
    for (size_t e = 0; e < 5000; e += 3) {
      ASSERT_EQ(std::bit_cast<uint32_t>(result[e]), 0u) << spec << " at " << e;
    }
  }
}

// ---------------------------------------------------------------- payloads

Payload PackedSum(const Vectors& inputs, const std::set<int>& ranks, const HbiTrace& trace,
                  const HbiOptions& options) {
  std::vector<uint32_t> total(trace.total.size());
  for (const int r : ranks) {
    const std::vector<uint32_t> codes = HbiQuantize(
        inputs[static_cast<size_t>(r)], r, static_cast<int>(inputs.size()), trace, options);
    for (size_t e = 0; e < total.size(); ++e) total[e] += codes[e];
  }
  const std::vector<uint8_t> packed = HbiPack(total, trace.k, static_cast<int>(ranks.size()));
  Payload payload;
  for (const uint8_t byte : packed) payload.push_back(std::byte{byte});
  return payload;
}

TEST(HbiState, ContributionsMayBeGroupedInAnyWay) {
  Rng rng(TestSeed());
  for (int i = 0; i < 60; ++i) {
    Case c = RandomCase(&rng);
    if (c.n > 16 || c.count > 6000) continue;
    SCOPED_TRACE(Describe(c));
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiTrace trace;
    HbiAllReduce(inputs, c.options, &trace);
    HbiDriver driver = MakeDriver(c);
    driver.Begin();
    const std::vector<std::byte*> in = Memory(inputs);
    driver.Agree(0, c.count, in);
    const Range all{0, 0, static_cast<uint32_t>(c.count)};
    // Partial sums that still have to meet, and who is in them.
    struct Partial {
      Payload payload;
      std::set<int> ranks;
    };
    std::vector<Partial> partials;
    std::vector<int> waiting(static_cast<size_t>(c.n));
    std::iota(waiting.begin(), waiting.end(), 0);
    while (!waiting.empty() || partials.size() > 1) {
      // Some rank takes a few partial sums and perhaps its own contribution, in any order.
      std::vector<Partial> taken;
      for (uint64_t take = rng.Below(4); take > 0 && !partials.empty(); --take) {
        const size_t which = rng.Below(partials.size());
        taken.push_back(std::move(partials[which]));
        partials.erase(partials.begin() + static_cast<std::ptrdiff_t>(which));
      }
      int rank = static_cast<int>(rng.Below(static_cast<uint64_t>(c.n)));
      std::vector<Term> terms;
      std::set<int> ranks;
      for (Partial& partial : taken) {
        const auto h = static_cast<int>(partial.ranks.size());
        terms.push_back(HbiDriver::Of(HbiDriver::Sum(h), &partial.payload));
        ranks.insert(partial.ranks.begin(), partial.ranks.end());
      }
      if (!waiting.empty() && (terms.empty() || rng.Below(2) == 0)) {
        rank = waiting.back();
        waiting.pop_back();
        terms.insert(terms.begin() + static_cast<std::ptrdiff_t>(rng.Below(terms.size() + 1)),
                     driver.In(rank, all, in));
        ranks.insert(rank);
      }
      if (terms.empty()) continue;
      // Two lanes get the same bytes.
      const auto h = static_cast<int>(ranks.size());
      Payload first(driver.Capacity(all)), second = first;
      Term outputs[2] = {HbiDriver::Of(HbiDriver::Sum(h), &first),
                         HbiDriver::Of(HbiDriver::Sum(h), &second)};
      const Status status = driver.state(rank).Combine(all, terms, outputs);
      ASSERT_TRUE(status.ok()) << status.message();
      first.resize(outputs[0].bytes);
      second.resize(outputs[1].bytes);
      ASSERT_EQ(first, second);
      ASSERT_EQ(first, PackedSum(inputs, ranks, trace, c.options)) << h << " contributions";
      partials.push_back({std::move(first), std::move(ranks)});
    }
  }
}

TEST(HbiState, SumResultAndOutputFromOneFold) {
  Rng rng(TestSeed());
  for (const char* spec : {"hbi", "hbi:ag=exact"}) {
    const Case c{.n = 3, .count = 3000, .kind = Kind::kSpecial, .options = {}, .spec = spec};
    const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
    HbiDriver driver = MakeDriver(c);
    driver.Begin();
    const std::vector<std::byte*> in = Memory(inputs);
    driver.Agree(0, c.count, in);
    const Range all{0, 0, static_cast<uint32_t>(c.count)};
    Payload sums[2];
    for (int r = 0; r < 2; ++r) {
      sums[r] = driver.Make(r, all, {driver.In(r, all, in)}, HbiDriver::Sum(1), 8192);
    }
    const std::vector<Term> terms = {HbiDriver::Of(HbiDriver::Sum(1), &sums[0]),
                                     driver.In(2, all, in),
                                     HbiDriver::Of(HbiDriver::Sum(1), &sums[1])};
    Payload sum(8192), result(8192), again(8192), elements(12000), other(12000);
    std::vector<Term> outputs = {
        HbiDriver::Of({Form::kOutput}, &elements), HbiDriver::Of(HbiDriver::Sum(3), &sum),
        HbiDriver::Of({Form::kResult}, &result), HbiDriver::Of({Form::kOutput}, &other),
        HbiDriver::Of({Form::kResult}, &again)};
    const Status status = driver.state(2).Combine(all, terms, outputs);
    ASSERT_TRUE(status.ok()) << status.message();
    sum.resize(outputs[1].bytes);
    result.resize(outputs[2].bytes);
    again.resize(outputs[4].bytes);
    EXPECT_EQ(elements, other);
    EXPECT_EQ(result, again);
    // The sum alone leads to the same result and the same elements; so does the result.
    EXPECT_EQ(driver.Make(0, all, {HbiDriver::Of(HbiDriver::Sum(3), &sum)}, {Form::kResult}, 8192),
              result);
    EXPECT_EQ(driver.Make(0, all, {HbiDriver::Of(HbiDriver::Sum(3), &sum)}, {Form::kOutput}, 12000),
              elements);
    EXPECT_EQ(
        driver.Make(1, all, {HbiDriver::Of({Form::kResult}, &result)}, {Form::kOutput}, 12000),
        elements);
  }
}

TEST(HbiState, WordsMergeInAnyOrder) {
  Rng rng(TestSeed());
  const Case c{.n = 4, .count = 2500, .kind = Kind::kSpecial, .options = {}, .spec = "hbi"};
  const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
  HbiTrace trace;
  HbiAllReduce(inputs, c.options, &trace);
  HbiDriver driver = MakeDriver(c);
  driver.Begin();
  const std::vector<std::byte*> in = Memory(inputs);
  const Range all{0, 0, static_cast<uint32_t>(c.count)};
  const Format side{Form::kSide};
  const size_t bytes = HbiDriver::SideCapacity(all);
  ASSERT_EQ(bytes, trace.codes.size() / 2);
  std::vector<uint32_t> words;
  for (size_t b = 0; b < trace.codes.size(); b += 8) words.push_back(HbiWord(&trace.codes[b]));
  std::vector<Payload> own;
  for (int r = 0; r < 4; ++r) {
    own.push_back(driver.Make(r, all, {driver.In(r, all, in)}, side, bytes));
  }
  const auto agreed = [&](const Payload& payload) {
    return std::memcmp(payload.data(), words.data(), bytes) == 0;
  };
  EXPECT_FALSE(agreed(own[0]));
  EXPECT_TRUE(agreed(driver.Make(2, all,
                                 {HbiDriver::Of(side, &own[0]), HbiDriver::Of(side, &own[1]),
                                  driver.In(2, all, in), HbiDriver::Of(side, &own[3])},
                                 side, bytes)));
  EXPECT_TRUE(agreed(driver.Make(0, all,
                                 {driver.In(0, all, in), HbiDriver::Of(side, &own[1]),
                                  HbiDriver::Of(side, &own[2]), HbiDriver::Of(side, &own[3])},
                                 side, bytes)));
  EXPECT_TRUE(agreed(driver.Make(1, all,
                                 {HbiDriver::Of(side, &own[0]), HbiDriver::Of(side, &own[1]),
                                  HbiDriver::Of(side, &own[2]), HbiDriver::Of(side, &own[3])},
                                 side, bytes)));
  EXPECT_EQ(driver.Make(1, all, {HbiDriver::Of(side, &own[3])}, side, bytes), own[3]);
}

// In a one-shot agreement a rank whose peers are faster may have all of their words before it has
// sent its own.
TEST(HbiState, OwnWordsMayBeSentAfterTheAgreement) {
  Rng rng(TestSeed());
  const Case c{.n = 2, .count = 2500, .kind = Kind::kSpecial, .options = {}, .spec = "hbi"};
  const Vectors inputs = MakeInputs(c.n, c.count, c.kind, &rng);
  const std::vector<std::byte*> in = Memory(inputs);
  const Range all{0, 0, static_cast<uint32_t>(c.count)};
  const Format side{Form::kSide};
  const size_t bytes = HbiDriver::SideCapacity(all);
  std::vector<Payload> sums;  // of both orders
  for (const bool late : {false, true}) {
    HbiDriver driver = MakeDriver(c);
    driver.Begin();
    Payload theirs = driver.Make(1, all, {driver.In(1, all, in)}, side, bytes);
    Payload own;
    if (!late) own = driver.Make(0, all, {driver.In(0, all, in)}, side, bytes);
    std::vector<Term> agreed = {{side, nullptr, 0}};
    const std::vector<Term> terms = {driver.In(0, all, in), HbiDriver::Of(side, &theirs)};
    ASSERT_TRUE(driver.state(0).Combine(all, terms, agreed).ok());
    if (late) own = driver.Make(0, all, {driver.In(0, all, in)}, side, bytes);
    EXPECT_NE(own, theirs);
    sums.push_back(driver.Make(0, all, {driver.In(0, all, in)}, HbiDriver::Sum(1),
                               driver.codec().MaxBytes(DataType::kFloat32, c.n, all.count)));
  }
  EXPECT_EQ(sums[0], sums[1]) << "own words have taken the place of the agreed ones";
}

// A hint, which ranks need not agree on: payloads get shorter, results stay as they are.
TEST(HbiShortened, PayloadsChangeNoResult) {
  Rng rng(TestSeed());
  const auto results = [](HbiDriver* driver, Collective collective, const Vectors& inputs) {
    if (collective == Collective::kAllGather) return AllGatherFloat(driver, 4096, inputs);
    if (collective == Collective::kReduceScatter) {
      return ReduceScatterFloat(driver, Way::kTwoShot, 4096, inputs);
    }
    return Vectors{RunFloat(driver, Way::kTwoShot, 4096, inputs)};
  };
  for (const char* spec :
       {"hbi", "hbi:bits=2.5", "hbi:bits=4,checksum=1", "hbi:k=1", "hbi:k=1000", "hbi:bits=5,rht=1",
        "hbi:bits=3,unbiased=1", "hbi:bits=6,levels=energy"}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const int n : {2, 3, 8}) {
        SCOPED_TRACE(fmt::format("{} {} of {} ranks", spec, Name(collective), n));
        const size_t count = 3000 + rng.Below(20000);
        const size_t segments =
            collective == Collective::kReduceScatter ? static_cast<size_t>(n) : 1;
        const Vectors inputs = MakeInputs(n, count * segments, Kind::kGauss, &rng);
        const auto call = [&] {
          return HbiDriver(spec, n, DataType::kFloat32, ReduceOp::kSum, count, 7, 3, collective);
        };
        HbiDriver plain = call();
        const Vectors expected = results(&plain, collective, inputs);
        for (int round = 0; round < 3; ++round) {
          HbiDriver driver = call();
          for (int r = 0; r < n; ++r) {
            driver.state(r).set_shortens(round == 0 || rng.Below(2) == 0);
          }
          const Vectors found = results(&driver, collective, inputs);
          ASSERT_EQ(found.size(), expected.size());
          for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(SameBytes(found[i], expected[i]));
          EXPECT_LE(driver.data_bytes(), plain.data_bytes());
          const auto before = static_cast<double>(plain.data_bytes());
          if (round == 0) {
            EXPECT_LT(static_cast<double>(driver.data_bytes()), 0.98 * before);
          }
        }
      }
    }
  }
}

// Elements whose codes are all as likely, up to the end of the scale: packed fields are the
// shortest.
TEST(HbiShortened, WhatDoesNotShrinkIsPacked) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 5120;  // of a segment
  Vectors inputs(3, std::vector<float>(3 * kCount));
  for (std::vector<float>& x : inputs) {
    for (size_t e = 0; e < x.size(); ++e) {
      x[e] = e % 32 == 0 ? 1.0f : static_cast<float>(2 * rng.Uniform() - 1);
    }
  }
  const auto call = [](const char* spec) {
    return HbiDriver(spec, 3, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0,
                     Collective::kReduceScatter);
  };
  HbiDriver plain = call("hbi:k=1000,code=fixed");
  const Vectors expected = ReduceScatterFloat(&plain, Way::kTwoShot, kCount, inputs);
  for (const char* spec : {"hbi:k=1000", "hbi:k=1000,code=entropy"}) {
    SCOPED_TRACE(spec);
    HbiDriver shortened = call(spec);
    for (int r = 0; r < 3; ++r) shortened.state(r).set_shortens(true);
    const Vectors found = ReduceScatterFloat(&shortened, Way::kTwoShot, kCount, inputs);
    for (size_t r = 0; r < 3; ++r) EXPECT_TRUE(SameBytes(found[r], expected[r]));
    EXPECT_EQ(shortened.data_bytes(), plain.data_bytes());
  }
}

// Where a specification says so, and where sums travel or groups end.
TEST(HbiShortened, OthersStayPacked) {
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(4, 6000, Kind::kGauss, &rng);
  for (const char* spec : {"hbi:code=fixed", "hbi:ref=ring", "hbi:ag=exact", "hbi:m=2"}) {
    SCOPED_TRACE(spec);
    uint64_t bytes[2];
    for (const bool shortens : {false, true}) {
      HbiDriver driver(spec, 4, DataType::kFloat32, ReduceOp::kSum, 6000);
      const bool groups = std::string(spec) == "hbi:m=2";
      if (groups) driver.set_group(2);
      for (int r = 0; r < 4; ++r) driver.state(r).set_shortens(shortens);
      RunFloat(&driver, groups ? Way::kGroups : Way::kTwoShot, 4096, inputs);
      bytes[shortens ? 1 : 0] = driver.data_bytes();
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

}  // namespace
}  // namespace inccl::test
