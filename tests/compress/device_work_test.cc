// SPDX-License-Identifier: Apache-2.0
//
// The codecs' work on elements of a device (CodecState::Launch, Land) against their work on those
// of the host: the same bytes, lengths and errors, in any order of halves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/device_twin.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// One call of all ranks, on twins.
struct TwinCall {
  std::string spec;
  int n = 2;
  DataType type = DataType::kFloat32;
  bool average = false;
  uint64_t count = 1;
  Collective collective = Collective::kAllReduce;
  Kind kind = Kind::kGauss;
  uint64_t seed = 0, step = 0;
  bool in_place = false;

  std::string Description(const Places& places) const {
    return fmt::format(
        "{} of {} by {}: {} ranks, {} of {}, kind {}{}{}; slots {} + {}, {} beside{}",
        Name(collective), average ? "average" : "sum", spec, n, count, Name(type),
        static_cast<int>(kind), in_place ? ", in place" : "",
        fmt::format(", seed {} step {}", seed, step),
        places.slots_reached ? "reached" : "not reached", places.slot_offset,
        places.elements_beside, places.interleaved ? ", interleaved" : "");
  }
};

class Twins {
 public:
  Twins(DeviceBench* bench, const TwinCall& call, const Places& places, Rng* rng)
      : call_(call),
        driver_(call.spec, call.n, call.type, call.average ? ReduceOp::kAvg : ReduceOp::kSum,
                call.count, call.seed, call.step, call.collective) {
    driver_.Wrap([&](std::unique_ptr<CodecState> state) {
      auto twin = std::make_unique<TwinState>(bench, places, std::move(state),
                                              driver_.codec().NewState(), rng->Next());
      states_.push_back(twin.get());
      return twin;
    });
    const auto n = static_cast<size_t>(call.n);
    const size_t scattered = call.collective == Collective::kReduceScatter ? n : 1;
    const size_t gathered = call.collective == Collective::kAllGather ? n : 1;
    const size_t size = SizeOf(call.type);
    for (const std::vector<float>& x : MakeInputs(call.n, call.count * scattered, call.kind, rng)) {
      inputs_.emplace_back(x.size() * size);
      FromFloat(call.type, x.data(), inputs_.back().data(), x.size());
      outputs_.emplace_back(call.count * gathered * size);
    }
    for (size_t r = 0; r < n; ++r) {
      in_.push_back(inputs_[r].data());
      out_.push_back(call.in_place ? in_[r] : outputs_[r].data());
    }
  }

  HbiDriver& driver() { return driver_; }
  TwinState& state(int rank) { return *states_[static_cast<size_t>(rank)]; }
  const std::vector<std::byte*>& in() const { return in_; }

  void Run(Way way, uint32_t slice) {
    switch (call_.collective) {
      case Collective::kReduceScatter: driver_.RunReduceScatter(way, slice, in_, out_); break;
      case Collective::kAllGather: driver_.RunAllGather(slice, in_, out_); break;
      default: driver_.Run(way, slice, in_, out_);
    }
    CodecStats stats;
    for (TwinState* state : states_) state->Finish(&stats);
  }
  int Sum(int (TwinState::*count)() const) const {
    int sum = 0;
    for (const TwinState* state : states_) sum += (state->*count)();
    return sum;
  }

 private:
  const TwinCall call_;
  HbiDriver driver_;
  std::vector<TwinState*> states_;
  std::vector<std::vector<std::byte>> inputs_, outputs_;
  std::vector<std::byte*> in_, out_;
};

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16,
                               DataType::kFloat64};

Places RandomPlaces(Rng* rng) {
  static const size_t kOffsets[] = {0, 0, 4, 8, 2};  // kernels do not read at the last
  Places places;
  places.slots_reached = rng->Below(3) != 0;
  places.slot_offset = kOffsets[rng->Below(5)];
  places.elements_beside = rng->Below(3) == 0 ? 1 + rng->Below(3) : 0;
  places.interleaved = rng->Below(2) == 0;
  return places;
}

