// SPDX-License-Identifier: Apache-2.0
//
// local=fp32: ranks of a host add up their elements, then hosts exchange compressed sums. The
// oracle is the same call made of calls on communicators of a host and of a rail.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/types.h"
#include "compress/float_types.h"
#include "integration/compressed_world.h"
#include "integration/hosts_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr uint64_t kSeed = 9, kStep = 3;

struct Made {
  ccl_result_t result = CCL_SUCCESS;
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
};

Made Compressed(Collective collective, const char* spec, uint64_t seed, const void* send,
                void* recv, size_t count, ccl_datatype_t type, ccl_redop_t op, ccl_comm_t comm,
                ccl_residual_t residual = nullptr) {
  Made made;
  ccl_codec_t codec = nullptr;
  EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.codec = codec;
  how.seed = seed;
  how.step = kStep;
  how.stats = &made.stats;
  how.residual = residual;
  made.result = CallCompressed(collective, send, recv, count, type, op, &how, comm);
  ccl_codec_destroy(codec);
  return made;
}

// A rank's view of the hosts, which are the letters.
struct Place {
  Place(const std::string& letters, int of)
      : rank(of),
        host(static_cast<int>(letters.find(letters[static_cast<size_t>(rank)]))),
        local(static_cast<int>(std::count(letters.begin(), letters.begin() + rank,
                                          letters[static_cast<size_t>(rank)]))),
        locals(static_cast<int>(
            std::count(letters.begin(), letters.end(), letters[static_cast<size_t>(rank)]))),
        rails(locals),
        even(true) {
    for (const char letter : letters) {
      const auto ranks = static_cast<int>(std::count(letters.begin(), letters.end(), letter));
      even = even && ranks == locals;
      rails = std::min(rails, ranks);
    }
  }
  const int rank, host, local, locals;
  int rails;  // ranks of the smallest host
  bool even;  // all hosts have as many
};

// The oracle: what an all-reduce gives, from calls on smaller communicators.
Made Composed(const Place& place, const char* spec, const std::vector<float>& input, ccl_redop_t op,
              ccl_comm_t comm, std::vector<float>* output) {
  ccl_comm_t inside = nullptr, rail = nullptr;
  EXPECT_EQ(ccl_comm_split(comm, place.host, 0, &inside, nullptr), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_split(comm, place.local, 0, &rail, nullptr), CCL_SUCCESS);
  const auto rails = static_cast<size_t>(place.rails);
  const size_t share = input.size() / (256 * rails) * 256, rest = share * rails;
  output->resize(input.size());
  float* const own = output->data() + share * static_cast<size_t>(place.local);
  // Where hosts differ, averages are sums of elements over n.
  std::vector<float> addends = input;
  const ccl_redop_t sum = place.even ? op : CCL_SUM;
  if (op != sum) {
    int nranks = 0;
    EXPECT_EQ(ccl_comm_count(comm, &nranks), CCL_SUCCESS);
    for (float& x : addends) x *= 1.0f / static_cast<float>(nranks);
  }
  for (int root = 0; root < place.rails; ++root) {
    const size_t at = share * static_cast<size_t>(root);
    EXPECT_EQ(ccl_reduce(addends.data() + at, output->data() + at, share, CCL_FLOAT32, sum, root,
                         inside, nullptr),
              CCL_SUCCESS);
  }
  Made made;
  if (place.local < place.rails) {
    made =
        Compressed(Collective::kAllReduce, spec, kSeed ^ Mix64(static_cast<uint64_t>(place.local)),
                   own, own, share, CCL_FLOAT32, sum, rail);
  }
  for (int root = 0; root < place.rails; ++root) {
    float* const part = output->data() + share * static_cast<size_t>(root);
    EXPECT_EQ(ccl_broadcast(part, part, share, CCL_FLOAT32, root, inside, nullptr), CCL_SUCCESS);
  }
  EXPECT_EQ(ccl_allreduce(input.data() + rest, output->data() + rest, input.size() - rest,
                          CCL_FLOAT32, op, comm, nullptr),
            CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(inside), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(rail), CCL_SUCCESS);
  return made;
}

double Exact(const Vectors& inputs, size_t i, ccl_redop_t op) {
  double sum = 0;
  for (const std::vector<float>& input : inputs) sum += input[i];
  return op == CCL_AVG ? sum / static_cast<double>(inputs.size()) : sum;
}

// The error of sums in fp32, where no codec was involved. Near zero each rank rounds its element by
// half of the smallest float where it is multiplied by 1/n.
double Rounding(const Vectors& inputs, size_t i) {
  double most = 0;
  for (const std::vector<float>& input : inputs) most += std::abs(input[i]);
  return static_cast<double>(inputs.size()) * (most * 0x1.0p-23 + 0x1.0p-149);
}

