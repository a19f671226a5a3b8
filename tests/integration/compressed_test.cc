// SPDX-License-Identifier: Apache-2.0
//
// ccl_allreduce_compressed against the oracle, bit for bit: over algorithms, slice sizes, channels,
// transports, instruction sets and ranks; and what its stats say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compress/float_types.h"
#include "integration/compressed_world.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

Outcome AllReduce(const Vectors& inputs, const CallOptions& options, const Route& way) {
  return RunCompressed(Collective::kAllReduce, inputs, options, way);
}

void ExpectEverywhere(const Vectors& inputs, const CallOptions& options, const HbiOptions& oracle,
                      const std::vector<Route>& ways) {
  const std::vector<float> expected = HbiAllReduce(inputs, oracle);
  for (const Route& way : ways) {
    const Outcome outcome = AllReduce(inputs, options, way);
    for (size_t r = 0; r < inputs.size(); ++r) {
      ASSERT_EQ(Differences(outcome.outputs[r], expected), 0u)
          << Describe(way) << ", rank " << r << " of " << inputs.size() << ", " << expected.size()
          << " elements, " << options.spec;
      ASSERT_EQ(outcome.stats[r].compressed, 1);
    }
  }
}

const std::vector<Route> kAlgorithms = {
    {.algorithm = "ring"},
    {.algorithm = "tree"},
    {.algorithm = "recursive_doubling"},
    {.algorithm = "direct_one_shot"},
    {.algorithm = "direct_two_shot"},
};

TEST(CompressedTest, SameBytesEveryWay) {
  const uint64_t seed = TestSeed();
  std::vector<Route> ways;
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct_two_shot"}) {
    for (const char* channels : {"2", "8"}) {
      for (const char* slice : {"16384", "1048576"}) {
        for (const char* transport : ThreadTransports()) {
          ways.push_back({algorithm, channels, slice, transport, "best"});
        }
      }
    }
    ways.push_back({algorithm, "2", "16384", "loopback", "scalar"});
  }
  const Vectors inputs = MakeInputs(4, 200001, seed);
  ExpectEverywhere(inputs, {}, {.bits8 = 48, .step = 1}, ways);
}

TEST(CompressedTest, EveryAlgorithmAndNumberOfRanks) {
  const uint64_t seed = TestSeed() + 1;
  for (int n = 2; n <= (kSanitized ? 4 : 8); ++n) {
    for (const size_t count : {size_t{1}, size_t{31}, size_t{257}, size_t{5000}, size_t{70001}}) {
      ExpectEverywhere(MakeInputs(n, count, seed + count), {}, {.bits8 = 48, .step = 1},
                       kAlgorithms);
      if (HasFailure()) return;
    }
  }
}

TEST(CompressedTest, SeveralWindows) {
  const Vectors inputs = MakeInputs(3, (size_t{kSanitized ? 1 : 2} << 20) + 777, TestSeed() + 2);
  ExpectEverywhere(inputs, {}, {.bits8 = 48, .step = 1},
                   {{.algorithm = "direct_two_shot"}, {.algorithm = "ring", .channels = "2"}});
}

