// SPDX-License-Identifier: Apache-2.0
//
// Calls with reducers on communicators: equal bits on all ranks, conservation through any codec,
// and what a call leaves in its state.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>

#include "base/rng.h"
#include "reduce/call_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

struct Case {
  const char* spec;
  int n;
  const char* algorithm;
  double tolerance;  // of what went in and came out; negative: the method drops something
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.spec + "_" +
                     std::to_string(info.param.n) + "_" + info.param.algorithm;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

class ReducedCallTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReducedCallTest, RanksGetEqualBitsAndNothingIsLost) {
  const Case& c = GetParam();
  const ScopedEnv algorithm({{"INCCL_ALGO", c.algorithm}});
  constexpr size_t kRows = 70, kCols = 90, kCount = kRows * kCols, kSteps = 3;
  const auto n = static_cast<size_t>(c.n);
  std::vector<Vectors> inputs, before(kSteps, Vectors(n)), after = before, results = before;
  for (size_t step = 0; step < kSteps; ++step) {
    inputs.push_back(NormalInputs(c.n, kCount, TestSeed() + step));
  }
  RunThreads(c.n, [&](int rank, ccl_comm_t comm) {
    const auto r = static_cast<size_t>(rank);
    const OwnedState state = MakeState(c.spec, kRows, kCols);
    for (size_t step = 0; step < kSteps; ++step) {
      before[step][r] = ResidualOf(state);
      std::vector<float> send = inputs[step][r], recv(kCount);
      ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.seed = 5;
      how.stats = &stats;
      const bool in_place = step == 1;
      CHECK_OK(ccl_allreduce_reduced(send.data(), in_place ? send.data() : recv.data(), state.get(),
                                     step == 2 ? CCL_AVG : CCL_SUM, &how, comm, nullptr));
      results[step][r] = in_place ? send : recv;
      if (!in_place) {
        EXPECT_EQ(send, inputs[step][r]);
      }
      after[step][r] = ResidualOf(state);
      EXPECT_EQ(stats.elements, kCount);
      EXPECT_EQ(stats.compressed, 1);
      if (c.n > 1) {
        EXPECT_GT(stats.payload_bytes, 0u);
        EXPECT_GT(stats.wire_bytes, stats.payload_bytes);
      }
    }
  });
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t r = 1; r < n; ++r) {
      ASSERT_EQ(
          std::memcmp(results[step][r].data(), results[step][0].data(), kCount * sizeof(float)), 0)
          << "rank " << r << " step " << step;
    }
    for (size_t i = 0; c.tolerance >= 0 && i < kCount; ++i) {
      double in = 0, left = 0, size = 1, result = results[step][0][i];
      if (step == 2) result *= c.n;
      for (size_t r = 0; r < n; ++r) {
        in += static_cast<double>(inputs[step][r][i]) + static_cast<double>(before[step][r][i]);
        left += after[step][r][i];
        size += std::fabs(inputs[step][r][i]) + std::fabs(before[step][r][i]);
      }
      ASSERT_NEAR(in, result + left, c.tolerance * size) << "element " << i << " step " << step;
    }
  }
}

