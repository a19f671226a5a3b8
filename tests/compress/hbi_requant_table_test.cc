// SPDX-License-Identifier: Apache-2.0
//
// The tables of the second quantization against the scalar arithmetic of one element, and the
// owner's step at the ends of what tables serve.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/config.h"
#include "compress/hbi/element.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/requant_table.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::hbi {
namespace {

// Every sum, with every pair of scale codes that has a key.
void ExpectReference(const Point& point, uint32_t contributions) {
  const RequantTable& table = *point.codes_of_sums;
  const uint32_t zero = contributions * point.k;
  for (uint32_t agreed = 0; agreed < 256; ++agreed) {
    for (uint32_t own = 0; own < 256; ++own) {
      if (!RequantTable::HasKey(agreed, own)) continue;
      const uint8_t row = table.rows()[RequantTable::KeyOf(agreed, own)];
      const uint8_t* const codes = table.codes() + size_t{row} * RequantTable::kSums;
      for (uint32_t sum = 0; sum <= 2 * zero; ++sum) {
        const float value = DecodeElement(sum, zero, point.sum->step[agreed]);
        const uint32_t code =
            QuantizeElement(value, point.result->factor[own], point.k2, kRoundHalfUp);
        ASSERT_EQ(codes[(sum - zero) % RequantTable::kSums], code)
            << "k " << point.k << ", k2 " << point.k2 << ", scales " << agreed << " and " << own
            << ", sum " << sum << " of " << 2 * zero;
      }
    }
  }
}

TEST(RequantTableTest, EveryCodeIsTheReference) {
  Rng rng(test::TestSeed());
  for (int i = 0; i < 12; ++i) {
    const auto n = static_cast<uint32_t>(2 + rng.Below(7));
    const auto k = static_cast<uint32_t>(1 + rng.Below(RequantTable::kMostSum / n));
    const auto k2 = static_cast<uint32_t>(1 + rng.Below(63));
    const Planner planner(Collective::kAllReduce, static_cast<int>(n),
                          Config{.bits8 = 0, .k = k, .k2 = k2});
    ASSERT_NE(planner.points()[1].codes_of_sums, nullptr);
    ExpectReference(planner.points()[1], n);
  }
}

TEST(RequantTableTest, EveryPlanOfTwoRanks) {
  const Planner planner(Collective::kAllReduce, 2, Config{.bits8 = 48});
  planner.MakeTables();
  int tables = 0;
  for (const Point& point : planner.points()) {
    if (point.codes_of_sums == nullptr) continue;
    ExpectReference(point, 2);
    ++tables;
  }
  EXPECT_GE(tables, 5);
}

TEST(RequantTableTest, NoneWhereSumsAreLarge) {
  EXPECT_TRUE(RequantTable::Fits(2, 31, 63));
  EXPECT_FALSE(RequantTable::Fits(2, 32, 31));
  EXPECT_FALSE(RequantTable::Fits(2, 31, 64));
  const Planner planner(Collective::kAllReduce, 4, Config{.bits8 = 0, .k = 16, .k2 = 16});
  EXPECT_EQ(planner.points()[1].codes_of_sums, nullptr);
}

// The owner's results of two ranks whose elements almost cancel, so that the scales of sums are up
// to 2^-20 below those agreed on, at every magnitude.
class RequantSlices {
 public:
  RequantSlices(uint32_t superblocks, Rng* rng) : count_(superblocks * kSuperblock) {
    for (uint32_t first = 0; first < count_; first += kSuperblock) {
      const int octave = static_cast<int>(rng->Below(230)) - 120;
      const auto cancels = static_cast<int>(rng->Below(21));
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        const int below = static_cast<int>(rng->Below(3));
        const auto x = static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave - below));
        x_.push_back(x);
        y_.push_back(
            cancels == 0 ? x : -x * static_cast<float>(1 - std::ldexp(rng->Uniform(), -cancels)));
      }
    }
  }
  // Payload and elements.
  std::pair<std::vector<uint8_t>, std::vector<float>> Result(const Kernels& kernels,
                                                             const Planner& planner) const {
    std::vector<uint8_t> words(count_ / kSuperblock * kWordBytes), points(count_ / kSuperblock);
    SliceContext slice{.kernels = &kernels,
                       .planner = &planner,
                       .type = DataType::kFloat32,
                       .counter = 777,
                       .count = count_,
                       .words = words.data(),
                       .points = points.data()};
    FoldOwnWords(slice, Bytes(x_), true, words.data());
    FoldOwnWords(slice, Bytes(y_), false, words.data());
    PlanSummary summary;
    planner.Plan(words.data(), points, &summary);
    std::vector<uint8_t> peer(SumBytes(slice, 1)), result(ResultBytes(slice));
    std::vector<float> out(count_);
    slice.offsets = OffsetsOf(1, 2, false);
    Source own{.elements = Bytes(y_)};
    SliceOutputs outputs;
    outputs.sum = {peer.data(), peer.data() + peer.size()};
    FoldSlice(slice, {&own, 1}, outputs);
    slice.offsets = OffsetsOf(0, 2, false);
    Source sources[] = {{.elements = Bytes(x_)},
                        {.at = peer.data(), .end = peer.data() + peer.size()}};
    outputs = {};
    outputs.result = {result.data(), result.data() + result.size()};
    outputs.elements = reinterpret_cast<std::byte*>(out.data());
    FoldSlice(slice, sources, outputs);
    return {std::move(result), std::move(out)};
  }

 private:
  static const std::byte* Bytes(const std::vector<float>& x) {
    return reinterpret_cast<const std::byte*>(x.data());
  }
  const uint32_t count_;
  std::vector<float> x_, y_;
};

TEST(RequantTableTest, SumsThatCancelAtEveryMagnitude) {
  Rng rng(test::TestSeed());
  for (int call = 0; call < 40; ++call) {
    const auto k = static_cast<uint32_t>(1 + rng.Below(31));
    const auto k2 = static_cast<uint32_t>(1 + rng.Below(63));
    const Planner planner(Collective::kAllReduce, 2, Config{.bits8 = 0, .k = k, .k2 = k2});
    const RequantSlices slices(static_cast<uint32_t>(1 + rng.Below(30)), &rng);
    const auto expected = slices.Result(ScalarKernels(), planner);
    for (const std::string& target : SimdTargets()) {
      ASSERT_TRUE(SetSimdTarget(target).ok());
      const auto made = slices.Result(BestKernels(), planner);
      EXPECT_EQ(made.first, expected.first) << target << ", k " << k << ", k2 " << k2;
      EXPECT_EQ(std::memcmp(made.second.data(), expected.second.data(),
                            expected.second.size() * sizeof(float)),
                0)
          << target << ", k " << k << ", k2 " << k2;
    }
  }
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

}  // namespace
}  // namespace inccl::hbi