TEST(CompressedTest, EveryOption) {
  const Vectors inputs = MakeInputs(5, 30011, TestSeed() + 3);
  struct Option {
    CallOptions call;
    HbiOptions oracle;
  };
  const std::vector<Option> options = {
      {{.spec = "hbi:bits=4"}, {.bits8 = 32, .step = 1}},
      {{.spec = "hbi:bits=8"}, {.bits8 = 64, .step = 1}},
      {{.spec = "hbi:bits=5.5"}, {.bits8 = 44, .step = 1}},
      {{.spec = "hbi:bits=6,ref=ring"}, {.bits8 = 48, .step = 1, .ring = true}},
      {{.spec = "hbi:bits=6,ag=exact"}, {.bits8 = 48, .step = 1, .exact = true}},
      {{.spec = "hbi:k=15,k2=15"}, {.k = 15, .k2 = 15, .step = 1}},
      {{.spec = "hbi:k=1,k2=127"}, {.k = 1, .k2 = 127, .step = 1}},
      {{.spec = "hbi:bits=6", .op = CCL_AVG}, {.bits8 = 48, .step = 1, .average = true}},
      {{.spec = "hbi:bits=6", .seed = 7, .step = 3}, {.bits8 = 48, .seed = 7, .step = 3}},
      {{.spec = "hbi:bits=6", .in_place = true}, {.bits8 = 48, .step = 1}},
      {{.spec = "hbi:bits=4,unbiased=1"}, {.bits8 = 32, .step = 1, .unbiased = true}},
      {{.spec = "hbi:bits=3,code=entropy"}, {.bits8 = 24, .step = 1, .entropy = true}},
      {{.spec = "hbi:bits=5.5,code=entropy,checksum=1"}, {.bits8 = 44, .step = 1, .entropy = true}},
      {{.spec = "hbi:bits=5,rht=1"}, {.bits8 = 40, .step = 1, .rht = true}},
      {{.spec = "hbi:bits=6,checksum=1"}, {.bits8 = 48, .step = 1}},
  };
  for (const Option& option : options) {
    ExpectEverywhere(inputs, option.call, option.oracle, kAlgorithms);
    if (HasFailure()) return;
  }
}

std::vector<Route> WaysOf(const std::vector<const char*>& algorithms) {
  std::vector<Route> ways;
  for (const char* algorithm : algorithms) {
    for (const char* transport : ThreadTransports()) {
      ways.push_back({algorithm, "1", "131072", transport, "best"});
    }
    ways.push_back({algorithm, "4", "16384", "loopback", "scalar"});
  }
  return ways;
}

// Groups: the direct algorithms give the same, whether sums of groups travel (two shots) or are
// taken by who wants them (one shot); so does a communicator that asks for reproducible results.
TEST(CompressedTest, Groups) {
  const std::vector<Route> direct = WaysOf({"direct_two_shot", "direct_one_shot"});
  for (const auto& [n, m] : {std::pair(4, 2), std::pair(7, 3)}) {
    for (const size_t count : {size_t{300}, size_t{30001}}) {
      const Vectors inputs = MakeInputs(n, count, TestSeed() + count);
      const std::string groups = "m=" + std::to_string(m);
      ExpectEverywhere(inputs, {.spec = "hbi:" + groups}, {.bits8 = 48, .step = 1, .m = m}, direct);
      ExpectEverywhere(inputs, {.spec = "hbi:bits=5,checksum=1," + groups},
                       {.bits8 = 40, .step = 1, .m = m}, direct);
      if (HasFailure()) return;
    }
  }
  const Vectors inputs = MakeInputs(4, (size_t{1} << 20) + 777, TestSeed() + 9);
  const HbiOptions groups{
      .bits8 = 40, .step = 1, .average = true, .unbiased = true, .rht = true, .m = 2};
  const CallOptions options{.spec = "hbi:bits=5,m=2,rht=1,unbiased=1", .op = CCL_AVG};
  ExpectEverywhere(inputs, options, groups,
                   {{.algorithm = "direct"}, {.algorithm = "direct,ring", .channels = "4"}});
  const ScopedEnv reproducible({{"INCCL_REPRODUCIBLE", "1"}});
  ExpectEverywhere(inputs, options, groups, {{.algorithm = "direct,ring"}});
}

// Forced elsewhere, they are refused with both names, and the communicator stays usable.
TEST(CompressedTest, GroupsRefuseOtherAlgorithms) {
  for (const char* algorithm : {"ring", "tree"}) {
    const ScopedEnv env({{"INCCL_ALGO", algorithm}});
    RunThreads(2, [&](int, ccl_comm_t comm) {
      ccl_codec_t codec = nullptr;
      ASSERT_EQ(ccl_codec_create(&codec, "hbi:m=2"), CCL_SUCCESS);
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = codec;
      std::vector<float> x(5000, 1.0f), y(10000);
      EXPECT_EQ(ccl_allreduce_compressed(x.data(), x.data(), x.size(), CCL_FLOAT32, CCL_SUM, &how,
                                         comm, nullptr),
                CCL_INVALID_ARGUMENT);
      const std::string error = ccl_get_last_error(comm);
      for (const char* word : {"m of the codec", "direct only", algorithm}) {
        EXPECT_NE(error.find(word), std::string::npos) << error;
      }
      EXPECT_EQ(
          ccl_allgather_compressed(x.data(), y.data(), x.size(), CCL_FLOAT32, &how, comm, nullptr),
          CCL_INVALID_ARGUMENT);
      ccl_codec_destroy(codec);
      EXPECT_EQ(ccl_allreduce(x.data(), x.data(), x.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr),
                CCL_SUCCESS);
    });
  }
}

