// SPDX-License-Identifier: Apache-2.0
//
// Values that are no ordinary numbers: not-a-number, infinities, denormals, zeros of both signs,
// the largest ones, huge ranges, at sizes around every boundary. What is not finite in an input is
// never finite in the result, and all ranks get the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "compress/float_types.h"
#include "faults/fault_test.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

using Inputs = std::vector<std::vector<float>>;  // by rank

// Runs `call` on every rank with its input; returns the outputs by rank.
Inputs RunAll(const Inputs& inputs,
              const std::function<ccl_result_t(const float*, float*, size_t, ccl_comm_t)>& call) {
  Inputs outputs(kRanks);
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    const std::vector<float>& in = inputs[static_cast<size_t>(rank)];
    std::vector<float>& out = outputs[static_cast<size_t>(rank)];
    out.assign(in.size(), 12345.0f);
    ASSERT_EQ(call(in.data(), out.data(), in.size(), comm), CCL_SUCCESS)
        << ccl_get_last_error(comm);
  });
  return outputs;
}

Inputs RunSum(const Inputs& inputs, ccl_redop_t op) {
  return RunAll(inputs, [&](const float* in, float* out, size_t count, ccl_comm_t comm) {
    return ccl_allreduce(in, out, count, CCL_FLOAT32, op, comm, nullptr);
  });
}

Inputs RunCompressed(const Inputs& inputs) {
  return RunAll(inputs, [&](const float* in, float* out, size_t count, ccl_comm_t comm) {
    return ccl_allreduce_compressed(in, out, count, CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr);
  });
}

void ExpectSameBits(const Inputs& outputs) {
  for (size_t rank = 1; rank < outputs.size(); ++rank) {
    ASSERT_EQ(outputs[rank].size(), outputs[0].size());
    if (outputs[0].empty()) continue;
    EXPECT_EQ(
        std::memcmp(outputs[rank].data(), outputs[0].data(), outputs[0].size() * sizeof(float)), 0)
        << "rank " << rank << " differs from rank 0";
  }
}

const size_t kSizes[] = {0, 1, 31, 32, 33, 255, 256, 257, 1023, 8191, 8193};

Inputs Random(size_t count, Rng* rng) {
  Inputs inputs(kRanks, std::vector<float>(count));
  for (std::vector<float>& input : inputs) {
    for (float& x : input) x = static_cast<float>(rng->Below(2001)) - 1000.0f;
  }
  return inputs;
}

// Puts special values at random places of random ranks; returns which elements are touched.
std::vector<bool> Spoil(Inputs* inputs, Rng* rng) {
  const float special[] = {kNan, -kNan, kInf, -kInf};
  const size_t count = (*inputs)[0].size();
  std::vector<bool> spoilt(count);
  for (size_t k = 0; count > 0 && k < 1 + count / 100; ++k) {
    const size_t at = rng->Below(count);
    (*inputs)[rng->Below(kRanks)][at] = special[rng->Below(4)];
    spoilt[at] = true;
  }
  return spoilt;
}

class ValuesTest : public FaultTest {};

TEST_F(ValuesTest, Row25_WhatIsNotFiniteStaysSo) {
  ForRow("25", "loopback");
  Rng rng(TestSeed());
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct"}) {
    const ScopedEnv env({{"INCCL_ALGO", algorithm}});
    for (const size_t count : kSizes) {
      SCOPED_TRACE(fmt::format("{} {}", algorithm, count));
      Inputs inputs = Random(count, &rng);
      const std::vector<bool> spoilt = Spoil(&inputs, &rng);
      const Inputs sums = RunSum(inputs, CCL_SUM);
      ExpectSameBits(sums);
      for (size_t i = 0; i < count; ++i) {
        float expected = 0;  // integers: exact in any order
        for (const std::vector<float>& input : inputs) expected += input[i];
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(sums[0][i])) << i << ": " << sums[0][i];
        } else {
          EXPECT_EQ(sums[0][i], expected) << i;
        }
        EXPECT_EQ(std::isfinite(sums[0][i]), !spoilt[i]) << i;
      }
      for (const ccl_redop_t op : {CCL_MAX, CCL_MIN, CCL_PROD, CCL_AVG}) {
        const Inputs outputs = RunSum(inputs, op);
        ExpectSameBits(outputs);
        for (size_t i = 0; i < count; ++i) {
          bool has_nan = false;
          for (const std::vector<float>& input : inputs) has_nan |= std::isnan(input[i]);
          EXPECT_TRUE(!has_nan || std::isnan(outputs[0][i])) << "op " << op << " at " << i;
        }
      }
    }
  }
}

