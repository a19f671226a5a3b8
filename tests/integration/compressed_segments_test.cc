// SPDX-License-Identifier: Apache-2.0
//
// ccl_reduce_scatter_compressed and ccl_allgather_compressed against the oracle, bit for bit: over
// algorithms, slice sizes, channels, transports, instruction sets and ranks; what their stats say;
// and the error on recorded gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "compress/float_types.h"
#include "integration/compressed_world.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

class SegmentsTest : public testing::TestWithParam<Collective> {
 protected:
  static bool scatters() { return GetParam() == Collective::kReduceScatter; }

  // Inputs of a call of segments of `count` elements.
  static Vectors Inputs(int n, size_t count, uint64_t seed) {
    return MakeInputs(n, scatters() ? count * static_cast<size_t>(n) : count, seed);
  }

  // What each rank must end with.
  static Vectors Expected(const Vectors& inputs, const HbiOptions& options) {
    if (scatters()) return HbiReduceScatter(inputs, options);
    return Vectors(inputs.size(), HbiAllGather(inputs, options));
  }

  static void ExpectEverywhere(const Vectors& inputs, const CallOptions& options,
                               const HbiOptions& oracle, const std::vector<Route>& ways) {
    const Vectors expected = Expected(inputs, oracle);
    for (const Route& way : ways) {
      const Outcome outcome = RunCompressed(GetParam(), inputs, options, way);
      for (size_t r = 0; r < inputs.size(); ++r) {
        ASSERT_EQ(Differences(outcome.outputs[r], expected[r]), 0u)
            << Describe(way) << ", rank " << r << " of " << inputs.size() << ", "
            << expected[r].size() << " elements, " << options.spec;
        ASSERT_EQ(outcome.stats[r].compressed, 1);
      }
    }
  }

  // The exact result of rank r, element by element.
  static std::vector<double> Exact(const Vectors& inputs, size_t r) {
    std::vector<double> exact;
    if (!scatters()) {
      for (const std::vector<float>& input : inputs) {
        exact.insert(exact.end(), input.begin(), input.end());
      }
      return exact;
    }
    const size_t count = inputs[0].size() / inputs.size();
    exact.resize(count);
    for (const std::vector<float>& input : inputs) {
      for (size_t i = 0; i < count; ++i) exact[i] += double{input[r * count + i]};
    }
    return exact;
  }
};

const std::vector<Route> kAlgorithms = {{.algorithm = "ring"}, {.algorithm = "direct"}};

TEST_P(SegmentsTest, SameBytesEveryWay) {
  std::vector<Route> ways;
  for (const char* algorithm : {"ring", "direct"}) {
    for (const char* channels : {"1", "8"}) {
      for (const char* slice : {"16384", "1048576"}) {
        for (const char* transport : {"loopback", "shm"}) {
          ways.push_back({algorithm, channels, slice, transport, "best"});
        }
      }
    }
    ways.push_back({algorithm, "2", "16384", "loopback", "scalar"});
  }
  ExpectEverywhere(Inputs(4, 50001, TestSeed()), {}, {.bits8 = 48, .step = 1}, ways);
}

TEST_P(SegmentsTest, EveryAlgorithmAndNumberOfRanks) {
  const uint64_t seed = TestSeed() + 1;
  for (int n = 2; n <= (kSanitized ? 4 : 8); ++n) {
    for (const size_t count : {size_t{1}, size_t{31}, size_t{256}, size_t{257}, size_t{9001}}) {
      ExpectEverywhere(Inputs(n, count, seed + count), {}, {.bits8 = 48, .step = 1}, kAlgorithms);
      if (HasFailure()) return;
    }
  }
}

// Each segment has windows of its own; rows of different length at the end.
TEST_P(SegmentsTest, SeveralWindows) {
  const Vectors inputs = Inputs(2, (size_t{kSanitized ? 1 : 3} << 20) + 777, TestSeed() + 2);
  ExpectEverywhere(inputs, {}, {.bits8 = 48, .step = 1},
                   {{.algorithm = "direct"}, {.algorithm = "ring", .channels = "2"}});
}

