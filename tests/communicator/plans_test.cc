// SPDX-License-Identifier: Apache-2.0
//
// A call finds the plan of a call that differs in nothing on which a plan depends.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "communicator/collective_runner.h"
#include "compress/codec.h"
#include "compress/identity_codec.h"
#include "transport/loopback/loopback.h"

namespace inccl::test {
namespace {

class PlansTest : public ::testing::Test {
 protected:
  static Call SomeCall() {
    Call call;
    call.collective = Collective::kBroadcast;
    call.nranks = 3;
    call.count = 1000;
    return call;
  }
  // A plan that is new has no program yet.
  bool Known(const Call& call, bool below_min_bytes = false) {
    const Result<Plan*> plan = plans_.For(call, below_min_bytes);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() && (*plan)->program != nullptr;
  }
  Plan* Keep(const Call& call) {
    const Result<Plan*> plan = plans_.For(call, false);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const Status bound = plans_.Bind(call, *plan);
    EXPECT_TRUE(bound.ok()) << bound.message();
    return *plan;
  }

  std::vector<std::unique_ptr<Transport>> ends_ = MakeLoopback(3);
  LaneTable lanes_{ends_[0].get()};
  CommOptions options_;
  Plans plans_{{.filtered = true}, &options_, &lanes_};
};

TEST_F(PlansTest, FindsThePlanOfAnEqualCallOnly) {
  const Call call = SomeCall();
  EXPECT_FALSE(Known(call));
  const Plan* const plan = Keep(call);
  float other_buffer = 0;
  Call same = call;
  same.send = same.recv = &other_buffer;
  same.seed = 3, same.step = 4;
  EXPECT_TRUE(Known(same)) << "buffers and seeds are no part of a plan";
  EXPECT_EQ(*plans_.For(same, false), plan);
  EXPECT_FALSE(Known(call, true));

  // Each place holds one plan. A call that differs may have the place of another, and must not find
  // what is there.
  for (uint64_t count = 1; count < 60; ++count) {
    Call kept = call;
    kept.count = count;
    const auto expect_new = [&](const Call& other, const std::string& what) {
      Keep(kept);
      ASSERT_TRUE(Known(kept)) << count;
      ASSERT_FALSE(Known(other)) << count << " " << what;
    };
    Call other = kept;
    for (const DataType type : {DataType::kFloat64, DataType::kInt32, DataType::kUint8}) {
      other.type = type;
      expect_new(other, Name(type));
    }
    other = kept;
    for (const Collective collective : {Collective::kReduce, Collective::kAllReduce}) {
      other.collective = collective;
      expect_new(other, Name(collective));
    }
    other = kept;
    for (other.root = 1; other.root < 3; ++other.root) expect_new(other, "root");
    other = kept;
    for (other.count = 2000; other.count < 2030; ++other.count) expect_new(other, "count");
  }
}

// The place depends on all that differs, so that calls in turn do not replace each other's plans.
TEST_F(PlansTest, CallsThatDifferInOneThingMostlyKeepTheirPlans) {
  std::vector<Call> calls(3, SomeCall());
  calls[1].root = 1;
  calls[2].count = 2000;
  for (const Call& call : calls) Keep(call);
  int found = 0;
  for (const Call& call : calls) {
    const Plan* const plan = *plans_.For(call, false);
    EXPECT_EQ(plan->args.root, call.root);
    EXPECT_EQ(plan->args.count, call.count);
    if (plan->program == nullptr) continue;
    ++found;
    EXPECT_EQ(plan->program->schedule.collective, Collective::kBroadcast);
  }
  EXPECT_GE(found, 2);
}

// Another codec at the same address is another codec.
TEST_F(PlansTest, APlanExpiresWithItsCodec) {
  Call call = SomeCall();
  call.collective = Collective::kAllReduce;
  alignas(64) static std::byte place[64];
  const auto at_place = [&](std::shared_ptr<const Codec> owner) {
    return std::shared_ptr<const Codec>(std::move(owner), reinterpret_cast<const Codec*>(place));
  };
  const std::shared_ptr<const Codec> codec = *MakeCodec("bf16"), other = *MakeCodec("bf16");
  call.nranks = 1;  // nobody looks at what is at the place
  call.codec = at_place(codec);
  const Plan* const plan = *plans_.For(call, false);
  EXPECT_TRUE(plan->codec.lock() == call.codec);
  call.codec = at_place(other);
  ASSERT_EQ(*plans_.For(call, false), plan) << "one address, one place";
  EXPECT_FALSE(plan->codec.owner_before(other) || other.owner_before(plan->codec));
}

TEST_F(PlansTest, OnlyFilteredPlansHaveTheUsersAlgorithms) {
  options_.algorithms = *AlgorithmFilter::Parse("ring");
  EXPECT_EQ((*plans_.For(SomeCall(), false))->choice.algorithm, Algorithm::kRing);
  Plans library({}, &options_, &lanes_);
  EXPECT_NE((*library.For(SomeCall(), false))->choice.algorithm, Algorithm::kRing);
  options_.algorithms = *AlgorithmFilter::Parse("broadcast:^ring,tree,direct");
  Call other = SomeCall();
  other.count = 7;
  const Result<Plan*> none = plans_.For(other, false);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(library.For(other, false).ok());
}

}  // namespace
}  // namespace inccl::test