TwinCall RandomTwinCall(Rng* rng) {
  TwinCall call;
  call.n = 2 + static_cast<int>(rng->Below(8));
  call.type = kTypes[rng->Below(4)];
  call.average = rng->Below(3) == 0;
  call.count = 1 + rng->Below(4000);
  if (rng->Below(3) == 0) call.count = (call.count + 255) / 256 * 256;
  call.kind = static_cast<Kind>(rng->Below(kKinds));
  call.seed = rng->Next();
  call.step = rng->Below(100);
  const bool unbiased = rng->Below(3) == 0;
  const double bits = static_cast<double>(unbiased ? 56 + rng->Below(9) : 32 + rng->Below(33)) / 8;
  call.spec = rng->Below(3) == 0
                  ? fmt::format("hbi:k={},k2={}", 1 + rng->Below(40), 1 + rng->Below(200))
                  : fmt::format("hbi:bits={}", bits);
  if (unbiased) call.spec += ",unbiased=1";
  if (rng->Below(3) == 0) call.spec += ",ag=exact";
  if (rng->Below(3) == 0) call.spec += ",checksum=1";
  return call;
}

Way RandomWay(int n, Rng* rng) {
  const bool doubles = (n & (n - 1)) == 0;
  const uint64_t way = rng->Below(doubles ? 3 : 2);
  return way == 0 ? Way::kDirect : way == 1 ? Way::kRing : Way::kDoubling;
}

uint32_t RandomSliceLength(Rng* rng) {
  return kSuperblock * (1 + static_cast<uint32_t>(rng->Below(9)));
}