TEST(CompressedTest, NonFiniteElementsPoisonTheirSuperblockOnEveryRank) {
  Vectors inputs = MakeInputs(3, 4096, 5);
  for (std::vector<float>& input : inputs) {
    for (float& x : input) x = x == 0 ? 1.0f : std::ldexp(x, 20);
  }
  inputs[0][100] = std::numeric_limits<float>::quiet_NaN();
  inputs[1][1000] = std::numeric_limits<float>::infinity();
  inputs[2][4095] = -std::numeric_limits<float>::infinity();
  const Outcome outcome = AllReduce(inputs, {}, {});
  ExpectEverywhere(inputs, {}, {.bits8 = 48, .step = 1}, kAlgorithms);
  for (const std::vector<float>& output : outcome.outputs) {
    for (size_t i = 0; i < output.size(); ++i) {
      const bool poisoned = i / 256 == 100 / 256 || i / 256 == 1000 / 256 || i / 256 == 4095 / 256;
      EXPECT_EQ(std::isnan(output[i]), poisoned) << i;
    }
  }
  for (const ccl_compression_stats_t& stats : outcome.stats) EXPECT_EQ(stats.poisoned_blocks, 24u);
}

TEST(CompressedTest, StatsAreTrue) {
  constexpr size_t kCount = 300000;
  constexpr int kRanks = 4;
  const Vectors inputs = MakeInputs(kRanks, kCount, TestSeed() + 4);
  std::vector<double> exact(kCount);
  for (const std::vector<float>& input : inputs) {
    for (size_t i = 0; i < kCount; ++i) exact[i] += input[i];
  }
  for (const auto& [spec, bits] :
       {std::pair("hbi:bits=4", 4.0), std::pair("hbi:bits=6", 6.0), std::pair("hbi:bits=8", 8.0)}) {
    const Outcome outcome = AllReduce(inputs, {.spec = spec}, {});
    uint64_t payload = 0;
    for (size_t r = 0; r < kRanks; ++r) {
      const ccl_compression_stats_t& stats = outcome.stats[r];
      payload += stats.payload_bytes;
      EXPECT_EQ(stats.elements, kCount);
      EXPECT_GT(stats.wire_bytes, stats.payload_bytes);
      EXPECT_EQ((stats.wire_bytes - stats.payload_bytes) % 64, 0u);
      EXPECT_NEAR(stats.ratio, 32 / stats.bits, 1e-9);
      double worst = 0;
      for (size_t i = 0; i < kCount; ++i) {
        worst = std::max(worst, std::abs(outcome.outputs[r][i] - exact[i]));
      }
      EXPECT_LE(worst, stats.error_bound);
      EXPECT_LT(stats.error_bound, 100 * worst) << "the bound says nothing";
    }
    // The hard cap of the plan, over all ranks, in whole superblocks.
    const double padded = (kCount + 255) / 256 * 256;
    EXPECT_LE(8.0 * static_cast<double>(payload), 2.0 * (kRanks - 1) * bits * padded) << spec;
    EXPECT_GE(8.0 * static_cast<double>(payload), 2.0 * (kRanks - 1) * (bits - 0.25) * padded)
        << spec;
  }
}

