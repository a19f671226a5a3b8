// SPDX-License-Identifier: Apache-2.0
//
// Error feedback through the C API. Two oracles: what is summed and what is left out are together
// what went in, element by element; and a call with a residual is a call without one whose input
// has the residual added by the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/owned.h"
#include "api/values.h"
#include "api/world.h"

namespace inccl::test {
namespace {

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

// Normal values whose scale changes from block to block.
std::vector<float> Gradient(size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(normal(engine), static_cast<int>(i / 300 % 7) - 3);
  }
  return values;
}

struct Case {
  const char* spec;
  Kind kind;
  ccl_datatype_t type;
  ccl_redop_t op;
  const char* algorithm;
  double tolerance;  // of the sum of magnitudes; what several ranks round together
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = std::to_string(info.index) + "_" + c.spec + "_" + c.algorithm;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

class ResidualTest : public ::testing::TestWithParam<Case> {};

// Elements of the type, from floats.
std::vector<std::byte> ToType(ccl_datatype_t type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * SizeOfType(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto put = [&](auto value) {
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    };
    if (type == CCL_FLOAT32) put(values[i]);
    if (type == CCL_FLOAT64) put(static_cast<double>(values[i]) * (1 + 1e-9));
    if (type == CCL_BFLOAT16) {
      uint32_t bits = 0;
      std::memcpy(&bits, &values[i], sizeof bits);
      put(static_cast<uint16_t>(bits >> 16));  // towards zero: any bf16 will do
    }
  }
  return bytes;
}

constexpr unsigned kSeed = 7;
constexpr int kRanks = 3;
constexpr size_t kCount = 3 * 5000 + 77;  // of a vector

struct Step {
  std::vector<std::vector<double>> in, before, after, out;  // by rank
};

// Runs one call on every rank and keeps what went in and out.
void RunStep(const Case& c, int rank, ccl_comm_t comm, ccl_codec_t codec,
             const OwnedResidual& residual, unsigned seed, Step* step) {
  const bool scatters = c.kind == Kind::kReduceScatter, gathers = c.kind == Kind::kAllGather;
  const size_t sent = kCount * (scatters ? kRanks : 1), got = kCount * (gathers ? kRanks : 1);
  const std::vector<std::byte> in =
      ToType(c.type, Gradient(sent, seed + static_cast<unsigned>(rank)));
  std::vector<std::byte> send = in, out(got * SizeOfType(c.type));
  const auto r = static_cast<size_t>(rank);
  const std::vector<float> before = ValuesOf(residual, sent);
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.codec = codec;
  how.residual = residual.get();
  if (c.kind == Kind::kAllReduce) {
    CHECK_OK(ccl_allreduce_compressed(send.data(), out.data(), kCount, c.type, c.op, &how, comm,
                                      nullptr));
  } else if (scatters) {
    CHECK_OK(ccl_reduce_scatter_compressed(send.data(), out.data(), kCount, c.type, c.op, &how,
                                           comm, nullptr));
  } else {
    CHECK_OK(
        ccl_allgather_compressed(send.data(), out.data(), kCount, c.type, &how, comm, nullptr));
  }
  EXPECT_EQ(send, in);
  const std::vector<float> after = ValuesOf(residual, sent);
  step->before[r].assign(before.begin(), before.end());
  step->after[r].assign(after.begin(), after.end());
  for (size_t i = 0; i < sent; ++i) step->in[r].push_back(Load(c.type, in.data(), i));
  for (size_t i = 0; i < got; ++i) step->out[r].push_back(Load(c.type, out.data(), i));
}

// inputs + former residuals = result + residuals
void ExpectConserved(const Case& c, const Step& step) {
  const bool scatters = c.kind == Kind::kReduceScatter, gathers = c.kind == Kind::kAllGather;
  size_t changed = 0;
  // A rotation rounds relative to the largest elements.
  const double more = std::strstr(c.spec, "rht") != nullptr ? 100 : 0;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < step.out[rank].size(); ++i) {
      double in = 0, size = 0, left = 0, result = step.out[rank][i];
      for (size_t r = 0; r < kRanks; ++r) {
        if (gathers && r != i / kCount) continue;
        const size_t at = scatters ? rank * kCount + i : gathers ? i % kCount : i;
        in += step.in[r][at] + step.before[r][at];
        size += std::fabs(step.in[r][at]) + std::fabs(step.before[r][at]);
        left += step.after[r][at];
        changed += step.after[r][at] != 0 ? 1 : 0;
      }
      if (c.op == CCL_AVG && !gathers) result *= kRanks;
      ASSERT_NEAR(in, result + left, c.tolerance * (size + std::fabs(result) + more))
          << "rank " << rank << " element " << i;
    }
  }
  const bool exact = std::string(c.spec) == "none" || std::string(c.spec) == "lossless";
  if (exact) {
    EXPECT_EQ(changed, 0u);
  } else {
    EXPECT_GT(changed, kCount) << "the codec leaves nothing out";
  }
}