TEST(DeviceWork, AllReduceIsTheHostsByteForByte) {
  Rng rng(TestSeed());
  DeviceBench bench;
  for (int round = 0; round < 24 && !HasFailure(); ++round) {
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
  for (int round = 0; round < 12 && !HasFailure(); ++round) {
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
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
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
  for (int round = 0; round < 16 && !HasFailure(); ++round) {
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

// ---------------------------------------------------------------- errors

class DeviceWorkErrors : public testing::Test {
 protected:
  static constexpr uint32_t kCount = 1000;

  Twins* Make(const std::string& spec) {
    call_.spec = spec;
    call_.n = 3;
    call_.count = kCount;
    twins_ = std::make_unique<Twins>(&bench_, call_, Places{}, &rng_);
    driver().Begin();
    driver().Agree(0, kCount, twins_->in());
    return twins_.get();
  }
  HbiDriver& driver() { return twins_->driver(); }
  Term In(int rank = 0) { return driver().In(rank, range_, twins_->in()); }
  Payload Sum() { return driver().Make(1, range_, {In(1)}, HbiDriver::Sum(1), room_.size()); }
  Payload MakeResult() {
    Payload one = Sum(), two = driver().Make(2, range_, {In(2)}, HbiDriver::Sum(1), room_.size());
    return driver().Make(
        0, range_,
        {In(), HbiDriver::Of(HbiDriver::Sum(1), &one), HbiDriver::Of(HbiDriver::Sum(1), &two)},
        {Form::kResult}, room_.size());
  }
  // Launch finds what Combine finds (TwinState).
  void Refused(const std::vector<Term>& inputs, std::vector<Term> outputs) {
    const int before = twins_->state(0).errors();
    EXPECT_FALSE(twins_->state(0).Combine(range_, inputs, outputs).ok());
    EXPECT_EQ(twins_->state(0).errors(), before + 1);
  }
  Term Room(const Format& format) { return HbiDriver::Of(format, &room_); }
  Term Elements() { return {{Form::kOutput}, elements_.data(), kCount * 4}; }

  const Range range_{0, 0, kCount};
  Rng rng_{TestSeed()};
  DeviceBench bench_;
  TwinCall call_;
  std::unique_ptr<Twins> twins_;
  Payload room_ = Payload(1 << 14);
  std::vector<std::byte> elements_ = std::vector<std::byte>(kCount * 4);
};

TEST_F(DeviceWorkErrors, LengthsAndForms) {
  Make("hbi:k=3,k2=7");
  Payload sum = Sum(), result = MakeResult();
  for (const int by : {-1, 1, -200}) {
    Payload wrong = sum, wrong_result = result;
    wrong.resize(sum.size() + static_cast<size_t>(by));
    wrong_result.resize(result.size() + static_cast<size_t>(by));
    Refused({HbiDriver::Of(HbiDriver::Sum(1), &wrong), In()}, {Room(HbiDriver::Sum(2))});
    Refused({HbiDriver::Of({Form::kResult}, &wrong_result)}, {Elements()});
  }
  Payload side(31);
  Refused({HbiDriver::Of({Form::kSide}, &side), In()}, {Room({Form::kSide})});
  const Term one = HbiDriver::Of(HbiDriver::Sum(1), &sum);
  Refused({one, In()}, {Room(HbiDriver::Sum(3))});
  Refused({one, In()}, {Room({Form::kResult}), Elements()});
  Refused({one, one, one, In()}, {Room(HbiDriver::Sum(4))});
  Refused({HbiDriver::Of(HbiDriver::Sum(0), &sum), In()}, {Room(HbiDriver::Sum(1))});
  Term small = Room(HbiDriver::Sum(2));
  small.bytes = 100;
  Refused({one, In()}, {small});
  Term less = In();
  less.bytes -= 4;
  Refused({less}, {Room(HbiDriver::Sum(1))});
  Refused({less}, {Room({Form::kSide})});
  // And goes on.
  std::vector<Term> outputs = {Room(HbiDriver::Sum(2))};
  EXPECT_TRUE(twins_->state(0).Combine(range_, std::vector{one, In()}, outputs).ok());
}

TEST_F(DeviceWorkErrors, ReservedCodes) {
  Make("hbi:k=3,k2=7");
  Payload result = MakeResult(), side(32, std::byte{17});
  result[9] = std::byte{250};
  side[31] = std::byte{246};
  Refused({HbiDriver::Of({Form::kResult}, &result)}, {Elements()});
  Refused({HbiDriver::Of({Form::kSide}, &side), In()}, {Room({Form::kSide})});
}

TEST_F(DeviceWorkErrors, Checksums) {
  Make("hbi:bits=6,checksum=1");
  const Payload sum = Sum(), result = MakeResult();
  Payload side = driver().Make(1, range_, {In(1)}, {Form::kSide}, room_.size());
  const auto damaged = [this](Payload payload) {
    payload[rng_.Below(payload.size())] ^= std::byte{static_cast<uint8_t>(1 + rng_.Below(255))};
    return payload;
  };
  for (int round = 0; round < 10; ++round) {
    Payload bad = damaged(sum), bad_result = damaged(result), bad_side = damaged(side);
    Refused({HbiDriver::Of(HbiDriver::Sum(1), &bad), In()}, {Room(HbiDriver::Sum(2))});
    Refused({HbiDriver::Of({Form::kResult}, &bad_result)}, {Room({Form::kResult}), Elements()});
    Refused({HbiDriver::Of({Form::kSide}, &bad_side), In()}, {Room({Form::kSide})});
  }
}

TEST_F(DeviceWorkErrors, NoScratch) {
  HbiDriver driver("hbi:bits=6", 3, DataType::kFloat32, ReduceOp::kSum, kCount);
  const Vectors inputs = MakeInputs(3, kCount, Kind::kGauss, &rng_);
  const std::vector<std::byte*> in = Memory(inputs);
  driver.Begin();
  driver.Agree(0, kCount, in);
  Payload sum = driver.Make(1, range_, {driver.In(1, range_, in)}, HbiDriver::Sum(1), room_.size());
  const std::vector<Term> terms = {driver.In(0, range_, in),
                                   HbiDriver::Of(HbiDriver::Sum(1), &sum)};
  const std::vector<Term> outputs = {Room(HbiDriver::Sum(2))};
  for (int enough = 0;; ++enough) {
    ASSERT_LT(enough, 20);
    // Nothing is reached, so everything is copied.
    DeviceCombine combine(&bench_, {.slots_reached = false}, DataType::kFloat32, range_, terms,
                          outputs);
    combine.work().FailAfter(enough);
    const Result<bool> launched = combine.Launch(&driver.state(0));
    EXPECT_EQ(combine.work().runs(), launched.ok() ? 1 : 0);
    if (launched.ok()) {
      EXPECT_GE(enough, 6);  // codes, points, two lists of tiles, a payload each way
      EXPECT_TRUE(combine.Land(&driver.state(0)).ok());
      break;
    }
    EXPECT_EQ(launched.status().message(), "no scratch today");
  }
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
