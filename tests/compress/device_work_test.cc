// SPDX-License-Identifier: Apache-2.0
//
// The codecs' work on elements of a device (CodecState::Launch, Land) against their work on those
// of the host: the same bytes, lengths and errors, in any order of halves.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/device_twin.h"
#include "compress/hbi_driver.h"
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
    twins.Run(rng.Below(2) == 0 ? Way::kDirect : Way::kRing, RandomSliceLength(&rng));
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
    twins.Run(Way::kDirect, RandomSliceLength(&rng));
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
  for (const char* spec : {"hbi:bits=6,rht=1", "hbi:bits=6,policy=d", "hbi:bits=6,policy=r,m=1",
                           "hbi:bits=6,policy=r,m=2", "hbi:bits=6,m=2", "lossless"}) {
    TwinCall call;
    call.spec = spec;
    call.n = 4;
    call.count = 1777;
    SCOPED_TRACE(spec);
    Twins twins(&bench, call, {}, &rng);
    twins.driver().set_group(2);
    const std::string name(spec);
    const Way way = name.find("policy=r") != std::string::npos ? Way::kRing
                    : name.find(",m=2") != std::string::npos   ? Way::kGroups
                                                               : Way::kDirect;
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
  many.Run(Way::kDirect, 256);
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
  twins.Run(Way::kDirect, 1024);
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
