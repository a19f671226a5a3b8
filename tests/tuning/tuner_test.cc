// SPDX-License-Identifier: Apache-2.0
#include "tuning/tuner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/variables.h"
#include "verify/validate.h"

namespace inccl {
namespace {

AlgorithmFilter Parsed(const std::string& text) {
  Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(text);
  EXPECT_TRUE(filter.ok()) << filter.status().message();
  return filter.ok() ? *filter : AlgorithmFilter();
}

// Ranks with equal letters share a host.
HostMap Hosts(const std::string& letters) {
  const std::vector<uint64_t> identities(letters.begin(), letters.end());
  return HostMap(identities);
}

TEST(AlgorithmFilterTest, NcclGrammar) {
  const AlgorithmFilter ring = Parsed("ring");
  EXPECT_TRUE(ring.Admits(Collective::kAllReduce, Algorithm::kRing));
  EXPECT_FALSE(ring.Admits(Collective::kAllReduce, Algorithm::kTree));

  const AlgorithmFilter mixed = Parsed("ring,tree;allreduce:^tree");
  EXPECT_FALSE(mixed.Admits(Collective::kAllReduce, Algorithm::kTree));
  EXPECT_TRUE(mixed.Admits(Collective::kAllReduce, Algorithm::kTwoShot));
  EXPECT_TRUE(mixed.Admits(Collective::kBroadcast, Algorithm::kTree));
  EXPECT_FALSE(mixed.Admits(Collective::kBroadcast, Algorithm::kTwoShot));

  const AlgorithmFilter direct = Parsed("direct");
  EXPECT_TRUE(direct.Admits(Collective::kAllReduce, Algorithm::kTwoShot));
  EXPECT_TRUE(direct.Admits(Collective::kAllReduce, Algorithm::kOneShot));
  EXPECT_FALSE(Parsed("direct_two_shot").Admits(Collective::kAllReduce, Algorithm::kOneShot));
}

TEST(AlgorithmFilterTest, CaseAndBlanksDoNotMatter) {
  const AlgorithmFilter filter = Parsed(" Ring, TREE ; AllReduce : ^Tree ");
  EXPECT_EQ(filter.text(), "ring,tree;allreduce:^tree");
  EXPECT_TRUE(filter.Admits(Collective::kBroadcast, Algorithm::kTree));
  EXPECT_FALSE(filter.Admits(Collective::kAllReduce, Algorithm::kTree));
  EXPECT_TRUE(Parsed(" ").Admits(Collective::kAllReduce, Algorithm::kTree));
}

// Nothing else runs in place of what was asked for.
TEST(AlgorithmFilterTest, WhatIsAskedForRunsOrIsRefused) {
  const std::vector<std::pair<std::string, Algorithm>> asked = {
      {"ring", Algorithm::kRing},
      {"tree", Algorithm::kTree},
      {"recursive_doubling", Algorithm::kRecursiveDoubling},
      {"direct_one_shot", Algorithm::kOneShot},
      {"direct_two_shot", Algorithm::kTwoShot},
      {"hierarchical", Algorithm::kHierarchical}};
  const HostMap hosts = Hosts("aabb");
  ASSERT_EQ(asked.size(), size_t{kAlgorithms});
  for (const auto& [text, algorithm] : asked) {
    for (int c = 0; c < kCollectiveKinds; ++c) {
      const auto collective = static_cast<Collective>(c);
      TunerCall call{
          {.collective = collective, .type = DataType::kUint8, .nranks = 4, .count = 1 << 20}};
      call.hosts = &hosts;
      const Result<Choice> choice = Choose(call, Parsed(text));
      if (HasSchedule(collective, algorithm, 4, &hosts)) {
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_EQ(choice->algorithm, algorithm) << Name(collective) << " " << text;
        continue;
      }
      ASSERT_FALSE(choice.ok()) << Name(collective) << " runs " << Name(choice->algorithm)
                                << " where " << text << " was asked for";
      EXPECT_EQ(choice.status().code(), Code::kInvalidArgument);
      for (const std::string& part :
           {std::string(Name(collective)), "\"" + text + "\"", std::string("direct_two_shot")}) {
        EXPECT_NE(choice.status().message().find(part), std::string::npos)
            << choice.status().message();
      }
    }
  }
}

TEST(AlgorithmFilterTest, ACollectiveCanBeNamedBesideAListForAll) {
  const AlgorithmFilter filter = Parsed("tree;reduce_scatter:ring");
  EXPECT_TRUE(filter.Admits(Collective::kReduceScatter, Algorithm::kRing));
  EXPECT_FALSE(filter.AdmitsAny(Collective::kAllGather));
}

TEST(AlgorithmFilterTest, MistakesAreNamed) {
  for (const auto& [text, word] :
       std::vector<std::pair<std::string, std::string>>{{"rign", "rign"},
                                                        {"ring,", "\"\""},
                                                        {"reduce_scatter:tree", "reduce_scatter"},
                                                        {"scatter:ring", "scatter has none"},
                                                        {"allscatter:ring", "allscatter"},
                                                        {"^", "\"\""}}) {
    Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(text);
    ASSERT_FALSE(filter.ok()) << text;
    EXPECT_EQ(filter.status().code(), Code::kInvalidArgument);
    EXPECT_NE(filter.status().message().find(word), std::string::npos) << filter.status().message();
  }
}

TEST(TunerTest, EveryChoiceHasASchedule) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (const int n : {2, 3, 8, 17, 64}) {
      for (const uint64_t bytes : {0u, 1u, 4096u, 65536u, 1u << 30}) {
        for (const bool reproducible : {false, true}) {
          const auto collective = static_cast<Collective>(c);
          const HostMap two = Hosts("b" + std::string(static_cast<size_t>(n) - 1, 'a'));
          TunerCall call{
              {.collective = collective, .type = DataType::kUint8, .nranks = n, .count = bytes},
              false,
              reproducible};
          for (const HostMap* const hosts : {&two, static_cast<const HostMap*>(nullptr)}) {
            call.hosts = hosts;
            Result<Choice> choice = Choose(call, AlgorithmFilter());
            ASSERT_TRUE(choice.ok()) << choice.status().message();
            EXPECT_TRUE(HasSchedule(collective, choice->algorithm, n, hosts))
                << Name(collective) << " " << Name(choice->algorithm) << " n " << n;
          }
        }
      }
    }
  }
}

