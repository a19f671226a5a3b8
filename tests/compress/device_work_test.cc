// SPDX-License-Identifier: Apache-2.0
//
// The codecs' work on elements of a device (CodecState::Launch, Complete) against their work on
// those of the host: the same bytes, lengths and errors, in any order of halves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/device_twin.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "compress/twin_calls.h"
#include "support/seed.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

// Sanitizers watch every step of emulated lanes.
constexpr int kLess = kSanitized ? 3 : 1;

TEST(DeviceWork, AllReduceIsTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 18 / kLess && !HasFailure(); ++round) {
    TwinCall call = RandomTwinCall(&rng);
    call.in_place = rng.Below(4) == 0;
    const Places places = RandomPlaces(&rng);
    SCOPED_TRACE(call.Description(places));
    Twins twins(&bench, call, places, &rng);
    twins.Run(RandomWay(call.n, &rng), RandomSliceLength(&rng));
    EXPECT_EQ(twins.Sum(&TwinState::refused), 0);
    EXPECT_GE(twins.Sum(&TwinState::launched), 3 * call.n - 1);
  }
}

TEST(DeviceWork, ReduceScatterIsTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 9 / kLess && !HasFailure(); ++round) {
    TwinCall call = RandomTwinCall(&rng);
    call.collective = Collective::kReduceScatter;
    call.n = std::min(call.n, 5);
    call.count = std::min<uint64_t>(call.count, 1500);
    const Places places = RandomPlaces(&rng);
    SCOPED_TRACE(call.Description(places));
    Twins twins(&bench, call, places, &rng);
    twins.Run(rng.Below(2) == 0 ? Way::kTwoShot : Way::kRing, RandomSliceLength(&rng));
    EXPECT_EQ(twins.Sum(&TwinState::refused), 0);
    EXPECT_GT(twins.Sum(&TwinState::launched), 0);
  }
}

TEST(DeviceWork, AllGatherIsTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 7 / kLess && !HasFailure(); ++round) {
    TwinCall call = RandomTwinCall(&rng);
    call.collective = Collective::kAllGather;
    call.average = false;
    call.n = std::min(call.n, 5);
    const Places places = RandomPlaces(&rng);
    SCOPED_TRACE(call.Description(places));
    Twins twins(&bench, call, places, &rng);
    twins.Run(Way::kTwoShot, RandomSliceLength(&rng));
    EXPECT_EQ(twins.Sum(&TwinState::refused), 0);
    EXPECT_GT(twins.Sum(&TwinState::launched), 0);
  }
}

// Sums of sums with and without own elements into all that can come of them, as trees do.
TEST(DeviceWork, AnySumsIntoAnyOutputs) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 10 / kLess && !HasFailure(); ++round) {
    TwinCall call = RandomTwinCall(&rng);
    const Places places = RandomPlaces(&rng);
    SCOPED_TRACE(call.Description(places));
    Twins twins(&bench, call, places, &rng);
    HbiDriver& driver = twins.driver();
    driver.Begin();
    driver.Agree(0, call.count, twins.in());
    const Range range{0, 0, static_cast<uint32_t>(call.count)};
    const int rank = static_cast<int>(rng.Below(static_cast<uint64_t>(call.n)));
    // The other ranks' contributions, in sums of several.
    const bool owns = rng.Below(4) != 0;
    std::vector<Payload> sums;
    std::vector<Term> inputs;
    std::vector<int> sizes;
    for (int i = owns ? 1 : 0; i < call.n;) {
      const int h = 1 + static_cast<int>(rng.Below(static_cast<uint64_t>(std::min(3, call.n - i))));
      Payload sum;
      for (int j = 0; j < h; ++j, ++i) {
        const int r = (rank + i) % call.n;
        std::vector<Term> terms = {driver.In(r, range, twins.in())};
        if (j > 0) terms.push_back(HbiDriver::Of(HbiDriver::Sum(j), &sum));
        sum = driver.Make(r, range, terms, HbiDriver::Sum(j + 1), driver.Capacity(range));
      }
      sums.push_back(std::move(sum));
      sizes.push_back(h);
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      inputs.push_back(HbiDriver::Of(HbiDriver::Sum(sizes[i]), &sums[i]));
    }
    if (owns) {
      inputs.insert(inputs.begin() + static_cast<std::ptrdiff_t>(rng.Below(inputs.size() + 1)),
                    driver.In(rank, range, twins.in()));
    }
    for (int wanted = 1; wanted < 8; ++wanted) {
      std::vector<Payload> rooms(5, Payload(driver.Capacity(range)));
      std::vector<std::byte> elements(call.count * SizeOf(call.type));
      std::vector<Term> outputs;
      if (wanted & 4) {
        outputs.push_back(
            {{Form::kOutput}, elements.data(), static_cast<uint32_t>(elements.size())});
      }
      if (wanted & 1) outputs.push_back(HbiDriver::Of(HbiDriver::Sum(call.n), &rooms[0]));
      if (wanted & 2) outputs.push_back(HbiDriver::Of({Form::kResult}, &rooms[1]));
      for (size_t more = 2; (wanted & 3) != 0 && more < 5 && rng.Below(2) == 0; ++more) {
        outputs.push_back(HbiDriver::Of(outputs.back().format, &rooms[more]));
      }
      const Status status = twins.state(rank).Combine(range, inputs, outputs);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    CodecStats stats;
    twins.state(rank).Finish(&stats);
    EXPECT_EQ(twins.Sum(&TwinState::refused), 0);
  }
}

