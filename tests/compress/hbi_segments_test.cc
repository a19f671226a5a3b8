// SPDX-License-Identifier: Apache-2.0
//
// Reduce-scatter and all-gather of the codec hbi: states against the oracle in random calls, and
// the bytes that travel.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(HbiSegments, RandomCallsEqualTheOracle) {
  Rng rng(TestSeed());
  const std::vector<std::string> targets = SimdTargets();
  for (int i = 0; i < 150; ++i) {
    Case c = RandomSegments(&rng, true);
    if (rng.Below(3) == 0) c.spec += ",checksum=1";
    SCOPED_TRACE(Describe(c));
    ASSERT_TRUE(SetSimdTarget(targets[rng.Below(targets.size())]).ok());
    SCOPED_TRACE(SimdTargetName());
    const auto slice = static_cast<uint32_t>(256 * (1 + rng.Below(20)));
    const Vectors inputs = ScatterInputs(c, &rng);
    const Vectors expected = HbiReduceScatter(inputs, c.options);
    HbiDriver scatter = MakeDriver(c, DataType::kFloat32, kScatter);
    for (const Way way : {Way::kTwoShot, Way::kRing}) {
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
  const Vectors results = ReduceScatterFloat(&scatter, Way::kTwoShot, 65536, inputs);
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
      const Case c = RandomSegments(&rng, true);
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
      scatter.RunReduceScatter(rng.Below(2) == 0 ? Way::kTwoShot : Way::kRing, 1024, in, scattered);
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
         (bytes.empty() || std::memcmp(payload.data(), bytes.data(), bytes.size()) == 0);
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
    const Payload side = gather.Make(sender, all, {gather.In(sender, all, part)}, {Form::kSide},
                                     HbiDriver::SideCapacity(all));
    std::vector<uint8_t> words(side.size());
    for (size_t s = 0; s < traces[last].k.size(); ++s) {
      const uint32_t word = HbiWord(&traces[last].codes[8 * s]);
      std::memcpy(&words[4 * s], &word, 4);
    }
    ASSERT_TRUE(SameBytes(side, words));
    gather.Announce(sender, all, part);
    const Payload payload = gather.Make(sender, all, {gather.In(sender, all, part)},
                                        {Form::kResult}, gather.Capacity(all));
    ASSERT_TRUE(SameBytes(payload, HbiPack(traces[last].total, traces[last].k, 1)));
  }
}

}  // namespace
}  // namespace inccl::test