// A codec with groups runs on direct only: chosen among those, else refused with both names.
TEST(TunerTest, TheCodecHasAWord) {
  TunerCall call{{.collective = Collective::kAllReduce,
                  .type = DataType::kUint8,
                  .nranks = 4,
                  .count = 1 << 20},
                 true,
                 false,
                 Route{.group = 2, .because = "m=x"}};
  EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kTwoShot);
  call.count = 100;
  EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kOneShot);
  call.nranks = 40;  // where others would take logarithmic algorithms
  EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kTwoShot);
  const auto refused = [&](const char* filter, const std::vector<std::string>& words) {
    const Result<Choice> choice = Choose(call, Parsed(filter));
    ASSERT_FALSE(choice.ok());
    EXPECT_EQ(choice.status().code(), Code::kInvalidArgument);
    for (const std::string& word : words) {
      EXPECT_NE(choice.status().message().find(word), std::string::npos)
          << word << " in: " << choice.status().message();
    }
  };
  refused("ring", {"m=x", "direct only", "ring"});
  refused("tree,recursive_doubling", {"m=x", "direct only", "tree, recursive_doubling"});
  const Result<Choice> only = Choose(call, Parsed("ring,direct_two_shot"));
  EXPECT_EQ(only->algorithm, Algorithm::kTwoShot);
  EXPECT_NE(Explain(call, *only).find("m=x runs on direct only"), std::string::npos);
  call.reproducible = true;  // direct sums in rank order
  EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kTwoShot);
  refused("ring", {"m=x", "direct only", "ring"});
}

TEST(TunerTest, BelowMinBytesSumsAreInRankOrder) {
  TunerCall call{
      {.collective = Collective::kAllReduce, .type = DataType::kUint8, .nranks = 40, .count = 100}};
  EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kRecursiveDoubling);
  call.below_min_bytes = true;
  for (const char* filter : {"", "ring,direct", "^direct_one_shot"}) {
    const Result<Choice> choice = Choose(call, Parsed(filter));
    EXPECT_TRUE(FoldsInRankOrder(call.collective, choice->algorithm)) << filter;
    EXPECT_NE(Explain(call, *choice).find("in rank order"), std::string::npos);
  }
  // A user's choice stands.
  EXPECT_EQ(Choose(call, Parsed("ring"))->algorithm, Algorithm::kRing);
  EXPECT_EQ(Explain(call, *Choose(call, Parsed("ring"))).find("in rank order"), std::string::npos);
}

