// SPDX-License-Identifier: Apache-2.0
//
// What a codec refuses of work on elements of a device: what it refuses on the host, in the same
// words, before anything is launched; and a device without room.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/device_twin.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/twin_calls.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

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
  Make("hbi:k=3,k2=7,code=fixed");
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

TEST_F(DeviceWorkErrors, InvalidWords) {
  Make("hbi:k=3,k2=7,code=fixed");
  Payload result = MakeResult();
  Payload side = driver().Make(1, range_, {In(1)}, {Form::kSide}, room_.size());
  result[8] = side[12] = std::byte{254};  // tops of 1224, above the last code
  result[9] = side[13] = std::byte{200};
  Refused({HbiDriver::Of({Form::kResult}, &result)}, {Elements()});
  Refused({HbiDriver::Of({Form::kSide}, &side), In()}, {Room({Form::kSide})});
}

TEST_F(DeviceWorkErrors, Checksums) {
  Make("hbi:bits=6,checksum=1,code=fixed");
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

// A rank in host memory may have coded what a rank in device memory gets, which then takes the
// host's way, with the same result.
TEST_F(DeviceWorkErrors, CodedPayloadsAreForTheHost) {
  Make("hbi:bits=6");
  HbiDriver host("hbi:bits=6", 3, DataType::kFloat32, ReduceOp::kSum, kCount);
  host.Begin();
  host.Agree(0, kCount, twins_->in());
  for (int r = 0; r < 3; ++r) host.state(r).set_shortens(true);
  const auto sum = [&](int rank) {
    return host.Make(rank, range_, {host.In(rank, range_, twins_->in())}, HbiDriver::Sum(1),
                     room_.size());
  };
  Payload one = sum(1), two = sum(2);
  EXPECT_LT(one.size(), Sum().size());
  const std::vector<Term> all = {In(), HbiDriver::Of(HbiDriver::Sum(1), &one),
                                 HbiDriver::Of(HbiDriver::Sum(1), &two)};
  Payload result = host.Make(0, range_, all, {Form::kResult}, room_.size());
  EXPECT_LT(result.size(), MakeResult().size());
  const int before = twins_->state(0).refused();
  std::vector<Term> outputs = {Room({Form::kResult}), Elements()};
  EXPECT_TRUE(twins_->state(0).Combine(range_, all, outputs).ok());
  outputs = {Elements()};
  const Term forwarded = HbiDriver::Of({Form::kResult}, &result);
  EXPECT_TRUE(twins_->state(0).Combine(range_, {&forwarded, 1}, outputs).ok());
  EXPECT_EQ(twins_->state(0).refused(), before + 2);
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
      EXPECT_GE(enough, 6);  // words, points, two lists of tiles, a payload each way
      EXPECT_TRUE(combine.Complete(&driver.state(0)).ok());
      break;
    }
    EXPECT_EQ(launched.status().message(), "no scratch today");
  }
}

}  // namespace
}  // namespace inccl::test