constexpr double kFloat = 1e-6, kHalf = 2e-3;
INSTANTIATE_TEST_SUITE_P(
    Methods, ReducedCallTest,
    ::testing::Values(
        Case{"topk:k=0.05", 1, "direct", kFloat}, Case{"topk:k=0.05", 2, "direct", kFloat},
        Case{"topk:k=0.05", 3, "ring", kFloat}, Case{"topk:k=0.05", 8, "direct", kFloat},
        Case{"topk:k=0.05|fp16", 3, "direct", kFloat},
        Case{"topk:k=0.05|hbi:bits=4", 3, "ring", kFloat},
        Case{"topk:k=0.05,select=sampled|bf16", 8, "direct", kFloat},
        Case{"topk:k=0.02,select=sidco", 3, "direct", kFloat},
        Case{"topk:k=0.02,select=sidco|qsgd:q=8", 2, "direct", kFloat},
        Case{"topk:k=0.02,momentum=0.9,warm=3", 3, "direct", -1},
        Case{"topk:block=16,k=0.05,mask=0,momentum=0.5", 3, "direct", -1},
        Case{"topk:block=16,k=0.1", 1, "direct", kFloat},
        Case{"topk:block=16,k=0.1", 3, "direct", kFloat},
        Case{"topk:block=64,k=0.02,select=sidco", 8, "direct", kFloat},
        Case{"topk:block=64,k=0.1|hbi:ag=exact,bits=6", 3, "direct", kFloat},
        Case{"topk:block=256,k=0.1|qsgd:q=8", 2, "direct", kFloat},
        Case{"topk:block=256,k=0.1|fp16", 8, "direct", kHalf},
        Case{"topk:block=64,k=0.1,residual=0|bf16", 2, "direct", -1},
        Case{"random_k:block=16,k=0.1", 2, "direct", kFloat},
        Case{"random_k:block=64,k=0.1|hbi:ag=exact,bits=6", 3, "ring", kFloat},
        Case{"random_k:block=64,k=0.1,unbiased=1|qsgd_ms:q=4+8", 8, "direct", -1},
        Case{"random_k:k=0.1", 1, "direct", kFloat}, Case{"random_k:k=0.1", 3, "tree", kFloat},
        Case{"random_k:k=0.1|hbi:ag=exact,bits=6", 3, "direct", kFloat},
        Case{"random_k:k=0.1|hbi:ag=exact,bits=4", 8, "ring", kFloat},
        Case{"random_k:k=0.1|qsgd:q=4", 2, "direct", kFloat},
        Case{"random_k:k=0.1|fp16", 3, "direct", kHalf},
        Case{"random_k:k=0.1|hbi:bits=6", 3, "direct", -1},
        Case{"random_k:k=0.1,unbiased=1|hbi:bits=6", 2, "direct", -1},
        Case{"clt_k:beta=1,k=0.05", 1, "direct", kFloat},
        Case{"clt_k:beta=1,k=0.05", 3, "direct", kFloat},
        Case{"clt_k:beta=1,k=0.05|hbi:ag=exact,bits=5", 8, "ring", kFloat},
        Case{"clt_k:k=0.05|hbi:bits=6", 2, "direct", -1}, Case{"count_sketch", 1, "direct", -1},
        Case{"count_sketch", 3, "direct", -1}, Case{"count_sketch", 8, "direct", -1},
        Case{"powersgd:rank=4", 1, "direct", kFloat}, Case{"powersgd:rank=4", 3, "ring", kFloat},
        Case{"powersgd:rank=2|hbi:bits=6", 8, "direct", kFloat},
        Case{"powersgd:rank=4|fp16", 2, "tree", kFloat},
        Case{"powersgd:rank=1024|hbi:ag=exact,bits=4", 3, "direct", kFloat}),
    NameOf);

TEST(ReducedCallsTest, EmptyTinyAndZeroTensors) {
  for (const char* spec : {"topk|fp16", "topk", "topk:select=sidco", "topk:block=16|fp16",
                           "topk:block=2,select=sampled", "random_k|hbi:bits=6",
                           "random_k:block=16", "clt_k|fp16", "count_sketch", "powersgd|bf16"}) {
    RunThreads(3, [&](int rank, ccl_comm_t comm) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{300}}) {
        const OwnedState state = MakeState(spec, count, 1);
        const std::vector<float> send(count, count == 300 ? 0.0f : 1.0f + static_cast<float>(rank));
        std::vector<float> recv(count, -1.0f);
        for (int step = 0; step < 2; ++step) {
          CHECK_OK(ccl_allreduce_reduced(send.data(), recv.data(), state.get(), CCL_SUM, nullptr,
                                         comm, nullptr));
        }
        if (count == 1) {
          EXPECT_NEAR(recv[0], 6, 0.1);
        }
        if (count == 300) {
          EXPECT_EQ(recv, std::vector<float>(300));
        }
      }
    });
  }
}

// Every method, with each of its ways to select.
constexpr const char* kMethods[] = {
    "clt_k:k=0.01",
    "clt_k:k=0.01,residual=0|hbi:bits=6",
    "count_sketch",
    "powersgd:rank=2",
    "powersgd:rank=2,residual=0|qsgd:q=8",
    "powersgd:rank=1024|bf16",
    "random_k:k=0.01",
    "random_k:block=16,k=0.01|fp8",
    "random_k:k=0.01,unbiased=1|onebit",
    "topk:k=0.01",
    "topk:k=0.01,residual=0|mxfp8",
    "topk:k=0.01,select=sampled|dither",
    "topk:k=0.01,select=sidco|hbi:bits=4",
    "topk:block=16,k=0.01",
    "topk:block=16,k=0.01,select=sampled|fp16",
    "topk:block=16,k=0.01,select=sidco|lossless",
};