TEST(CompressedTest, StatsCountChecksums) {
  const Vectors inputs = MakeInputs(3, 100000, TestSeed() + 8);
  for (const char* algorithm : {"direct_two_shot", "ring"}) {
    const Route way{.algorithm = algorithm, .slice_bytes = "16384"};
    const Outcome bare = AllReduce(inputs, {.spec = "hbi:bits=5"}, way);
    const Outcome checked = AllReduce(inputs, {.spec = "hbi:bits=5,checksum=1"}, way);
    for (size_t r = 0; r < inputs.size(); ++r) {
      const ccl_compression_stats_t& stats = checked.stats[r];
      const uint64_t slices = (stats.wire_bytes - stats.payload_bytes) / 64;
      EXPECT_EQ(stats.payload_bytes, bare.stats[r].payload_bytes + 4 * slices);
      EXPECT_EQ(Differences(checked.outputs[r], bare.outputs[r]), 0u);
    }
  }
}

TEST(CompressedTest, WhatNoLossyCodecMayTouchRunsUncompressed) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.stats = &stats;
    std::vector<int32_t> ints(1000, 1 << (20 + rank));
    stats.compressed = 7;
    ASSERT_EQ(ccl_allreduce_compressed(ints.data(), ints.data(), ints.size(), CCL_INT32, CCL_SUM,
                                       &how, comm, nullptr),
              CCL_SUCCESS);
    EXPECT_EQ(stats.compressed, 0);
    EXPECT_EQ(ints[999], (1 << 20) + (1 << 21));
    std::vector<float> floats(1000, 0.1f * static_cast<float>(rank + 1));
    ASSERT_EQ(ccl_allreduce_compressed(floats.data(), floats.data(), floats.size(), CCL_FLOAT32,
                                       CCL_MAX, &how, comm, nullptr),
              CCL_SUCCESS);
    EXPECT_EQ(stats.compressed, 0);
    EXPECT_EQ(floats[5], 0.2f);
    ccl_codec_t codec = nullptr;
    ASSERT_EQ(ccl_codec_create(&codec, "hbi:bits=6,min_bytes=8000"), CCL_SUCCESS);
    how.codec = codec;
    for (const size_t count : {size_t{1999}, size_t{2000}}) {
      std::vector<float> x(count, 1.25f);
      ASSERT_EQ(ccl_allreduce_compressed(x.data(), x.data(), count, CCL_FLOAT32, CCL_SUM, &how,
                                         comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(stats.compressed, count == 2000 ? 1 : 0);
    }
    ccl_codec_destroy(codec);
  });
}

// Below min_bytes: the sum in fp32 in the order of the ranks, whatever the other algorithms do.
TEST(CompressedTest, BelowMinBytesIsTheSumInRankOrder) {
  constexpr int kRanks = kSanitized ? 4 : 18;  // more than 16: small calls take other algorithms
  constexpr size_t kCount = 100;
  const Vectors inputs = MakeInputs(kRanks, kCount, TestSeed() + 11);
  std::vector<float> expected = inputs[0];
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < kCount; ++i) expected[i] += inputs[r][i];
  }
  const Route any{.algorithm = "ring,tree,recursive_doubling,direct"};
  const Outcome small = AllReduce(inputs, {.spec = "hbi:min_bytes=401"}, any);
  const Outcome large = AllReduce(inputs, {.spec = "hbi:min_bytes=400"}, any);
  for (size_t r = 0; r < inputs.size(); ++r) {
    EXPECT_EQ(Differences(small.outputs[r], expected), 0u);
    EXPECT_EQ(small.stats[r].compressed, 0);
    EXPECT_EQ(large.stats[r].compressed, 1);
  }
}

// What a specification cannot hold on this communicator is refused by every rank before anything is
// sent, and the communicator stays usable.
TEST(CompressedTest, ABudgetTooSmallForUnbiasedIsRefused) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    ccl_codec_t codec = nullptr;
    ASSERT_EQ(ccl_codec_create(&codec, "hbi:bits=2,unbiased=1"), CCL_SUCCESS);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec;
    std::vector<float> x(1000, static_cast<float>(rank));
    EXPECT_EQ(ccl_allreduce_compressed(x.data(), x.data(), x.size(), CCL_FLOAT32, CCL_SUM, &how,
                                       comm, nullptr),
              CCL_INVALID_ARGUMENT);
    const std::string error = ccl_get_last_error(comm);
    EXPECT_NE(error.find("bits=2 "), std::string::npos) << error;
    EXPECT_NE(error.find("bits=2.25"), std::string::npos) << error;
    double bits = 0, relative = 0;
    EXPECT_EQ(ccl_codec_bound(codec, 1000, 3, &bits, &relative), CCL_INVALID_ARGUMENT);
    ccl_codec_destroy(codec);
    EXPECT_EQ(ccl_allreduce(x.data(), x.data(), x.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_SUCCESS);
    EXPECT_EQ(x[7], 3.0f);
  });
}