TEST_P(SegmentsTest, EveryOption) {
  const Vectors inputs = Inputs(5, 6011, TestSeed() + 3);
  struct Option {
    CallOptions call;
    HbiOptions oracle;
  };
  const std::vector<Option> options = {
      {{.spec = "hbi:bits=4"}, {.bits8 = 32, .step = 1}},
      {{.spec = "hbi:bits=8"}, {.bits8 = 64, .step = 1}},
      {{.spec = "hbi:bits=5.5"}, {.bits8 = 44, .step = 1}},
      {{.spec = "hbi:bits=0.5"}, {.bits8 = 4, .step = 1}},
      {{.spec = "hbi:bits=16"}, {.bits8 = 128, .step = 1}},
      {{.spec = "hbi:bits=6,ref=ring"}, {.bits8 = 48, .step = 1, .ring = true}},
      {{.spec = "hbi:bits=6,ag=exact"}, {.bits8 = 48, .step = 1}},
      {{.spec = "hbi:k=15,k2=31"}, {.k = 15, .step = 1}},
      {{.spec = "hbi:k=1,k2=127"}, {.k = 1, .step = 1}},
      {{.spec = "hbi:bits=6", .op = CCL_AVG}, {.bits8 = 48, .step = 1, .average = scatters()}},
      {{.spec = "hbi:bits=6", .seed = 7, .step = 3}, {.bits8 = 48, .seed = 7, .step = 3}},
      {{.spec = "hbi:bits=6", .in_place = true}, {.bits8 = 48, .step = 1}},
      {{.spec = "hbi:bits=4,unbiased=1"}, {.bits8 = 32, .step = 1, .unbiased = true}},
      {{.spec = "hbi:bits=3,code=entropy"}, {.bits8 = 24, .step = 1, .entropy = true}},
      {{.spec = "hbi:bits=6,code=entropy,checksum=1"}, {.bits8 = 48, .step = 1, .entropy = true}},
      {{.spec = "hbi:bits=5,rht=1,checksum=1"}, {.bits8 = 40, .step = 1, .rht = true}},
  };
  for (const Option& option : options) {
    ExpectEverywhere(inputs, option.call, option.oracle, kAlgorithms);
    if (HasFailure()) return;
  }
}

TEST_P(SegmentsTest, NonFiniteElementsPoisonTheirSuperblock) {
  constexpr size_t kCount = 1024 + 40;
  Vectors inputs = Inputs(3, kCount, 5);
  for (std::vector<float>& input : inputs) {
    for (float& x : input) x = x == 0 ? 1.0f : std::ldexp(x, 20);
  }
  // Places in a rank's send buffer; in a reduce-scatter those of segments 0, 1, 0.
  const std::pair<size_t, size_t> places[] = {{0, 100}, {1, kCount - 1}, {2, 200}};
  inputs[0][100] = std::numeric_limits<float>::quiet_NaN();
  inputs[1][kCount - 1] = std::numeric_limits<float>::infinity();
  inputs[2][200] = -std::numeric_limits<float>::infinity();
  ExpectEverywhere(inputs, {}, {.bits8 = 48, .step = 1}, kAlgorithms);
  const Outcome outcome = RunCompressed(GetParam(), inputs, {}, {.algorithm = "direct"});
  for (size_t r = 0; r < 3; ++r) {
    // The last superblock has two blocks.
    EXPECT_EQ(outcome.stats[r].poisoned_blocks, scatters() ? 8u + 2u : 8u + 2u + 8u);
    for (size_t i = 0; i < outcome.outputs[r].size(); ++i) {
      bool poisoned = false;
      for (const auto& [rank, at] : places) {
        const size_t segment = scatters() ? at / kCount : rank;
        const size_t mine = scatters() ? r : i / kCount;
        poisoned |= segment == mine && i % kCount / 256 == at % kCount / 256;
      }
      ASSERT_EQ(std::isnan(outcome.outputs[r][i]), poisoned) << "rank " << r << " element " << i;
    }
  }
}