TEST(DeviceWork, WhatHasNoKernelsIsLeftToTheHost) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (const char* spec : {"hbi:bits=6,rht=1", "hbi:bits=6,m=2", "lossless"}) {
    TwinCall call;
    call.spec = spec;
    call.n = 4;
    call.count = 1777;
    SCOPED_TRACE(spec);
    Twins twins(&bench, call, {}, &rng);
    twins.driver().set_group(2);
    const std::string name(spec);
    const Way way = name.find(",m=2") != std::string::npos ? Way::kGroups : Way::kTwoShot;
    twins.Run(way, 512);
    EXPECT_EQ(twins.Sum(&TwinState::launched), 0);
    EXPECT_GT(twins.Sum(&TwinState::refused), 0);
  }
  // More sums than a kernel takes.
  TwinCall call;
  call.spec = "hbi:k=1,k2=1";
  call.n = 66;
  call.count = 256;
  Twins many(&bench, call, {}, &rng);
  many.Run(Way::kTwoShot, 256);
  EXPECT_EQ(many.Sum(&TwinState::refused), 1);  // at the owner
}

TEST(DeviceWork, TermsThatKernelsDoNotTake) {
  Rng rng(TestSeed());
  DeviceBench bench;
  TwinCall call;
  call.spec = "hbi:k=3,k2=7,ag=exact";
  call.count = 1000;
  Twins twins(&bench, call, {}, &rng);
  HbiDriver& driver = twins.driver();
  driver.Begin();
  driver.Agree(0, call.count, twins.in());
  const Range range{0, 0, 1000};
  const Term own = driver.In(0, range, twins.in());
  Payload other = driver.Make(1, range, {driver.In(1, range, twins.in())}, HbiDriver::Sum(1), 4096);
  Payload room(4096);
  std::vector<std::byte> twice(2 * 4000);
  std::vector<Term> outputs = {{{Form::kOutput}, twice.data(), 4000},
                               {{Form::kOutput}, twice.data() + 4000, 4000}};
  const Term sum = HbiDriver::Of(HbiDriver::Sum(1), &other);
  TwinState& state = twins.state(0);
  CodecStats stats;
  state.Finish(&stats);
  const int launched = state.launched();
  EXPECT_TRUE(state.Combine(range, std::vector{own, sum}, outputs).ok()) << "wanted twice";
  std::vector<Term> both = {HbiDriver::Of(HbiDriver::Sum(2), &room)};
  EXPECT_TRUE(state.Combine(range, std::vector{own, own}, both).ok()) << "own twice";
  EXPECT_EQ(state.launched(), launched);
  EXPECT_EQ(state.refused(), 2);
  // Not where elements of this type can be.
  const std::unique_ptr<CodecState> alone = driver.codec().NewState();
  ASSERT_TRUE(alone->Begin({.nranks = 2, .count = 1000}).ok());
  BenchWork work(&bench);
  std::byte* const region = bench.Take();
  for (const size_t beside : {1u, 2u, 3u}) {
    const Term odd{{Form::kInput}, region + beside, 4000};
    const Result<bool> result = alone->Launch(range, {&odd, 1}, both, &work);
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(*result);
  }
  EXPECT_EQ(work.runs(), 0);
}