void CheckNear(const Vectors& inputs, const std::vector<float>& output, size_t first,
               ccl_redop_t op, double error_bound) {
  for (size_t i = 0; i < output.size(); ++i) {
    ASSERT_LE(std::abs(output[i] - Exact(inputs, first + i, op)),
              error_bound * (1 + 1e-6) + Rounding(inputs, first + i))
        << first + i;
  }
}

void CheckAllReduce(const Place& place, const char* spec, ccl_redop_t op, const Vectors& inputs,
                    ccl_comm_t comm) {
  const std::vector<float>& input = inputs[static_cast<size_t>(place.rank)];
  const size_t count = input.size();
  std::vector<float> output(count), in_place = input, expected;
  const Made made = Compressed(Collective::kAllReduce, spec, kSeed, input.data(), output.data(),
                               count, CCL_FLOAT32, op, comm);
  ASSERT_EQ(made.result, CCL_SUCCESS) << ccl_get_last_error(comm);
  EXPECT_EQ(made.stats.elements, count);
  const size_t share = count / (256 * static_cast<size_t>(place.rails));
  EXPECT_EQ(made.stats.compressed, share > 0 ? 1 : 0);
  CheckNear(inputs, output, 0, op, made.stats.error_bound);
  EXPECT_EQ(Compressed(Collective::kAllReduce, spec, kSeed, in_place.data(), in_place.data(), count,
                       CCL_FLOAT32, op, comm)
                .result,
            CCL_SUCCESS);
  EXPECT_EQ(std::memcmp(in_place.data(), output.data(), count * sizeof(float)), 0);
  if (share == 0) return;
  const Made parts = Composed(place, spec, input, op, comm, &expected);
  EXPECT_EQ(std::memcmp(expected.data(), output.data(), count * sizeof(float)), 0);
  EXPECT_EQ(made.stats.payload_bytes, parts.stats.payload_bytes);
  EXPECT_GE(made.stats.error_bound, parts.stats.error_bound);
  EXPECT_GE(made.stats.zero_blocks, parts.stats.zero_blocks);
}

TEST(HostSums, AllReduceIsThreeCollectives) {
  const uint64_t seed = TestSeed();
  for (const std::string hosts :
       {"aabb", "abab", "aaabbb", "abcabc", "aab", "abb", "babba", "aaabbc", "abbbb"}) {
    std::vector<Vectors> inputs;
    for (const size_t count : {3, 512, 1000, 70'001}) {
      inputs.push_back(MakeInputs(Ranks(hosts), count, seed + count));
    }
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      for (const Vectors& input : inputs) {
        for (const char* spec : {"hbi:bits=6,local=fp32", "hbi:bits=6,local=fp32,unbiased=1"}) {
          for (const ccl_redop_t op : {CCL_SUM, CCL_AVG}) {
            SCOPED_TRACE(hosts + " " + spec + " " + std::to_string(input[0].size()));
            CheckAllReduce(Place(hosts, side.rank()), spec, op, input, comm);
          }
        }
      }
    });
  }
}