TEST_P(ResidualTest, WhatIsLeftOutAndTheSumAreWhatWentIn) {
  const Case& c = GetParam();
  const ScopedEnv algorithm({{"INCCL_ALGO", c.algorithm}, {"INCCL_SLICE_BYTES", "16384"}});
  Step steps[3];
  for (Step& step : steps) {
    for (auto* all : {&step.in, &step.before, &step.after, &step.out}) all->resize(kRanks);
  }
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec(c.spec);
    const OwnedResidual residual =
        MakeResidual(kCount * (c.kind == Kind::kReduceScatter ? kRanks : 1));
    for (unsigned s = 0; s < 3; ++s) {
      RunStep(c, rank, comm, codec.get(), residual, kSeed + 100 * s, &steps[s]);
    }
  });
  for (const Step& step : steps) ExpectConserved(c, step);
}

constexpr double kFloat = 1e-6, kBfloat16 = 0x1p-7;
INSTANTIATE_TEST_SUITE_P(
    Codecs, ResidualTest,
    ::testing::Values(
        Case{"hbi:ag=exact,bits=4", Kind::kAllReduce, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"hbi:ag=exact,bits=4", Kind::kAllReduce, CCL_FLOAT32, CCL_AVG, "ring", kFloat},
        Case{"hbi:ag=exact,bits=5", Kind::kAllReduce, CCL_FLOAT64, CCL_SUM, "tree", kFloat},
        Case{"hbi:ag=exact,bits=6,unbiased=1", Kind::kAllReduce, CCL_FLOAT32, CCL_SUM,
             "recursive_doubling", kFloat},
        Case{"hbi:bits=4", Kind::kReduceScatter, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"hbi:bits=6,rht=1", Kind::kReduceScatter, CCL_FLOAT32, CCL_AVG, "ring", kFloat},
        Case{"hbi:bits=4", Kind::kReduceScatter, CCL_BFLOAT16, CCL_SUM, "direct", kBfloat16},
        Case{"hbi:bits=4", Kind::kAllGather, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"qsgd:q=4", Kind::kAllReduce, CCL_FLOAT32, CCL_AVG, "direct", kFloat},
        Case{"qsgd_ms", Kind::kAllReduce, CCL_FLOAT32, CCL_SUM, "ring", kFloat},
        Case{"qsgd:q=8", Kind::kReduceScatter, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"bf16", Kind::kAllGather, CCL_FLOAT32, CCL_SUM, "ring", kFloat},
        Case{"bf16", Kind::kAllReduce, CCL_FLOAT32, CCL_AVG, "direct", kBfloat16},
        Case{"onebit", Kind::kAllGather, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"onebit:block=64", Kind::kReduceScatter, CCL_BFLOAT16, CCL_SUM, "ring", kBfloat16},
        Case{"onebit", Kind::kAllReduce, CCL_FLOAT32, CCL_SUM, "direct_two_shot", kFloat},
        Case{"onebit", Kind::kAllReduce, CCL_FLOAT32, CCL_AVG, "ring", kFloat},
        Case{"onebit", Kind::kAllReduce, CCL_FLOAT64, CCL_SUM, "tree", kFloat},
        Case{"mxfp8", Kind::kAllGather, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"none", Kind::kAllReduce, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"lossless", Kind::kReduceScatter, CCL_FLOAT32, CCL_SUM, "direct", kFloat},
        Case{"lossless", Kind::kAllReduce, CCL_FLOAT64, CCL_SUM, "ring", 1e-15}),
    NameOf);