// Zeros stay +0, denormals and huge values stay within the bound.
TEST_P(SegmentsTest, ZerosDenormalsAndHugeValues) {
  Vectors inputs = Inputs(3, 2048, 11);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < inputs[r].size(); ++i) {
      float& x = inputs[r][i];
      switch (i / 256 % 4) {
        case 0: x = i % 2 == 0 ? 0.0f : -0.0f; break;
        case 1: x = std::numeric_limits<float>::denorm_min() * static_cast<float>(i % 97); break;
        case 2: x = i % 3 == 0 ? -0.0f : std::ldexp(static_cast<float>(i % 11) - 5, 110); break;
        default: break;
      }
    }
  }
  for (const char* spec : {"hbi:bits=4", "hbi:bits=8", "hbi:k=7"}) {
    const Outcome outcome =
        RunCompressed(GetParam(), inputs, {.spec = spec}, {.algorithm = "ring"});
    for (size_t r = 0; r < 3; ++r) {
      const std::vector<double> exact = Exact(inputs, r);
      for (size_t i = 0; i < exact.size(); ++i) {
        const float got = outcome.outputs[r][i];
        ASSERT_LE(std::abs(got - exact[i]), outcome.stats[r].error_bound) << spec << " " << i;
        bool zero = true;
        if (scatters()) {
          for (const auto& input : inputs) zero &= input[r * exact.size() + i] == 0;
        } else {
          zero = exact[i] == 0;
        }
        if (zero) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got), 0u) << spec << " " << i;
        }
      }
    }
  }
}

void ExpectTrueStats(const Outcome& outcome, size_t count, double bits) {
  const auto n = static_cast<double>(outcome.stats.size());
  const double padded = std::ceil(static_cast<double>(count) / 256) * 256;
  for (const ccl_compression_stats_t& stats : outcome.stats) {
    EXPECT_EQ(stats.elements, count);
    EXPECT_GT(stats.wire_bytes, stats.payload_bytes);
    EXPECT_EQ((stats.wire_bytes - stats.payload_bytes) % 64, 0u);
    EXPECT_NEAR(stats.ratio, 32 / stats.bits, 1e-9);
    EXPECT_NEAR(
        stats.bits,
        8.0 * static_cast<double>(stats.payload_bytes) / (n - 1) / static_cast<double>(count),
        1e-9);
    // The hard cap of the plan, in whole superblocks.
    const double sent = 8.0 * static_cast<double>(stats.payload_bytes);
    EXPECT_LE(sent, (n - 1) * bits * padded);
    EXPECT_GE(sent, (n - 1) * (bits - 0.25) * padded);
  }
}

TEST_P(SegmentsTest, StatsAreTrue) {
  constexpr size_t kCount = 75000;
  const Vectors inputs = Inputs(4, kCount, TestSeed() + 4);
  for (const auto& [spec, bits] :
       {std::pair("hbi:bits=4", 4.0), std::pair("hbi:bits=6", 6.0), std::pair("hbi:bits=8", 8.0)}) {
    SCOPED_TRACE(spec);
    const Outcome outcome = RunCompressed(GetParam(), inputs, {.spec = spec}, {});
    ExpectTrueStats(outcome, kCount, bits);
    double worst = 0;
    for (size_t r = 0; r < inputs.size(); ++r) {
      const std::vector<double> exact = Exact(inputs, r);
      for (size_t i = 0; i < exact.size(); ++i) {
        worst = std::max(worst, std::abs(outcome.outputs[r][i] - exact[i]));
      }
    }
    for (const ccl_compression_stats_t& stats : outcome.stats) {
      EXPECT_LE(worst, stats.error_bound);
      EXPECT_LT(stats.error_bound, 100 * worst) << "the bound says nothing";
      EXPECT_EQ(stats.zero_blocks, outcome.stats[0].zero_blocks);
      EXPECT_EQ(stats.dropped_superblocks, outcome.stats[0].dropped_superblocks);
    }
  }
}