// What all ranks share of such a call has the plan of a plain call, whichever of the two is made
// first on a rank. Plans of codecs, which have other addresses on each rank, replace others.
TEST(HostSums, PlainCallsBetweenHaveTheAlgorithmThatIsAdmitted) {
  for (const char* algorithm : {"ring", "hierarchical", "direct_one_shot"}) {
    SCOPED_TRACE(algorithm);
    const ScopedEnv env({{"INCCL_ALGO", algorithm}, {"INCCL_OP_TIMEOUT_MS", "10000"}});
    RunHosts("aab", [](const Side& side, ccl_comm_t comm) {
      Rng rng(TestSeed() + static_cast<uint64_t>(side.rank()));
      std::vector<std::string> between;  // allocations
      std::vector<float> x(2000);
      for (int i = 0; i < 40 && !testing::Test::HasFailure(); ++i) {
        for (uint64_t k = rng.Below(6); k > 0; --k) between.emplace_back(40 + rng.Below(400), 'x');
        const auto compressed = [&](const char* spec, size_t count) {
          EXPECT_EQ(Compressed(Collective::kAllReduce, spec, kSeed, x.data(), x.data(), count,
                               CCL_FLOAT32, CCL_SUM, comm)
                        .result,
                    CCL_SUCCESS)
              << ccl_get_last_error(comm);
        };
        compressed("hbi:bits=6,local=fp32", 1000);
        compressed("bf16", 2000);
        std::fill(x.begin(), x.end(), static_cast<float>(side.rank() + 1));
        ASSERT_EQ(ccl_allreduce(x.data(), x.data(), 232, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                  CCL_SUCCESS)
            << ccl_get_last_error(comm);
        for (size_t e = 0; e < 232; ++e) ASSERT_EQ(x[e], 6) << e;
      }
    });
  }
}

TEST(HostSums, ReduceScatter) {
  for (const std::string hosts : {"aabb", "aaabbb", "aabbcc"}) {
    for (const size_t count : {size_t{1}, size_t{5000}}) {
      SCOPED_TRACE(hosts + " " + std::to_string(count));
      const auto n = static_cast<size_t>(Ranks(hosts));
      const Vectors inputs = MakeInputs(Ranks(hosts), count * n, TestSeed());
      RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
        const auto rank = static_cast<size_t>(side.rank());
        for (const ccl_redop_t op : {CCL_SUM, CCL_AVG}) {
          SCOPED_TRACE(op == CCL_AVG ? "average" : "sum");
          std::vector<float> output(count), in_place = inputs[rank];
          const Made made =
              Compressed(Collective::kReduceScatter, "hbi:bits=8,local=fp32,min_bytes=0", kSeed,
                         inputs[rank].data(), output.data(), count, CCL_FLOAT32, op, comm);
          ASSERT_EQ(made.result, CCL_SUCCESS) << ccl_get_last_error(comm);
          EXPECT_EQ(made.stats.compressed, 1);
          CheckNear(inputs, output, rank * count, op, made.stats.error_bound);
          float* const own = in_place.data() + rank * count;
          EXPECT_EQ(Compressed(Collective::kReduceScatter, "hbi:bits=8,local=fp32,min_bytes=0",
                               kSeed, in_place.data(), own, count, CCL_FLOAT32, op, comm)
                        .result,
                    CCL_SUCCESS);
          EXPECT_EQ(std::memcmp(own, output.data(), count * sizeof(float)), 0);
        }
      });
    }
  }
}

// Of types of two bytes the sums of hosts are fp32: one rounding at the end, which the bound
// counts.
TEST(HostSums, TypesOfTwoBytesAreRoundedOnce) {
  constexpr size_t kCount = 612;  // the last 100 elements travel uncompressed
  const std::string hosts = "aabb";
  const float values[] = {0.51171875f, 0.51171875f, 0.51171875f, 0.5078125f};
  RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
    for (const ccl_redop_t op : {CCL_SUM, CCL_AVG}) {
      const std::vector<uint16_t> input(kCount, Bf16::Encode(values[side.rank()]));
      std::vector<uint16_t> output(kCount);
      const Made made = Compressed(Collective::kAllReduce, "hbi:bits=8,local=fp32", kSeed,
                                   input.data(), output.data(), kCount, CCL_BFLOAT16, op, comm);
      ASSERT_EQ(made.result, CCL_SUCCESS) << ccl_get_last_error(comm);
      const double exact = op == CCL_AVG ? 2.04296875 / 4 : 2.04296875;
      for (size_t i = 0; i < kCount; ++i) {
        const auto got = static_cast<double>(Bf16::Decode(output[i]));
        ASSERT_LE(std::abs(got - exact), made.stats.error_bound) << i;
        if (i >= 512) {
          ASSERT_LE(std::abs(got - exact), exact * 0x1p-9) << i << " is rounded more than once";
        }
      }
      EXPECT_LT(made.stats.error_bound, 0.05);
      EXPECT_NEAR(made.stats.ratio, 16 / made.stats.bits, 1e-9);
    }
  });
}

// An all-gather adds nothing up; one host, or one rank on each, has nothing to add up inside.
TEST(HostSums, MattersOnlyForSumsOfSeveralRanksOfSeveralHosts) {
  constexpr size_t kCount = 3000;
  for (const std::string hosts : {"aaa", "abc", "aabb"}) {
    SCOPED_TRACE(hosts);
    const Vectors inputs = MakeInputs(Ranks(hosts), kCount, TestSeed());
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      const std::vector<float>& input = inputs[static_cast<size_t>(side.rank())];
      std::vector<float> with(kCount * inputs.size()), without = with;
      const auto both = [&](Collective collective) {
        const Made made = Compressed(collective, "hbi:local=fp32", kSeed, input.data(), with.data(),
                                     kCount, CCL_FLOAT32, CCL_SUM, comm);
        EXPECT_EQ(made.result, CCL_SUCCESS) << ccl_get_last_error(comm);
        EXPECT_EQ(Compressed(collective, made.stats.compressed != 0 ? "hbi" : "none", kSeed,
                             input.data(), without.data(), kCount, CCL_FLOAT32, CCL_SUM, comm)
                      .result,
                  CCL_SUCCESS);
        EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
        return made.stats.compressed;
      };
      EXPECT_EQ(both(Collective::kAllGather), 1);
      if (hosts == "aabb") return;
      EXPECT_EQ(both(Collective::kAllReduce), hosts == "abc" ? 1 : 0);
    });
  }
}

