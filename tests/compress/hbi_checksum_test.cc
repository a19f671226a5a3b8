// SPDX-License-Identifier: Apache-2.0
//
// checksum=1: four bytes more on every payload, and no single flipped bit of any payload gets
// through.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr uint32_t kCount = 300;
constexpr int kRanks = 3;
const Range kAll{0, 0, kCount};

// A driver that has agreed, and payloads of every form made with it.
struct World {
  World(const std::string& spec, Collective collective)
      : gathers(collective == Collective::kAllGather),
        driver(spec, kRanks, DataType::kFloat32, ReduceOp::kSum, kCount, 1, 2, collective) {
    Rng rng(7);
    const bool scatters = collective == Collective::kReduceScatter;
    inputs = MakeInputs(kRanks, scatters ? kRanks * kCount : kCount, Kind::kScales, &rng);
    in = Memory(inputs);
    driver.Begin();
    if (gathers) {
      for (uint32_t r = 0; r < kRanks; ++r) driver.Announce(static_cast<int>(r), Of(r), in);
    } else {
      driver.Agree(0, kCount, in);
    }
  }
  static Range Of(uint32_t segment) { return {segment, 0, kCount}; }

  Payload Side() { return driver.Make(1, kAll, {driver.In(1, kAll, in)}, {Form::kSide}, 1000); }
  Payload Sum(int contributions) {
    Payload sum = driver.Make(1, kAll, {driver.In(1, kAll, in)}, HbiDriver::Sum(1), 8192);
    for (int h = 2; h <= contributions; ++h) {
      const std::vector<Term> both = {HbiDriver::Of(HbiDriver::Sum(h - 1), &sum),
                                      driver.In(h % kRanks, kAll, in)};
      sum = driver.Make(h % kRanks, kAll, both, HbiDriver::Sum(h), 8192);
    }
    return sum;
  }
  Payload Result() {
    if (gathers) {
      return driver.Make(0, kAll, {driver.In(0, kAll, in)}, {Form::kResult}, 8192);
    }
    Payload sum = Sum(kRanks);
    return driver.Make(0, kAll, {HbiDriver::Of(HbiDriver::Sum(kRanks), &sum)}, {Form::kResult},
                       8192);
  }
  Status Take(const Format& format, Payload* payload, const Format& to) {
    Payload room(8192);
    std::vector<Term> outputs = {HbiDriver::Of(to, &room)};
    if (to.form == Form::kSide) outputs = {{to, nullptr, 0}};
    return driver.state(2).Combine(kAll, std::vector<Term>{HbiDriver::Of(format, payload)},
                                   outputs);
  }

  const bool gathers;
  HbiDriver driver;
  Vectors inputs;
  std::vector<std::byte*> in;
};

// Every bit, one at a time; with a checksum all are noticed, without one some are not.
void FlipEveryBit(World* world, World* bare, const Format& format, const Format& to,
                  const std::function<Payload(World*)>& make, const char* name) {
  SCOPED_TRACE(name);
  Payload payload = make(world);
  const Payload plain = make(bare);
  ASSERT_EQ(payload.size(), plain.size() + 4);
  ASSERT_TRUE(std::equal(plain.begin(), plain.end(), payload.begin()));
  ASSERT_TRUE(world->Take(format, &payload, to).ok());
  for (size_t bit = 0; bit < 8 * payload.size(); ++bit) {
    payload[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    const Status status = world->Take(format, &payload, to);
    payload[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    ASSERT_EQ(status.code(), Code::kInternalError) << "bit " << bit;
    ASSERT_NE(status.message().find("checksum"), std::string::npos) << status.message();
    ASSERT_NE(status.message().find(name), std::string::npos) << status.message();
    ASSERT_NE(status.message().find("at rank 2"), std::string::npos) << status.message();
  }
  Payload damaged = plain;
  damaged.back() ^= std::byte{1};
  EXPECT_TRUE(bare->Take(format, &damaged, to).ok()) << "what the checksum is for";
}

TEST(HbiChecksum, NoFlippedBitGetsThrough) {
  for (const char* options : {"", ",ag=exact", ",rht=1,unbiased=1", ",code=entropy"}) {
    SCOPED_TRACE(options);
    const std::string spec = fmt::format("hbi:bits=6{}", options);
    World world(spec + ",checksum=1", Collective::kAllReduce), bare(spec, Collective::kAllReduce);
    const Format side{Form::kSide}, result{Form::kResult}, output{Form::kOutput};
    FlipEveryBit(
        &world, &bare, HbiDriver::Sum(1), HbiDriver::Sum(1), [](World* w) { return w->Sum(1); },
        "sum");
    FlipEveryBit(
        &world, &bare, HbiDriver::Sum(3), result, [](World* w) { return w->Sum(3); }, "sum");
    FlipEveryBit(
        &world, &bare, result, output, [](World* w) { return w->Result(); }, "result");
    FlipEveryBit(
        &world, &bare, result, result, [](World* w) { return w->Result(); }, "result");
    // Last: it replaces what was agreed.
    FlipEveryBit(
        &world, &bare, side, side, [](World* w) { return w->Side(); }, "side");
  }
}

TEST(HbiChecksum, NorInTheOtherCollectives) {
  {
    World world("hbi:checksum=1", Collective::kReduceScatter);
    World bare("hbi", Collective::kReduceScatter);
    FlipEveryBit(
        &world, &bare, HbiDriver::Sum(2), HbiDriver::Sum(2), [](World* w) { return w->Sum(2); },
        "sum");
  }
  World world("hbi:checksum=1", Collective::kAllGather), bare("hbi", Collective::kAllGather);
  FlipEveryBit(
      &world, &bare, {Form::kResult}, {Form::kOutput}, [](World* w) { return w->Result(); },
      "result");
}

// Capacities: what the codec asks for is enough, and is asked for.
TEST(HbiChecksum, SizesHaveRoomForIt) {
  const auto codec = *MakeCodec("hbi:k=3,checksum=1"), bare = *MakeCodec("hbi:k=3");
  for (const uint32_t count : {1u, 256u, 100000u}) {
    EXPECT_EQ(codec->MaxBytes(DataType::kFloat32, 4, count),
              bare->MaxBytes(DataType::kFloat32, 4, count) + 4);
    EXPECT_EQ(codec->SideBytes(count), bare->SideBytes(count) + 4);
  }
  World world("hbi:k=3,checksum=1", Collective::kAllReduce);
  const Payload sum = world.Sum(1);
  Payload small(sum.size() - 1);
  std::vector<Term> outputs = {HbiDriver::Of(HbiDriver::Sum(1), &small)};
  const std::vector<Term> own = {world.driver.In(1, kAll, world.in)};
  EXPECT_EQ(world.driver.state(1).Combine(kAll, own, outputs).code(), Code::kInternalError);
}

}  // namespace
}  // namespace inccl::test