// ---------------------------------------------------------------- no codec

// One rank's steps of uncompressed calls, whose operands are all in the device's memory.
class PlainTwin {
 public:
  PlainTwin(DeviceBench* bench, const Places& places, const CollectiveArgs& call, Rng* rng)
      : call_(call),
        rng_(rng),
        state_(bench, places, IdentityCodec()->NewState(), IdentityCodec()->NewState(),
               rng->Next()) {
    EXPECT_TRUE(state_.Begin(call).ok());
  }
  Term New(Form form) {
    const size_t bytes = call_.count * SizeOf(call_.type);
    std::vector<std::byte>& memory = memory_.emplace_back(bytes);
    for (std::byte& byte : memory) byte = static_cast<std::byte>(rng_->Next());
    return {{form, 1}, memory.data(), static_cast<uint32_t>(bytes)};
  }
  Status Combine(const std::vector<Term>& inputs, std::vector<Term> outputs) {
    return state_.Combine({0, 0, static_cast<uint32_t>(call_.count)}, inputs, outputs);
  }
  // Whether it went to a kernel.
  bool Launched(const std::vector<Term>& inputs, const std::vector<Term>& outputs) {
    const int before = state_.launched(), refused = state_.refused();
    const Status status = Combine(inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(state_.launched() + state_.refused(), before + refused + 1);
    return state_.launched() > before;
  }
  TwinState& state() { return state_; }

 private:
  const CollectiveArgs call_;
  Rng* const rng_;
  TwinState state_;
  std::deque<std::vector<std::byte>> memory_;
};

TEST(DeviceWork, UncompressedFoldsAreTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 400 / kLess && !HasFailure(); ++round) {
    CollectiveArgs call{.type = static_cast<DataType>(rng.Below(kDataTypes)),
                        .op = static_cast<ReduceOp>(rng.Below(kReduceOpKinds)),
                        .nranks = 1 + static_cast<int>(rng.Below(9)),
                        .count = 1 + rng.Below(1500)};
    const float factor = 0.3f;
    FromFloat(call.type == DataType::kFloat64 ? DataType::kFloat32 : call.type, &factor,
              call.scalar.data(), 1);
    Places places = RandomPlaces(&rng);
    places.zero_copy = true;
    PlainTwin twin(&bench, places, call, &rng);
    std::vector<Term> inputs, outputs;
    const uint64_t most = rng.Below(4) == 0 ? 1 : 9;
    for (uint64_t i = 0; i == 0 || i < rng.Below(most); ++i) {
      inputs.push_back(twin.New(rng.Below(2) == 0 ? Form::kInput : Form::kSum));
    }
    bool sums = false, finals = false;
    const uint64_t wanted = 1 + rng.Below(4), forms = rng.Below(3);
    for (uint64_t i = 0; i < wanted; ++i) {
      const bool sum = forms == 0 || (forms == 1 && rng.Below(2) == 0);
      (sum ? sums : finals) = true;
      outputs.push_back(twin.New(sum ? Form::kSum : i == 0 ? Form::kOutput : Form::kResult));
      if (i < inputs.size() && rng.Below(3) == 0) outputs.back().data = inputs[i].data;
    }
    SCOPED_TRACE(fmt::format("{} of {} x {}, {} ranks, {} inputs, {} outputs", Name(call.op),
                             call.count, Name(call.type), call.nranks, inputs.size(), wanted));
    const bool averages = call.op == ReduceOp::kAvg && call.nranks > 1;
    const bool divides = averages && !IsFloat(call.type) && finals;
    const bool scales = call.op == ReduceOp::kPreMulSum || (averages && IsFloat(call.type));
    const bool folds =
        inputs.size() > 1 || divides || (scales && inputs[0].format.form == Form::kInput);
    EXPECT_EQ(twin.Launched(inputs, outputs), folds && !(divides && sums));
    twin.state().Finish(nullptr);
  }
}