TEST(ResidualCallTest, IsTheCallWithoutOneOnTheCorrectedInput) {
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec("hbi:bits=4");
    const OwnedResidual residual = MakeResidual(kCount);
    const auto r = static_cast<unsigned>(rank);
    const std::vector<float> start = Gradient(kCount, kSeed + r);
    CHECK_OK(ccl_residual_import(residual.get(), start.data(), kCount));
    CHECK_OK(ccl_residual_set_scale(residual.get(), 0.3f));
    // Only one rank's residual differs from zero, and one rank has none.
    if (rank == 1) CHECK_OK(ccl_residual_reset(residual.get()));
    const std::vector<float> in = Gradient(kCount, kSeed + 50 + r);
    std::vector<float> corrected(kCount), expected(kCount), out = in;
    for (size_t i = 0; i < kCount; ++i) {
      corrected[i] = in[i] + (rank == 0 ? 0.3f * start[i] : 0.0f);
    }
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec.get();
    how.seed = 5;
    how.step = 9;
    CHECK_OK(ccl_allreduce_compressed(corrected.data(), expected.data(), kCount, CCL_FLOAT32,
                                      CCL_SUM, &how, comm, nullptr));
    if (rank != 2) how.residual = residual.get();
    CHECK_OK(ccl_allreduce_compressed(out.data(), out.data(), kCount, CCL_FLOAT32, CCL_SUM, &how,
                                      comm, nullptr));
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), kCount * sizeof(float)), 0);
  });
}

// The mean over steps of constant elements approaches them; without a residual they are rounded to
// the same numbers again and again.
TEST(ResidualCallTest, WhatRoundingLeavesOutArrivesLater) {
  constexpr size_t kElements = 512;
  constexpr int kSteps = 60;
  RunThreads(2, [&](int rank, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec("fp8");
    const OwnedResidual residual = MakeResidual(kElements);
    const float values[2] = {1.03f, -3.07f};  // 1 and -3 in fp8
    const std::vector<float> in(kElements, values[rank]);
    std::vector<float> out(2 * kElements);
    for (const bool feeds : {false, true}) {
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = codec.get();
      if (feeds) how.residual = residual.get();
      std::vector<double> sums(out.size());
      for (int step = 0; step < kSteps; ++step) {
        CHECK_OK(ccl_allgather_compressed(in.data(), out.data(), kElements, CCL_FLOAT32, &how, comm,
                                          nullptr));
        for (size_t i = 0; i < out.size(); ++i) sums[i] += static_cast<double>(out[i]);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        const double error = std::fabs(sums[i] / kSteps - double{values[i / kElements]});
        // A residual holds half a unit in the last place, 1/8 at most.
        if (feeds) {
          ASSERT_LT(error, 0.13 / kSteps);
        } else {
          ASSERT_GT(error, 0.029);
        }
      }
    }
  });
}

TEST(ResidualCallTest, StaysFinite) {
  RunThreads(2, [&](int rank, ccl_comm_t comm) {
    const OwnedResidual residual = MakeResidual(kCount);
    std::vector<float> in = Gradient(kCount, 3 + static_cast<unsigned>(rank)), out(kCount);
    in[rank == 0 ? 100 : 4000] = std::numeric_limits<float>::quiet_NaN();
    in[2000] = std::numeric_limits<float>::infinity();
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.residual = residual.get();
    for (int step = 0; step < 2; ++step) {
      CHECK_OK(ccl_allreduce_compressed(in.data(), out.data(), kCount, CCL_FLOAT32, CCL_SUM, &how,
                                        comm, nullptr));
      EXPECT_TRUE(std::isnan(out[100]));
      for (const float value : ValuesOf(residual, kCount)) ASSERT_TRUE(std::isfinite(value));
    }
  });
}