TEST(ReducedCallsTest, TheMethodsAboveAreAll) {
  ccl_reducer_t reducer = nullptr;
  EXPECT_EQ(ccl_reducer_create(&reducer, "nothing"), CCL_INVALID_ARGUMENT);
  const std::string message = ccl_get_last_error(nullptr);
  const size_t list = message.find("there are ");
  ASSERT_NE(list, std::string::npos) << message;
  std::istringstream names(message.substr(list + std::strlen("there are ")));
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    const auto has = [&](const std::string& spec) {
      return spec.substr(0, spec.find_first_of(":|")) == name;
    };
    EXPECT_TRUE(std::any_of(std::begin(kMethods), std::end(kMethods), has)) << name;
  }
}

// One element of one rank that is not finite is seen by every rank in the same step, wherever it
// is, so that all of them can drop the step; it leaves nothing behind.
TEST(ReducedCallsTest, WhatIsNotFiniteReachesEveryRankAtOnce) {
  constexpr size_t kRows = 40, kCols = 50, kCount = kRows * kCols;
  constexpr int kRanks = 3;
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  for (const char* spec : kMethods) {
    RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
      const OwnedState state = MakeState(spec, kRows, kCols);
      Rng rng(TestSeed());  // the same on all ranks
      for (int step = 0; step < 12; ++step) {
        std::vector<float> x = NormalInputs(kRanks, kCount, rng.Next())[static_cast<size_t>(rank)];
        const size_t at = rng.Below(kCount);
        const auto who = static_cast<int>(rng.Below(kRanks));
        const float bad = kBad[rng.Below(3)];
        const bool spoiled = step % 2 == 0;
        if (spoiled && rank == who) x[at] = bad;
        CHECK_OK(ccl_allreduce_reduced(x.data(), x.data(), state.get(), CCL_AVG, nullptr, comm,
                                       nullptr));
        const bool all = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
        EXPECT_EQ(all, !spoiled) << spec << ": rank " << rank << " step " << step << ": " << bad
                                 << " at " << at << " of rank " << who;
        for (const float value : ResidualOf(state)) ASSERT_TRUE(std::isfinite(value)) << spec;
      }
    });
  }
}

// Averages of values that the type holds are values of the type.
TEST(ReducedCallsTest, AveragesOfTheLargestAreFinite) {
  constexpr size_t kCount = 64;
  const uint16_t largest[] = {0x7BFF, 0x7F7F};  // of fp16 and bf16
  for (const char* spec : {"topk:k=1", "topk:k=1|bf16", "topk:block=16,k=1|bf16", "random_k:k=1",
                           "random_k:k=1|bf16", "clt_k:k=1", "clt_k:k=1|fp16", "count_sketch"}) {
    for (const int n : {2, 3, 5, 6, 7}) {
      RunThreads(n, [&](int rank, ccl_comm_t comm) {
        for (const bool half : {true, false}) {
          if (!half && std::string(spec).find("fp16") != std::string::npos) continue;
          const OwnedState state = MakeState(spec, kCount, 1, half ? CCL_FLOAT16 : CCL_BFLOAT16);
          std::vector<uint16_t> x(kCount, largest[half ? 0 : 1]);
          CHECK_OK(ccl_allreduce_reduced(x.data(), x.data(), state.get(), CCL_AVG, nullptr, comm,
                                         nullptr));
          for (const uint16_t code : x) {
            ASSERT_LE(code, largest[half ? 0 : 1]) << spec << " rank " << rank << " of " << n;
            ASSERT_GT(code, largest[half ? 0 : 1] - 16) << spec << " rank " << rank << " of " << n;
          }
        }
        const OwnedState state = MakeState(spec, kCount, 1);
        const bool narrow = std::string(spec).find('|') != std::string::npos;
        const float top = narrow ? 65504.0f : std::numeric_limits<float>::max();
        std::vector<float> x(kCount, top);
        CHECK_OK(ccl_allreduce_reduced(x.data(), x.data(), state.get(), CCL_AVG, nullptr, comm,
                                       nullptr));
        for (const float value : x) ASSERT_TRUE(std::isfinite(value)) << spec << " of " << n;
      });
    }
  }
}