TEST(TunerTest, TheReasonIsThatOfTheChoice) {
  struct Case {
    TunerCall call;
    const char* filter;
    Algorithm algorithm;
    TunerRule rule;
    const char* words;
  };
  const Collective sum = Collective::kAllReduce;
  const Case cases[] = {
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 16, .count = 16384}},
       "",
       Algorithm::kOneShot,
       TunerRule::kOneStep,
       "up to 16384 bytes and 16 ranks"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 16, .count = 16385}},
       "",
       Algorithm::kTwoShot,
       TunerRule::kInOrder,
       "16385 bytes: the first admitted of direct, ring,"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 17, .count = 16384}},
       "",
       Algorithm::kRecursiveDoubling,
       TunerRule::kLogarithmic,
       "more than 16 ranks"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 64, .count = 0}},
       "tree,ring",
       Algorithm::kTree,
       TunerRule::kLogarithmic,
       "more than 16 ranks"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 4, .count = 8}},
       "tree,ring",
       Algorithm::kRing,
       TunerRule::kInOrder,
       "what small calls prefer is not admitted"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 4, .count = 1 << 20}},
       "tree",
       Algorithm::kTree,
       TunerRule::kOnlyOne,
       "tree: nothing else is admitted"},
      {{{.collective = sum, .type = DataType::kUint8, .nranks = 4, .count = 1 << 20}, false, true},
       "ring,direct_two_shot",
       Algorithm::kTwoShot,
       TunerRule::kOnlyOne,
       "in rank order"},
  };
  for (const Case& c : cases) {
    const Result<Choice> choice = Choose(c.call, Parsed(c.filter));
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->algorithm, c.algorithm) << Name(choice->algorithm);
    EXPECT_EQ(choice->rule, c.rule);
    const std::string text = Explain(c.call, *choice);
    EXPECT_EQ(text.rfind(Name(c.algorithm), 0), 0u) << text;
    EXPECT_NE(text.find(c.words), std::string::npos) << text;
  }
}

TEST(TunerTest, OneHostInAMapIsNoMap) {
  const HostMap one = Hosts("aaaaaaaa");
  for (const uint64_t count : {1u, 1u << 12, 1u << 22}) {
    TunerCall call{{.nranks = 8, .count = count}};
    const Result<Choice> choice = Choose(call, AlgorithmFilter());
    const std::string text = Explain(call, *choice);
    call.hosts = &one;
    EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, choice->algorithm);
    EXPECT_EQ(Explain(call, *choice), text);
  }
}

TEST(TunerTest, LargeCallsOnSeveralHostsAreHierarchical) {
  const HostMap hosts = Hosts("aabb");
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    TunerCall call{
        {.collective = collective, .type = DataType::kUint8, .nranks = 4, .count = 1 << 24}};
    call.hosts = &hosts;
    EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kHierarchical);
    EXPECT_EQ(Choose(call, AlgorithmFilter())->rule, TunerRule::kModel);
    EXPECT_NE(Choose(call, Parsed("^hierarchical"))->algorithm, Algorithm::kHierarchical);
    call.reproducible = true;
    EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm,
              Reduces(collective) ? Algorithm::kTwoShot : Algorithm::kHierarchical);
    call.reproducible = false;
    call.route = {.group = 2, .because = "m=x"};
    EXPECT_EQ(Choose(call, AlgorithmFilter())->algorithm, Algorithm::kTwoShot);
  }
}

TEST(TunerTest, SeveralHostsAreExplainedWithAllEstimates) {
  const HostMap hosts = Hosts("aabb");
  TunerCall call{{.nranks = 4, .count = 1 << 20}};
  call.hosts = &hosts;
  const TunerTable table = *TunerTable::Parse(
      "cost network_latency_ns 100000\ncost network_message_ns 10000\ncost network_byte_ps 1000\n"
      "cost shm_latency_ns 1000\ncost shm_byte_ps 0\ncost reduce_byte_ps 0\n",
      "table");
  // 200 + 2 us + 4194.304 us; 200 + 40 us + 8388.608 us; as in cost_model_test.
  EXPECT_EQ(
      Explain(call, *Choose(call, Parsed("direct_two_shot,hierarchical"), table)),
      "hierarchical: 4396.3 us by the cost model; direct 8628.6 us; the ranks are on 2 hosts");
  EXPECT_EQ(Explain(call, *Choose(call, Parsed("direct_two_shot"), table)),
            "direct: nothing else is admitted; the ranks are on 2 hosts");
}