// A call of few elements would carry a whole superblock.
TEST(CompressedTest, FewElementsTakeNoMoreBytesThanUncompressed) {
  const ScopedEnv env({{"INCCL_ALGO", "direct_two_shot"}});
  RunThreads(4, [](int rank, ccl_comm_t comm) {
    for (const size_t count : {1, 48, 81, 255, 256, 300}) {
      for (const char* spec : {"hbi", "hbi:bits=16", "hbi:k=4095"}) {
        uint64_t payload[2] = {};
        std::vector<float> x(count, static_cast<float>(rank) + 0.1f), exact(count), sum(count);
        for (const bool compressed : {false, true}) {
          ccl_codec_t codec = nullptr;
          ASSERT_EQ(ccl_codec_create(&codec, compressed ? spec : "none"), CCL_SUCCESS);
          ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
          ccl_compression_t how = CCL_COMPRESSION_INIT;
          how.codec = codec;
          how.stats = &stats;
          ASSERT_EQ(ccl_allreduce_compressed(x.data(), compressed ? sum.data() : exact.data(),
                                             count, CCL_FLOAT32, CCL_SUM, &how, comm, nullptr),
                    CCL_SUCCESS);
          payload[compressed ? 1 : 0] = stats.payload_bytes;
          ccl_codec_destroy(codec);
        }
        // Of all ranks.
        ASSERT_EQ(ccl_allreduce(payload, payload, 2, CCL_UINT64, CCL_SUM, comm, nullptr),
                  CCL_SUCCESS);
        EXPECT_LE(payload[1], payload[0]) << spec << ", " << count << " elements";
        if (count < 256) {
          EXPECT_EQ(sum, exact) << spec << ", " << count << " elements";
        }
      }
    }
  });
}

size_t Occurrences(const std::string& text, const std::string& word) {
  size_t times = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++times;
  return times;
}

// Magnitudes do not matter: the squared error in relation to the data is the same at 1e-30 and
// 1e30.
TEST(CompressedTest, EveryMagnitudeHasTheSameAccuracy) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 50000;  // of a segment
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    const size_t sent = collective == Collective::kReduceScatter ? kRanks * kCount : kCount;
    const size_t received = collective == Collective::kAllGather ? kRanks * kCount : kCount;
    std::vector<std::vector<double>> data(kRanks, std::vector<double>(sent));
    std::mt19937_64 random(TestSeed());
    std::normal_distribution<double> normal;
    for (std::vector<double>& x : data) {
      for (double& value : x) value = normal(random);
    }
    double at_one[2] = {};
    for (int exponent = 0; exponent <= 62; ++exponent) {
      const int k = exponent == 0 ? 0 : exponent - 32;  // 0 first, then -31 to 30
      if (k == -31) continue;
      SCOPED_TRACE(fmt::format("{} 1e{}", Name(collective), k));
      const double factor = std::pow(10.0, k);
      for (const int way : {0, 1}) {
        std::vector<std::vector<float>> results(kRanks, std::vector<float>(received));
        RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
          std::vector<float> x;
          for (const double value : data[static_cast<size_t>(rank)]) {
            x.push_back(static_cast<float>(value * factor));
          }
          ccl_codec_t codec = nullptr;
          ASSERT_EQ(ccl_codec_create(&codec, way == 0 ? "hbi" : "hbi:bits=3,code=entropy"),
                    CCL_SUCCESS);
          ccl_compression_t how = CCL_COMPRESSION_INIT;
          how.codec = codec;
          ASSERT_EQ(CallCompressed(collective, x.data(), results[static_cast<size_t>(rank)].data(),
                                   kCount, CCL_FLOAT32, CCL_SUM, &how, comm),
                    CCL_SUCCESS);
          ccl_codec_destroy(codec);
        });
        double error = 0, square = 0;
        for (size_t i = 0; i < received; ++i) {
          double exact = 0;
          if (collective == Collective::kAllGather) {
            exact = data[i / kCount][i % kCount];
          } else {
            for (const std::vector<double>& x : data) exact += x[i];
          }
          error += std::pow(double{results[0][i]} / factor - exact, 2);
          square += exact * exact;
        }
        const double relative = error / square;
        if (k == 0) at_one[way] = relative;
        EXPECT_LT(relative, 1.1 * at_one[way]);
        EXPECT_GT(relative, at_one[way] / 1.1);
      }
    }
  }
}

