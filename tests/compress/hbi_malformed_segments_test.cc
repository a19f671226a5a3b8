// SPDX-License-Identifier: Apache-2.0
//
// What a state refuses in reduce-scatter and all-gather, before it reads a byte of it.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr uint32_t kCount = 1000;

// Rank 0 of two, k = 3, after the agreement on all segments.
class MalformedSegments {
 public:
  explicit MalformedSegments(Collective collective)
      : driver_("hbi:k=3,k2=7", 2, DataType::kFloat32, ReduceOp::kSum, kCount, 0, 0, collective),
        inputs_(2, std::vector<float>(2 * kCount, 1.5f)),
        in_(Memory(inputs_)) {
    driver_.Begin();
    for (uint32_t segment = 0; segment < 2; ++segment) {
      if (collective == Collective::kAllGather) {
        driver_.Announce(static_cast<int>(segment), {segment, 0, kCount}, in_);
      } else {
        driver_.Agree(0, kCount, in_, segment);
      }
    }
  }

  Term In(uint32_t segment) const { return driver_.In(0, {segment, 0, kCount}, in_); }
  HbiDriver& driver() { return driver_; }
  std::vector<Term> To(const Format& format) { return {HbiDriver::Of(format, &room_)}; }

  void Refused(const Range& range, const std::vector<Term>& inputs, std::vector<Term> outputs,
               const std::vector<std::string>& parts) {
    const Status status = driver_.state(0).Combine(range, inputs, outputs);
    ASSERT_EQ(status.code(), Code::kInternalError) << status.message();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << status.message();
    }
  }

 private:
  HbiDriver driver_;
  Vectors inputs_;
  std::vector<std::byte*> in_;
  Payload room_ = Payload(1 << 16);
};

TEST(HbiMalformedReduceScatter, IsRefused) {
  MalformedSegments test(Collective::kReduceScatter);
  const Format sum = HbiDriver::Sum(1), result{Form::kResult}, output{Form::kOutput};
  test.Refused({2, 0, kCount}, {test.In(0)}, test.To(sum), {"segment 2", "in 2"});
  test.Refused({UINT32_MAX, 0, kCount}, {test.In(0)}, test.To({Form::kSide}), {"segment"});
  Payload payload(96 * 4), wrong(96 * 4 - 1), two(512);
  for (uint32_t segment = 0; segment < 2; ++segment) {
    const Range all{segment, 0, kCount};
    test.Refused(all, {HbiDriver::Of(sum, &wrong), test.In(segment)}, test.To(output),
                 {"383", "384"});
    test.Refused(all, {test.In(segment)}, test.To(output), {"1 of 2"});
    // Sums are for their owner alone: no result travels.
    test.Refused(all, {HbiDriver::Of(sum, &payload), test.In(segment)}, test.To(result),
                 {"result", "an output"});
    test.Refused(all, {HbiDriver::Of(result, &two)}, test.To(output), {"result", "an input"});
    Payload short_side(15);
    test.Refused(all, {HbiDriver::Of({Form::kSide}, &short_side)}, {{{Form::kSide}, nullptr, 0}},
                 {"15", "16"});
  }
}

TEST(HbiMalformedAllGather, IsRefused) {
  MalformedSegments test(Collective::kAllGather);
  const Format sum = HbiDriver::Sum(1), result{Form::kResult}, output{Form::kOutput};
  test.Refused({2, 0, kCount}, {test.In(0)}, test.To(result), {"segment 2", "in 2"});
  Payload payload(96 * 4), other(96 * 4);
  const Range all{1, 0, kCount};
  for (const size_t bytes : {0u, 1u, 383u, 385u, 416u}) {
    Payload wrong(bytes);
    test.Refused(all, {HbiDriver::Of(result, &wrong)}, test.To(output),
                 {std::to_string(bytes), "384"});
  }
  test.Refused(all, {HbiDriver::Of(sum, &payload)}, test.To(output), {"sum", "an input"});
  test.Refused(all, {test.In(0)}, test.To(sum), {"sum", "an output"});
  test.Refused(all, {HbiDriver::Of(result, &payload)}, test.To(sum), {"sum", "an output"});
  test.Refused(all, {test.In(0), test.In(0)}, test.To(output), {"2 contributions of 1"});
  test.Refused(all, {HbiDriver::Of(result, &payload), HbiDriver::Of(result, &other)},
               test.To(output), {"result", "an input"});
  Payload small(383), side(16, std::byte{254});
  test.Refused(all, {HbiDriver::Of(result, &payload)}, {HbiDriver::Of(result, &small)},
               {"383", "384"});
  test.Refused(all, {test.In(0)}, {HbiDriver::Of(result, &small)}, {"383", "384"});
  test.Refused(all, {HbiDriver::Of({Form::kSide}, &side)}, {{{Form::kSide}, nullptr, 0}},
               {"invalid"});
}

// At the very end of its memory, for sanitizers.
TEST(HbiMalformedAllGather, GarbageOfTheRightLength) {
  MalformedSegments test(Collective::kAllGather);
  Rng rng(TestSeed());
  for (int i = 0; i < 100; ++i) {
    auto payload = std::make_unique<std::byte[]>(384);
    for (int b = 0; b < 384; ++b) payload[b] = static_cast<std::byte>(rng.Next());
    Payload forwarded(384), elements(4000);
    std::vector<Term> outputs = {HbiDriver::Of({Form::kResult}, &forwarded),
                                 HbiDriver::Of({Form::kOutput}, &elements)};
    const Term input{{Form::kResult}, payload.get(), 384};
    EXPECT_TRUE(test.driver().state(0).Combine({1, 0, kCount}, {&input, 1}, outputs).ok());
    EXPECT_EQ(std::memcmp(forwarded.data(), payload.get(), 384), 0);
  }
}

}  // namespace
}  // namespace inccl::test