TEST(ResidualCallTest, OneRankKeepsWhatItsTypeRoundsOff) {
  RunThreads(1, [&](int, ccl_comm_t comm) {
    const OwnedResidual residual = MakeResidual(3);
    const float start[3] = {0x1p-10f, 0, 1};
    CHECK_OK(ccl_residual_import(residual.get(), start, 3));
    const uint16_t one = 0x3f80;  // bf16
    uint16_t in[3] = {one, one, one}, out[3] = {};
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.residual = residual.get();
    CHECK_OK(ccl_allreduce_compressed(in, out, 3, CCL_BFLOAT16, CCL_SUM, &how, comm, nullptr));
    EXPECT_EQ(out[0], one);
    EXPECT_EQ(out[1], one);
    EXPECT_EQ(out[2], 0x4000);  // 2
    EXPECT_EQ(ValuesOf(residual, 3), (std::vector<float>{0x1p-10f, 0, 0}));
  });
}

TEST(ResidualCallTest, KeepMixesOldAndNew) {
  RunThreads(2, [&](int, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec("none");
    const OwnedResidual residual = MakeResidual(2, CCL_FLOAT32, 0.75f);
    const float start[2] = {8, -4};
    CHECK_OK(ccl_residual_import(residual.get(), start, 2));
    const float in[2] = {1, 2};
    float out[2] = {};
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec.get();
    how.residual = residual.get();
    CHECK_OK(ccl_allreduce_compressed(in, out, 2, CCL_FLOAT32, CCL_SUM, &how, comm, nullptr));
    EXPECT_EQ(out[0], 18);
    EXPECT_EQ(out[1], -4);
    EXPECT_EQ(ValuesOf(residual, 2), (std::vector<float>{6, -3}));
  });
}

// That a call which failed elsewhere is taken back is tested where ranks die (tests/faults).
TEST(ResidualCallTest, RollbackKeepsWhatAllRanksHaveCompleted) {
  RunThreads(2, [&](int rank, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec("hbi:bits=4");
    const OwnedResidual residual = MakeResidual(kCount, CCL_BFLOAT16);
    std::vector<float> in = Gradient(kCount, 11 + static_cast<unsigned>(rank)), out(kCount);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec.get();
    how.residual = residual.get();
    std::vector<std::vector<float>> states = {ValuesOf(residual, kCount)};
    for (int call = 1; call <= 2; ++call) {
      CHECK_OK(ccl_allreduce_compressed(in.data(), out.data(), kCount, CCL_FLOAT32, CCL_SUM, &how,
                                        comm, nullptr));
      states.push_back(ValuesOf(residual, kCount));
    }
    ccl_comm_t same = nullptr;
    CHECK_OK(ccl_comm_shrink(comm, nullptr, 0, &same, nullptr, CCL_SHRINK_DEFAULT));
    for (ccl_comm_t one : {comm, same}) {
      CHECK_OK(ccl_residual_rollback(residual.get(), one));
      EXPECT_EQ(ValuesOf(residual, kCount), states[2]);
    }
    // The parent goes on after the shrink.
    CHECK_OK(ccl_allreduce_compressed(in.data(), out.data(), kCount, CCL_FLOAT32, CCL_SUM, &how,
                                      comm, nullptr));
    const std::vector<float> later = ValuesOf(residual, kCount);
    EXPECT_NE(later, states[2]);
    CHECK_OK(ccl_residual_rollback(residual.get(), same));
    EXPECT_EQ(ValuesOf(residual, kCount), later);
    CHECK_OK(ccl_comm_destroy(same));
    EXPECT_EQ(ccl_residual_rollback(residual.get(), nullptr), CCL_INVALID_ARGUMENT);
    EXPECT_NE(states[1], states[0]);
    EXPECT_NE(states[1], states[2]);
  });
}

void ExpectError(ccl_result_t result, const char* argument) {
  EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(argument), std::string::npos)
      << ccl_get_last_error(nullptr);
}