// Where `bits` is too little for a level in every superblock.
TEST(CompressedTest, WarnsOnceOfDroppedSuperblocks) {
  struct Spec {
    const char* text;
    bool warns;
  };
  for (const Spec& spec : {Spec{"hbi:bits=1", true}, Spec{"hbi:bits=2.25", false},
                           Spec{"hbi:bits=1,levels=energy", false}}) {
    SCOPED_TRACE(spec.text);
    testing::internal::CaptureStderr();
    RunThreads(3, [&](int, ccl_comm_t comm) {
      std::vector<float> x(4096, 1.0f), y(4096);
      x[300] = 0.5f;
      ccl_codec_t codec = nullptr;
      ASSERT_EQ(ccl_codec_create(&codec, spec.text), CCL_SUCCESS);
      ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = codec;
      how.stats = &stats;
      for (int call = 0; call < 3; ++call) {
        ASSERT_EQ(ccl_allreduce_compressed(x.data(), y.data(), x.size(), CCL_FLOAT32, CCL_SUM, &how,
                                           comm, nullptr),
                  CCL_SUCCESS);
        EXPECT_EQ(stats.dropped_superblocks > 0,
                  std::string(spec.text).find("=1") != std::string::npos);
      }
      ccl_codec_destroy(codec);
    });
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(Occurrences(log, "superblocks of 256 elements became zero"), spec.warns ? 3u : 0u)
        << log;
    EXPECT_EQ(log.find("bits=2.25 does") != std::string::npos, spec.warns) << log;
  }
}

// step 0 means the count of compressed calls so far: consecutive calls round differently.
TEST(CompressedTest, DefaultStepCountsCalls) {
  const Vectors inputs = MakeInputs(2, 3000, TestSeed() + 6);
  Vectors outputs = inputs;
  RunThreads(2, [&](int rank, ccl_comm_t comm) {
    const auto r = static_cast<size_t>(rank);
    for (uint64_t step = 0; step < 4; ++step) {
      ASSERT_EQ(ccl_allreduce_compressed(inputs[r].data(), outputs[r].data(), 3000, CCL_FLOAT32,
                                         CCL_SUM, nullptr, comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(Differences(outputs[r], HbiAllReduce(inputs, {.bits8 = 48, .step = step})), 0u)
          << step;
    }
  });
}

TEST(CompressedTest, NarrowTypesAreConvertedOnTheWayInAndRoundedOnceOnTheWayOut) {
  constexpr size_t kCount = 10007;
  Vectors inputs = MakeInputs(3, kCount, TestSeed() + 7);
  std::vector<std::vector<uint16_t>> narrow(3, std::vector<uint16_t>(kCount));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < kCount; ++i) {
      narrow[r][i] = Bf16::Encode(inputs[r][i]);
      inputs[r][i] = Bf16::Decode(narrow[r][i]);
    }
  }
  const std::vector<float> expected = HbiAllReduce(inputs, {.bits8 = 48, .step = 1});
  RunThreads(3, [&](int rank, ccl_comm_t comm) {
    std::vector<uint16_t>& mine = narrow[static_cast<size_t>(rank)];
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.step = 1;
    ASSERT_EQ(ccl_allreduce_compressed(mine.data(), mine.data(), kCount, CCL_BFLOAT16, CCL_SUM,
                                       &how, comm, nullptr),
              CCL_SUCCESS);
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) wrong += mine[i] != Bf16::Encode(expected[i]);
    EXPECT_EQ(wrong, 0u);
  });
}

}  // namespace
}  // namespace inccl::test