TEST(DeviceWork, UncompressedTermsThatAKernelDoesNotTake) {
  Rng rng(TestSeed());
  DeviceBench bench;
  const CollectiveArgs call{.nranks = 3, .count = 700};
  PlainTwin twin(&bench, {.zero_copy = true}, call, &rng);
  const Term in = twin.New(Form::kInput), sum = twin.New(Form::kSum);
  EXPECT_TRUE(twin.Launched({in, sum}, {twin.New(Form::kOutput)}));
  EXPECT_TRUE(twin.Launched(std::vector<Term>(64, sum), {twin.New(Form::kSum)}));
  const std::vector<Term> many(9, twin.New(Form::kSum));
  EXPECT_TRUE(twin.Launched({in, sum}, {many.begin(), many.end() - 1}));
  EXPECT_FALSE(twin.Launched({in, sum}, many));
  // Kernels read and write slots of the host only together with memory of the device.
  PlainTwin mixed(&bench, {}, call, &rng);
  const Term slot = mixed.New(Form::kSum);
  EXPECT_FALSE(mixed.Launched({in, slot}, {mixed.New(Form::kOutput)}));
  EXPECT_TRUE(mixed.Launched({in, slot, in}, {mixed.New(Form::kOutput)}));
  EXPECT_TRUE(mixed.Launched({in, in}, {mixed.New(Form::kSum)}));
  EXPECT_TRUE(mixed.Launched({in, in}, {mixed.New(Form::kOutput)}));
  // More terms than a kernel takes are the host's work.
  EXPECT_FALSE(twin.Launched(std::vector<Term>(65, sum), {twin.New(Form::kSum)}));
  // Errors are the host's, and come before anything is launched.
  Term less = sum;
  less.bytes -= 4;
  Term small = twin.New(Form::kResult);
  small.bytes -= 1;
  const std::vector<std::pair<std::vector<Term>, Term>> wrong = {
      {{in, less}, twin.New(Form::kSum)},
      {{in, sum}, small},
      {{in, twin.New(Form::kResult)}, twin.New(Form::kSum)}};
  for (const auto& [inputs, output] : wrong) {
    const int errors = twin.state().errors();
    EXPECT_FALSE(twin.Combine(inputs, {output}).ok());
    EXPECT_EQ(twin.state().errors(), errors + 1);
  }
  // Not where elements of this type can be; none at all.
  const std::unique_ptr<CodecState> alone = IdentityCodec()->NewState();
  ASSERT_TRUE(alone->Begin(call).ok());
  BenchWork work(&bench);
  std::byte* const region = bench.Take();
  for (const size_t beside : {0u, 1u, 2u, 3u}) {
    for (const uint32_t count : {0u, 700u}) {
      const std::vector<Term> both(2, {{Form::kInput}, region + 4096 + beside, 2800});
      std::vector<Term> out = {{{Form::kOutput}, region, 5}};
      const Result<bool> result = alone->Launch({0, 0, count}, both, out, &work);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(*result, beside == 0 && count != 0);
      EXPECT_EQ(out[0].bytes, *result ? 2800u : 5u);
    }
  }
  bench.device.Synchronize(bench.stream);
}

// ---------------------------------------------------------------- what is there once

TEST(DeviceWork, TablesAreThereOnce) {
  Rng rng(TestSeed());
  DeviceBench bench;
  TwinCall call;
  call.spec = "hbi:bits=6";
  call.n = 3;
  call.count = 5000;
  Twins twins(&bench, call, {.interleaved = true}, &rng);
  twins.Run(Way::kRing, 512);
  EXPECT_EQ(bench.constants(), 2u);
  twins.Run(Way::kTwoShot, 1024);
  EXPECT_EQ(bench.constants(), 2u);
}

// ---------------------------------------------------------------- casts

TEST(DeviceWork, CastsAreTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (const char* spec : {"bf16", "fp16", "fp8:format=e4m3", "fp8:format=e5m2",
                           "mxfp8:format=e4m3", "mxfp8:format=e5m2"}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const DataType type : {DataType::kFloat32, DataType::kBfloat16}) {
        TwinCall call;
        call.spec = spec;
        call.n = 3;
        call.type = type;
        call.average = type != DataType::kFloat32 && collective != Collective::kAllGather;
        call.collective = collective;
        call.count = 1 + rng.Below(3000);
        call.kind = Kind::kSpecial;
        const Places places = RandomPlaces(&rng);
        SCOPED_TRACE(call.Description(places));
        Twins twins(&bench, call, places, &rng);
        twins.Run(RandomWay(3, &rng), RandomSliceLength(&rng));
        const int launched = twins.Sum(&TwinState::launched);
        EXPECT_EQ(launched > 0, type == DataType::kFloat32);
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