TEST(ResidualCallTest, WrongArgumentsAreNamed) {
  RunThreads(2, [&](int, ccl_comm_t comm) {
    OwnedResidual residual = MakeResidual(64);
    std::vector<float> in(128), out(128);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.residual = residual.get();
    const auto reduce = [&](size_t count, ccl_datatype_t type, ccl_redop_t op) {
      return ccl_allreduce_compressed(in.data(), out.data(), count, type, op, &how, comm, nullptr);
    };
    ExpectError(reduce(63, CCL_FLOAT32, CCL_SUM), "residual: of 64 elements, send has 63");
    ExpectError(reduce(64, CCL_INT32, CCL_SUM), "residual: type int32");
    ExpectError(reduce(64, CCL_FLOAT32, CCL_MAX), "residual: reduction max");
    ExpectError(ccl_reduce_scatter_compressed(in.data(), out.data(), 64, CCL_FLOAT32, CCL_SUM, &how,
                                              comm, nullptr),
                "send has 128");
    const ccl_residual_t gone = residual.release();
    CHECK_OK(ccl_residual_destroy(gone));
    ExpectError(reduce(64, CCL_FLOAT32, CCL_SUM), "residual: not a residual, or destroyed");
    ExpectError(ccl_residual_reset(gone), "residual");
    ExpectError(ccl_residual_destroy(gone), "residual");
  });
  EXPECT_EQ(ccl_residual_destroy(nullptr), CCL_SUCCESS);
  ccl_residual_t made = nullptr;
  ExpectError(ccl_residual_create(nullptr, 1, nullptr), "residual: NULL");
  ExpectError(ccl_residual_create(&made, SIZE_MAX / 2, nullptr), "count");
  ccl_residual_config_t config = CCL_RESIDUAL_CONFIG_INIT;
  config.storage = CCL_INT32;
  ExpectError(ccl_residual_create(&made, 1, &config), "config->storage: int32");
  config = CCL_RESIDUAL_CONFIG_INIT;
  config.keep = 1;
  ExpectError(ccl_residual_create(&made, 1, &config), "config->keep: 1");
  config.keep = std::numeric_limits<float>::quiet_NaN();
  ExpectError(ccl_residual_create(&made, 1, &config), "config->keep");
  config.size = 3;
  ExpectError(ccl_residual_create(&made, 1, &config), "config->size: 3");
  const OwnedResidual residual = MakeResidual(4);
  float values[4] = {};
  ExpectError(ccl_residual_export(residual.get(), values, 3), "count: 3");
  ExpectError(ccl_residual_import(residual.get(), nullptr, 4), "values: NULL");
  // What is not finite would never leave the residual, and spoil every later call.
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const float good[4] = {1, 2, 3, 4}, spoiled[4] = {5, 6, bad, 8};
    EXPECT_EQ(ccl_residual_import(residual.get(), good, 4), CCL_SUCCESS);
    ExpectError(ccl_residual_import(residual.get(), spoiled, 4), "values: element 2 is ");
    EXPECT_EQ(ccl_residual_export(residual.get(), values, 4), CCL_SUCCESS);
    EXPECT_TRUE(std::equal(std::begin(good), std::end(good), values));
  }
  ExpectError(ccl_residual_set_scale(residual.get(), std::numeric_limits<float>::infinity()),
              "scale");
}

TEST(ResidualCallTest, ImportsEndAtTheLargestOfTheStorage) {
  const OwnedResidual residual = MakeResidual(2, CCL_BFLOAT16);
  constexpr float kTop = std::numeric_limits<float>::max();
  const float large[2] = {kTop, -kTop};
  float values[2] = {};
  EXPECT_EQ(ccl_residual_import(residual.get(), large, 2), CCL_SUCCESS);
  EXPECT_EQ(ccl_residual_export(residual.get(), values, 2), CCL_SUCCESS);
  EXPECT_EQ(values[0], 0x1.FEp127f);
  EXPECT_EQ(values[1], -0x1.FEp127f);
}

}  // namespace
}  // namespace inccl::test