TEST_F(ValuesTest, Row25_CompressedWhatIsNotFiniteStaysSoAndSpoilsItsSuperblockOnly) {
  ForRow("25", "loopback");
  constexpr size_t kSuperblock = 256;
  Rng rng(TestSeed() + 1);
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct"}) {
    const ScopedEnv env({{"INCCL_ALGO", algorithm}});
    for (const size_t count : kSizes) {
      SCOPED_TRACE(fmt::format("{} {}", algorithm, count));
      Inputs inputs = Random(count, &rng);
      const std::vector<bool> spoilt = Spoil(&inputs, &rng);
      const Inputs sums = RunCompressed(inputs);
      ExpectSameBits(sums);
      for (size_t i = 0; i < count; ++i) {
        const size_t superblock = i / kSuperblock * kSuperblock;
        bool superblock_spoilt = false;
        for (size_t k = superblock; k < std::min(count, superblock + kSuperblock); ++k) {
          superblock_spoilt |= spoilt[k];
        }
        EXPECT_FALSE(spoilt[i] && std::isfinite(sums[0][i])) << i;
        EXPECT_TRUE(superblock_spoilt || std::isfinite(sums[0][i])) << i;
      }
    }
  }
}

TEST_F(ValuesTest, Row25_ExtremesOfMagnitude) {
  ForRow("25", "loopback");
  const size_t count = 600;
  struct Case {
    const char* name;
    std::function<float(size_t, int)> input;
    bool finite;
  };
  const Case cases[] = {
      {"zeros", [](size_t, int) { return 0.0f; }, true},
      {"negative zeros", [](size_t, int) { return -0.0f; }, true},
      {"all equal", [](size_t, int) { return 1.5f; }, true},
      {"denormals", [](size_t, int) { return kDenormal; }, true},
      {"huge range",
       [](size_t i, int) {
         return std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, static_cast<int>(i % 240) - 120);
       },
       true},
      {"largest of one rank", [](size_t, int rank) { return rank == 0 ? kMax : 0.0f; }, true},
      {"largest cancel",
       [](size_t, int rank) { return rank == 0   ? kMax
                                     : rank == 1 ? -kMax
                                                 : 1.0f; }, true},
      {"overflow", [](size_t, int) { return kMax; }, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Inputs inputs(kRanks, std::vector<float>(count));
    for (int rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < count; ++i) inputs[static_cast<size_t>(rank)][i] = c.input(i, rank);
    }
    const Inputs plain = RunSum(inputs, CCL_SUM);
    ExpectSameBits(plain);
    for (size_t i = 0; i < count; ++i) {
      double expected = 0;
      for (const std::vector<float>& input : inputs) expected += static_cast<double>(input[i]);
      if (c.finite) {
        ASSERT_TRUE(std::isfinite(plain[0][i])) << i << ": " << plain[0][i];
        EXPECT_NEAR(plain[0][i], expected, 1e-6 * std::fabs(expected) + 2.0) << i;
      } else {
        EXPECT_EQ(plain[0][i], kInf) << i;
      }
    }
    // The average of finite values is finite: divided before it is added.
    const Inputs average = RunSum(inputs, CCL_AVG);
    for (size_t i = 0; i < count; ++i) EXPECT_TRUE(std::isfinite(average[0][i])) << i;
    const Inputs compressed = RunCompressed(inputs);
    ExpectSameBits(compressed);
    // Never something finite for a sum that is not: nor the other way where all inputs are far from
    // the end of the range.
    for (size_t i = 0; i < count && !c.finite; ++i) {
      EXPECT_FALSE(std::isfinite(compressed[0][i])) << i << ": " << compressed[0][i];
    }
  }
}

// Narrow types: the sum of largest values is beyond the range, and says so.
TEST_F(ValuesTest, Row25_NarrowTypesOverflowToWhatTheyHave) {
  ForRow("25", "loopback");
  struct Type {
    const char* name;
    ccl_datatype_t type;
    uint16_t largest, infinity;
  };
  for (const Type& t : {Type{"float16", CCL_FLOAT16, 0x7BFF, 0x7C00},
                        Type{"bfloat16", CCL_BFLOAT16, 0x7F7F, 0x7F80}}) {
    SCOPED_TRACE(t.name);
    for (const size_t count : {size_t{1}, size_t{33}, size_t{5000}}) {
      RunThreads(kRanks, [&](int, ccl_comm_t comm) {
        const std::vector<uint16_t> in(count, t.largest);
        std::vector<uint16_t> out(count);
        ASSERT_EQ(ccl_allreduce(in.data(), out.data(), count, t.type, CCL_SUM, comm, nullptr),
                  CCL_SUCCESS);
        for (const uint16_t x : out) ASSERT_EQ(x, t.infinity);
        // A little below the largest: thirds are rounded, and three of them may exceed it.
        const std::vector<uint16_t> large(count, static_cast<uint16_t>(t.largest & 0xFF00));
        ASSERT_EQ(ccl_allreduce(large.data(), out.data(), count, t.type, CCL_AVG, comm, nullptr),
                  CCL_SUCCESS);
        for (const uint16_t x : out) ASSERT_LT(x, t.infinity) << "the average is in range";
        ASSERT_EQ(ccl_allreduce(in.data(), out.data(), count, t.type, CCL_MAX, comm, nullptr),
                  CCL_SUCCESS);
        for (const uint16_t x : out) ASSERT_EQ(x, t.largest);
      });
    }
  }
}

}  // namespace
}  // namespace inccl::test