// The codec's random numbers follow from seed and step, not from what the communicator has done.
TEST(ReducedCallsTest, TheFirstCallsOfEqualStatesAreEqual) {
  constexpr size_t kCount = 3000;
  for (const char* spec : {"random_k:k=0.5|qsgd:q=4", "topk:k=0.5|dither", "clt_k|dither"}) {
    RunThreads(3, [&](int rank, ccl_comm_t comm) {
      const Vectors inputs = NormalInputs(3, kCount, 7);
      std::vector<float> results[2];
      for (std::vector<float>& out : results) {
        const OwnedState state = MakeState(spec, 1, kCount);
        out.resize(kCount);
        CHECK_OK(ccl_allreduce_reduced(inputs[static_cast<size_t>(rank)].data(), out.data(),
                                       state.get(), CCL_SUM, nullptr, comm, nullptr));
      }
      EXPECT_EQ(results[0], results[1]) << spec;
    });
  }
}

TEST(ReducedCallsTest, NarrowTypes) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    for (const ccl_datatype_t type : {CCL_FLOAT16, CCL_BFLOAT16}) {
      const OwnedState state = MakeState("topk:k=0.25", 1, 8, type);
      const uint16_t one = type == CCL_FLOAT16 ? 0x3c00 : 0x3f80;
      std::vector<uint16_t> send(8), recv(8);
      send[static_cast<size_t>(rank)] = send[5] = one;
      CHECK_OK(ccl_allreduce_reduced(send.data(), recv.data(), state.get(), CCL_AVG, nullptr, comm,
                                     nullptr));
      EXPECT_EQ(recv[5], one);
      EXPECT_EQ(recv[0], recv[2]);
      EXPECT_NE(recv[0], 0);
      EXPECT_EQ(recv[7], 0);
      // Of two equal blocks the first goes; in the next call the other one has a residual.
      const OwnedState blocks = MakeState("topk:block=4,k=0.25", 1, 8, type);
      constexpr uint16_t kTwo = 0x4000;  // in both types
      for (const uint16_t fifth : {uint16_t{0}, kTwo}) {
        CHECK_OK(ccl_allreduce_reduced(send.data(), recv.data(), blocks.get(), CCL_AVG, nullptr,
                                       comm, nullptr));
        EXPECT_EQ(recv[5], fifth);
        EXPECT_EQ(recv[0] != 0, fifth == 0);
        EXPECT_EQ(recv[0], recv[2]);
        EXPECT_EQ(recv[7], 0);
      }
    }
  });
}