// Gradients of 8 data-parallel ranks: the whole vector is scattered, or gathered from equal parts.
// Every bound holds; the mean square error is that of a quantizer that spends its bits well.
TEST_P(SegmentsTest, RecordedGradients) {
  for (const int step : {5, 300, 600}) {
    const Vectors inputs = Gradients(step, kSanitized ? 3 : 8);
    double before = 1;
    for (const auto& [spec, most] : {std::pair("hbi:bits=4", 0.02), std::pair("hbi:bits=6", 1e-3),
                                     std::pair("hbi:bits=8", 5e-5)}) {
      const Outcome outcome = RunCompressed(GetParam(), inputs, {.spec = spec}, {});
      double error = 0, energy = 0;
      for (size_t r = 0; r < inputs.size(); ++r) {
        const std::vector<double> exact = Exact(inputs, r);
        for (size_t i = 0; i < exact.size(); ++i) {
          const double e = outcome.outputs[r][i] - exact[i];
          ASSERT_LE(std::abs(e), outcome.stats[r].error_bound) << spec;
          error += e * e;
          energy += exact[i] * exact[i];
        }
      }
      EXPECT_LT(error / energy, most) << spec << " step " << step;
      EXPECT_LT(error / energy, before / 4) << spec << " step " << step;
      before = error / energy;
    }
  }
}

TEST_P(SegmentsTest, WhatNoLossyCodecMayTouchRunsUncompressed) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.stats = &stats;
    const auto call = [&](const void* in, void* out, size_t count, ccl_datatype_t type,
                          ccl_redop_t op) {
      stats.compressed = 7;
      return CallCompressed(GetParam(), in, out, count, type, op, &how, comm);
    };
    const std::vector<int32_t> ints(2000, 1 << (20 + rank));
    std::vector<int32_t> more(2000);
    ASSERT_EQ(call(ints.data(), more.data(), 1000, CCL_INT32, CCL_SUM), CCL_SUCCESS);
    EXPECT_EQ(stats.compressed, 0);
    EXPECT_EQ(more[0], scatters() ? 3 << 20 : 1 << 20);
    const std::vector<float> floats(2000, 0.1f * static_cast<float>(rank + 1));
    std::vector<float> out(2000);
    ASSERT_EQ(call(floats.data(), out.data(), 1000, CCL_FLOAT32, CCL_MAX), CCL_SUCCESS);
    EXPECT_EQ(stats.compressed, scatters() ? 0 : 1);
    EXPECT_NEAR(out[5], scatters() ? 0.2f : 0.1f, 0.01);
    // min_bytes counts a segment.
    ccl_codec_t codec = nullptr;
    ASSERT_EQ(ccl_codec_create(&codec, "hbi:bits=6,min_bytes=4000"), CCL_SUCCESS);
    how.codec = codec;
    for (const size_t count : {size_t{0}, size_t{999}, size_t{1000}}) {
      ASSERT_EQ(call(floats.data(), out.data(), count, CCL_FLOAT32, CCL_SUM), CCL_SUCCESS);
      EXPECT_EQ(stats.compressed, count == 1000 ? 1 : 0);
    }
    how.codec = nullptr;
    ASSERT_EQ(call(floats.data(), out.data(), 0, CCL_FLOAT32, CCL_SUM), CCL_SUCCESS);
    EXPECT_EQ(stats.payload_bytes, 0u);
    EXPECT_EQ(stats.error_bound, 0);
    ccl_codec_destroy(codec);
  });
}