struct Refused {
  const char* hosts;
  Collective collective;
  std::vector<std::string> words;
};

TEST(HostSums, RefusesWhatItCannotSum) {
  const Refused cases[] = {
      {"aab", Collective::kReduceScatter, {"local=fp32", "rank 0 has 2 ranks", "rank 2 has 1"}},
      {"abab", Collective::kReduceScatter, {"local=fp32", "ranks 0 and 2"}},
  };
  std::vector<float> data(4096, 1.0f), output(1024);
  const auto expect = [&](Collective collective, ccl_comm_t comm, ccl_residual_t residual,
                          const std::vector<std::string>& words) {
    EXPECT_EQ(Compressed(collective, "hbi:local=fp32", 0, data.data(), output.data(), 1024,
                         CCL_FLOAT32, CCL_SUM, comm, residual)
                  .result,
              CCL_INVALID_ARGUMENT);
    const std::string text = ccl_get_last_error(comm);
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << text << " has no " << word;
    }
    // It has had no effect.
    EXPECT_EQ(ccl_allreduce(data.data(), data.data(), 1, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_SUCCESS);
  };
  for (const Refused& one : cases) {
    RunHosts(one.hosts, [&](const Side&, ccl_comm_t comm) {
      expect(one.collective, comm, nullptr, one.words);
    });
  }
  RunHosts("aabb", [&](const Side&, ccl_comm_t comm) {
    ccl_residual_t residual = nullptr;
    const ccl_residual_config_t config = CCL_RESIDUAL_CONFIG_INIT;
    ASSERT_EQ(ccl_residual_create(&residual, 1024, &config), CCL_SUCCESS);
    expect(Collective::kAllReduce, comm, residual, {"local=fp32", "residual"});
    EXPECT_EQ(ccl_residual_destroy(residual), CCL_SUCCESS);
  });
  const ScopedEnv env({{"INCCL_REPRODUCIBLE", "1"}});
  RunHosts("aabb", [&](const Side&, ccl_comm_t comm) {
    expect(Collective::kAllReduce, comm, nullptr, {"local=fp32", "reproducible"});
  });
}

// Between the collectives of a call, too, ranks are named as in the communicator.
TEST(HostSums, SurvivorsNameTheDeadRank) {
  const std::string hosts = "abcabc";
  for (const int victim : {0, 4}) {
    SCOPED_TRACE(victim);
    const auto body = [&](const Side& side, ccl_comm_t comm) {
      std::vector<float> data(100'000, 1.0f);
      const auto call = [&] {
        return Compressed(Collective::kAllReduce, "hbi:local=fp32", 0, data.data(), data.data(),
                          data.size(), CCL_FLOAT32, CCL_AVG, comm)
            .result;
      };
      for (int i = 0; i < 5; ++i) EXPECT_EQ(call(), CCL_SUCCESS);
      side.mine().stage = 1;
      if (side.rank() == victim) {
        for (int rank = 0; rank < side.nranks(); ++rank) EXPECT_TRUE(side.Await(rank, 1));
        raise(SIGKILL);
      }
      ccl_result_t result = CCL_SUCCESS;
      while (result == CCL_SUCCESS) result = call();
      EXPECT_EQ(result, CCL_REMOTE_ERROR);
      const std::string text = ccl_get_last_error(comm);
      EXPECT_NE(text.find("peer " + std::to_string(victim) + "@"), std::string::npos) << text;
    };
    RunHosts(hosts, body, {victim});
  }
}

// Calls that differ are found as such: one rank runs the codec without local=fp32.
TEST(HostSums, AnotherCodecOnOneRankIsAMismatch) {
  RunHosts("aabb", [&](const Side& side, ccl_comm_t comm) {
    std::vector<float> data(100'000, 1.0f);
    const Made made =
        Compressed(Collective::kAllReduce, side.rank() == 2 ? "hbi:bits=6" : "hbi:local=fp32", 0,
                   data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm);
    EXPECT_NE(made.result, CCL_SUCCESS);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("local=fp32"), std::string::npos) << text;
    EXPECT_NE(text.find("local=codes"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace inccl::test
