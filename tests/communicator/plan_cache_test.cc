// SPDX-License-Identifier: Apache-2.0
//
// A call finds the plan of a call that differs in nothing on which a plan depends.
#include "communicator/plan_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compress/codec.h"
#include "compress/identity_codec.h"
#include "transport/loopback/loopback.h"

namespace inccl::test {
namespace {

class PlanCacheTest : public ::testing::Test {
 protected:
  static Call SomeCall() {
    Call call;
    call.collective = Collective::kBroadcast;
    call.nranks = 3;
    call.count = 1000;
    return call;
  }
  const PlanCache::Plan* Keep(const Call& call, Algorithm algorithm = Algorithm::kRing,
                              bool below_min_bytes = false) {
    const std::shared_ptr<const Codec>& codec =
        call.codec == nullptr ? IdentityCodec() : call.codec;
    Result<PlanCache::Plan> plan =
        plans_.Make(call, *codec, {.algorithm = algorithm}, below_min_bytes);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plans_.Keep(*std::move(plan));
  }

  std::vector<std::unique_ptr<Transport>> ends_ = MakeLoopback(3);
  LaneTable lanes_{ends_[0].get()};
  PlanCache plans_{{}, &lanes_};
};

TEST_F(PlanCacheTest, FindsThePlanOfAnEqualCallOnly) {
  const Call call = SomeCall();
  EXPECT_EQ(plans_.Find(call, false), nullptr);
  const PlanCache::Plan* const plan = Keep(call);
  float other_buffer = 0;
  Call same = call;
  same.send = same.recv = &other_buffer;
  same.seed = 3, same.step = 4;
  EXPECT_EQ(plans_.Find(same, false), plan) << "buffers and seeds are no part of a plan";
  EXPECT_EQ(plans_.Find(call, true), nullptr);

  // Each place holds one plan. A call that differs may have the place of another, and must not find
  // what is there.
  for (uint64_t count = 1; count < 60; ++count) {
    Call kept = call;
    kept.count = count;
    const PlanCache::Plan* const its_plan = Keep(kept);
    ASSERT_EQ(plans_.Find(kept, false), its_plan);
    Call other = kept;
    for (const DataType type : {DataType::kFloat64, DataType::kInt32, DataType::kUint8}) {
      other.type = type;
      ASSERT_EQ(plans_.Find(other, false), nullptr) << count << " " << Name(type);
    }
    other = kept;
    for (const Collective collective : {Collective::kReduce, Collective::kAllReduce}) {
      other.collective = collective;
      ASSERT_EQ(plans_.Find(other, false), nullptr) << count << " " << Name(collective);
    }
    other = kept;
    for (other.root = 1; other.root < 30; ++other.root) {
      ASSERT_EQ(plans_.Find(other, false), nullptr) << count << " root " << other.root;
    }
    other = kept;
    for (other.count = 2000; other.count < 2030; ++other.count) {
      ASSERT_EQ(plans_.Find(other, false), nullptr) << count << " " << other.count;
    }
  }
}

// The place depends on all that differs, so that calls in turn do not replace each other's plans.
TEST_F(PlanCacheTest, CallsThatDifferInOneThingMostlyKeepTheirPlans) {
  std::vector<Call> calls(3, SomeCall());
  calls[1].root = 1;
  calls[2].count = 2000;
  for (const Call& call : calls) Keep(call);
  int found = 0;
  for (const Call& call : calls) {
    const PlanCache::Plan* const plan = plans_.Find(call, false);
    if (plan == nullptr) continue;
    ++found;
    EXPECT_EQ(plan->args.root, call.root);
    EXPECT_EQ(plan->program->schedule.collective, Collective::kBroadcast);
    EXPECT_EQ(plan->args.count, call.count);
  }
  EXPECT_GE(found, 2);
}

// Another codec at the same address is another codec.
TEST_F(PlanCacheTest, APlanExpiresWithItsCodec) {
  Call call = SomeCall();
  call.collective = Collective::kAllReduce;
  alignas(64) static std::byte place[64];
  const auto at_place = [&](std::shared_ptr<const Codec> owner) {
    return std::shared_ptr<const Codec>(std::move(owner), reinterpret_cast<const Codec*>(place));
  };
  const std::shared_ptr<const Codec> codec = *MakeCodec("bf16"), other = *MakeCodec("bf16");
  Call made = call;
  made.codec = codec;
  Result<PlanCache::Plan> plan = plans_.Make(made, *codec, {.algorithm = Algorithm::kRing}, false);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  call.codec = at_place(codec);
  plan->codec = call.codec;
  const PlanCache::Plan* const kept = plans_.Keep(*std::move(plan));
  EXPECT_EQ(plans_.Find(call, false), kept);
  call.codec = at_place(other);
  EXPECT_EQ(plans_.Find(call, false), nullptr);
  call.codec = nullptr;
  EXPECT_EQ(plans_.Find(call, false), nullptr);
}

}  // namespace
}  // namespace inccl::test