TEST_P(SegmentsTest, OneRankCopies) {
  RunThreads(1, [](int, ccl_comm_t comm) {
    const std::vector<float> in = {1.0f / 3, -2.0f / 3, 1e-30f};
    std::vector<float> out(3);
    ASSERT_EQ(
        CallCompressed(GetParam(), in.data(), out.data(), 3, CCL_FLOAT32, CCL_SUM, nullptr, comm),
        CCL_SUCCESS);
    EXPECT_EQ(out, in);
  });
}

TEST_P(SegmentsTest, NarrowTypesAreConvertedOnTheWayInAndRoundedOnceOnTheWayOut) {
  constexpr size_t kCount = 3007;
  constexpr int kRanks = 3;
  Vectors inputs = Inputs(kRanks, kCount, TestSeed() + 7);
  std::vector<std::vector<uint16_t>> narrow(kRanks);
  for (size_t r = 0; r < kRanks; ++r) {
    for (float& x : inputs[r]) {
      narrow[r].push_back(Bf16::Encode(x));
      x = Bf16::Decode(narrow[r].back());
    }
  }
  const Vectors expected = Expected(inputs, {.bits8 = 48, .step = 1});
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    const auto r = static_cast<size_t>(rank);
    std::vector<uint16_t> out(expected[r].size());
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.step = 1;
    ASSERT_EQ(CallCompressed(GetParam(), narrow[r].data(), out.data(), kCount, CCL_BFLOAT16,
                             CCL_SUM, &how, comm),
              CCL_SUCCESS);
    size_t wrong = 0;
    for (size_t i = 0; i < out.size(); ++i) wrong += out[i] != Bf16::Encode(expected[r][i]);
    EXPECT_EQ(wrong, 0u);
  });
}

// One communicator, one codec, all three collectives after each other: their lanes and states are
// shared. A reduce-scatter and an all-gather of what it gave.
TEST(CompressedTogetherTest, CollectivesShareACommunicator) {
  constexpr size_t kCount = 5000;
  const Vectors inputs = MakeInputs(4, 4 * kCount, TestSeed() + 8);
  Vectors parts = HbiReduceScatter(inputs, {.bits8 = 48, .step = 1});
  const std::vector<float> whole = HbiAllGather(parts, {.bits8 = 48, .step = 1});
  const std::vector<float> reduced = HbiAllReduce(inputs, {.bits8 = 48, .step = 1});
  for (const char* algorithm : {"ring", "direct"}) {
    const ScopedEnv env({{"INCCL_ALGO", algorithm}});
    RunThreads(4, [&](int rank, ccl_comm_t comm) {
      const std::vector<float>& in = inputs[static_cast<size_t>(rank)];
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.step = 1;
      std::vector<float> part(kCount), out(4 * kCount);
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(CallCompressed(Collective::kReduceScatter, in.data(), part.data(), kCount,
                                 CCL_FLOAT32, CCL_SUM, &how, comm),
                  CCL_SUCCESS);
        EXPECT_EQ(Differences(part, parts[static_cast<size_t>(rank)]), 0u);
        ASSERT_EQ(CallCompressed(Collective::kAllGather, part.data(), out.data(), kCount,
                                 CCL_FLOAT32, CCL_SUM, &how, comm),
                  CCL_SUCCESS);
        EXPECT_EQ(Differences(out, whole), 0u);
        ASSERT_EQ(CallCompressed(Collective::kAllReduce, in.data(), out.data(), 4 * kCount,
                                 CCL_FLOAT32, CCL_SUM, &how, comm),
                  CCL_SUCCESS);
        EXPECT_EQ(Differences(out, reduced), 0u);
      }
    });
  }
}

std::string NameOf(const testing::TestParamInfo<Collective>& parameter) {
  return Name(parameter.param);
}

INSTANTIATE_TEST_SUITE_P(Collectives, SegmentsTest,
                         testing::Values(Collective::kReduceScatter, Collective::kAllGather),
                         NameOf);

}  // namespace
}  // namespace inccl::test