TEST(ReducedCallsTest, StreamsAndGroups) {
  constexpr size_t kCount = 5000;
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    const Vectors inputs = NormalInputs(3, kCount, 1);
    const std::vector<float>& in = inputs[static_cast<size_t>(rank)];
    const OwnedState plain = MakeState("topk:k=0.01|fp16", 1, kCount);
    const OwnedState streamed = MakeState("topk:k=0.01|fp16", 1, kCount);
    const OwnedState first = MakeState("topk:k=0.01|fp16", 1, kCount);
    const OwnedState second = MakeState("random_k", 50, 100);
    std::vector<float> a(kCount), b(kCount), c(kCount), d(kCount);
    float sum = 1;
    for (int step = 0; step < 3; ++step) {
      CHECK_OK(
          ccl_allreduce_reduced(in.data(), a.data(), plain.get(), CCL_SUM, nullptr, comm, nullptr));
      CHECK_OK(ccl_allreduce_reduced(in.data(), b.data(), streamed.get(), CCL_SUM, nullptr, comm,
                                     stream));
      CHECK_OK(ccl_group_start());
      CHECK_OK(
          ccl_allreduce_reduced(in.data(), c.data(), first.get(), CCL_SUM, nullptr, comm, stream));
      CHECK_OK(ccl_allreduce(&sum, &sum, 1, CCL_FLOAT32, CCL_SUM, comm, stream));
      CHECK_OK(
          ccl_allreduce_reduced(in.data(), d.data(), second.get(), CCL_SUM, nullptr, comm, stream));
      CHECK_OK(ccl_group_end());
      CHECK_OK(ccl_stream_synchronize(stream));
      EXPECT_EQ(a, b);
      EXPECT_EQ(a, c);
    }
    EXPECT_EQ(sum, 27);
    uint64_t operation = 0;
    CHECK_OK(ccl_comm_last_completed(comm, &operation));
    EXPECT_EQ(operation, 15u);  // a call is one operation, whatever its rounds
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

// As after a growth: the state of a rank that joins is new. All ranks pass the step.
TEST(ReducedCallsTest, StatesOfDifferentAgesAgreeByStep) {
  constexpr size_t kCount = 4000, kSteps = 6, kJoined = 3;
  constexpr int kRanks = 3;
  for (const char* spec :
       {"topk:k=0.01,warm=9", "topk:block=10,k=0.05,warm=9", "topk:k=0.02,select=sampled",
        "topk:k=0.05,momentum=0.5", "random_k:k=0.05|fp16", "clt_k:beta=1,k=0.02",
        "powersgd:rank=3", "count_sketch"}) {
    SCOPED_TRACE(spec);
    std::vector<Vectors> results(kSteps, Vectors(kRanks));
    Vectors before(kRanks), after(kRanks);  // residuals, from the moment of the growth on
    RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
      const auto r = static_cast<size_t>(rank);
      const OwnedState state = MakeState(spec, 40, 100);
      for (size_t step = 0; step < kSteps; ++step) {
        if (rank == 1 && step == kJoined) CHECK_OK(ccl_reducer_state_reset(state.get()));
        if (step == kJoined) before[r] = ResidualOf(state);
        results[step][r].resize(kCount);
        ccl_compression_t how = CCL_COMPRESSION_INIT;
        how.step = 1 + step;
        CHECK_OK(ccl_allreduce_reduced(NormalInputs(kRanks, kCount, step)[r].data(),
                                       results[step][r].data(), state.get(), CCL_SUM, &how, comm,
                                       nullptr));
      }
      after[r] = ResidualOf(state);
    });
    for (const Vectors& result : results) {
      for (const std::vector<float>& other : result) ASSERT_EQ(other, result[0]);
    }
    if (std::string_view(spec).find("momentum") != std::string_view::npos) continue;
    std::vector<double> balance(kCount);  // what has come in and has not come out
    const auto add = [&](double factor, const std::vector<float>& values) {
      for (size_t i = 0; i < values.size(); ++i)
        balance[i] += factor * static_cast<double>(values[i]);
    };
    for (size_t r = 0; r < kRanks; ++r) {
      add(1, before[r]);
      add(-1, after[r]);
    }
    for (size_t step = kJoined; step < kSteps; ++step) {
      for (const std::vector<float>& input : NormalInputs(kRanks, kCount, step)) add(1, input);
      add(-1, results[step][0]);
    }
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(balance[i], 0, 0.02) << i;
  }
}

TEST(ReducedCallsTest, ExportImportAndReset) {
  constexpr size_t kCount = 4000;
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    for (const char* spec :
         {"topk:k=0.01", "topk:block=50,k=0.05|hbi:bits=6", "random_k:k=0.05|hbi:bits=6",
          "clt_k:k=0.02", "powersgd:rank=3|bf16"}) {
      const OwnedState state = MakeState(spec, 40, 100), copy = MakeState(spec, 40, 100);
      const auto step = [&](const OwnedState& with, uint64_t seed) {
        const Vectors inputs = NormalInputs(2, kCount, seed);
        std::vector<float> out(kCount);
        EXPECT_EQ(ccl_allreduce_reduced(inputs[static_cast<size_t>(rank)].data(), out.data(),
                                        with.get(), CCL_SUM, nullptr, comm, nullptr),
                  CCL_SUCCESS)
            << ccl_get_last_error(nullptr);
        return out;
      };
      const std::vector<std::byte> fresh = Exported(state);
      (void)step(state, 1);
      const std::vector<std::byte> kept = Exported(state);
      EXPECT_NE(kept, fresh);
      CHECK_OK(ccl_reducer_state_import(copy.get(), kept.data(), kept.size()));
      EXPECT_EQ(Exported(copy), kept);
      const std::vector<float> next = step(state, 2);
      EXPECT_EQ(step(copy, 2), next);
      EXPECT_EQ(Exported(copy), Exported(state));
      CHECK_OK(ccl_reducer_state_rollback(state.get(), comm));  // all ranks have completed it
      EXPECT_EQ(Exported(state), Exported(copy));
      CHECK_OK(ccl_reducer_state_reset(state.get()));
      EXPECT_EQ(Exported(state), fresh);
    }
  });
}

}  // namespace
}  // namespace inccl::test