// What docs/algorithms.md says of hierarchical schedules.
TEST(TunerTest, NoOtherAlgorithmSendsFewerBytesFromHostToHost) {
  for (const char* const letters :
       {"aab", "abb", "abab", "aabbcc", "abcabca", "abbbbbbc", "aaaaaaaabbbbbbbb", "aabcdefg"}) {
    const HostMap hosts = Hosts(letters);
    for (int c = 0; c < kCollectiveKinds; ++c) {
      double hierarchical = -1;
      std::vector<std::pair<Algorithm, double>> others;
      for (int a = 0; a < kAlgorithms; ++a) {
        const auto collective = static_cast<Collective>(c);
        const auto algorithm = static_cast<Algorithm>(a);
        if (!HasSchedule(collective, algorithm, hosts.nranks(), &hosts)) continue;
        std::vector<Schedule> all;
        ScheduleRequest request;
        request.collective = collective;
        request.algorithm = algorithm;
        request.nranks = hosts.nranks();
        request.hosts = &hosts;
        for (request.rank = 0; request.rank < request.nranks; ++request.rank) {
          all.push_back(*MakeSchedule(request));
        }
        const Result<Proof> proof = Validate(all, 1, &hosts);
        ASSERT_TRUE(proof.ok()) << proof.status().message();
        if (algorithm == Algorithm::kHierarchical) {
          hierarchical = proof->crossing_shares;
        } else {
          others.emplace_back(algorithm, proof->crossing_shares);
        }
      }
      for (const auto& [algorithm, shares] : others) {
        EXPECT_LE(hierarchical, shares + 1e-9) << Name(algorithm) << " " << letters;
      }
    }
  }
}

TEST(TunerTest, HierarchicalAloneIsRefusedOnOneHost) {
  TunerCall call{{.collective = Collective::kAllReduce, .nranks = 4, .count = 100}};
  const Result<Choice> choice = Choose(call, Parsed("hierarchical"));
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(
      choice.status().message(),
      "allreduce: \"hierarchical\" (INCCL_ALGO, config->algorithm) admits hierarchical only, "
      "which needs several hosts, of which one has several ranks, or several sites; the number "
      "of ranks is 4, that of hosts 1");
  EXPECT_EQ(Choose(call, Parsed("hierarchical,ring"))->algorithm, Algorithm::kRing);
  call.reproducible = true;
  EXPECT_NE(Choose(call, Parsed("hierarchical")).status().message().find("rank order"),
            std::string::npos);
}

// The text of INCCL_ALGO stands in a lower layer than the table of algorithms.
TEST(AlgorithmNamesTest, AreThoseOfTheVariable) {
  EXPECT_EQ(
      AlgorithmNames(),
      "ring, tree, recursive_doubling, direct, direct_one_shot, direct_two_shot, hierarchical");
  const VariableInfo* const variable = FindVariable("INCCL_ALGO");
  ASSERT_NE(variable, nullptr);
  EXPECT_EQ(std::string(variable->values).rfind(AlgorithmNames() + ", in NCCL_ALGO's", 0), 0u)
      << variable->values;
  const Status refused = AlgorithmFilter::Parse("star").status();
  EXPECT_EQ(refused.message(), "algorithm \"star\" in \"star\": not one of " + AlgorithmNames());
}

TEST(TunerTest, FoldsInRankOrderIsWhatValidateProves) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const auto collective = static_cast<Collective>(c);
      const auto algorithm = static_cast<Algorithm>(a);
      for (const int n : {3, 4, 8}) {
        if (!HasSchedule(collective, algorithm, n)) continue;
        std::vector<Schedule> all;
        for (int rank = 0; rank < n; ++rank) {
          Result<Schedule> schedule =
              MakeSchedule({{.collective = collective, .nranks = n, .rank = rank}, algorithm});
          ASSERT_TRUE(schedule.ok());
          all.push_back(*std::move(schedule));
        }
        Result<Proof> proof = Validate(all);
        ASSERT_TRUE(proof.ok()) << proof.status().message();
        if (FoldsInRankOrder(collective, algorithm)) {
          EXPECT_TRUE(proof->rank_order) << Name(collective) << " " << Name(algorithm) << " " << n;
        }
      }
    }
  }
}

TEST(TunerTest, ReproducibleRefusesWhatDoesNotFoldInRankOrder) {
  Result<Choice> choice = Choose({{.collective = Collective::kAllReduce, .nranks = 4}, false, true},
                                 Parsed("allreduce:tree"));
  ASSERT_FALSE(choice.ok());
  EXPECT_NE(choice.status().message().find("reproducible"), std::string::npos);
}

}  // namespace
}  // namespace inccl
