// SPDX-License-Identifier: Apache-2.0
//
// inccl-info --explain against calls that are really made: the bytes that their statistics count,
// the memory that lanes really take.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/world.h"
#include "base/rng.h"
#include "build_paths.h"
#include "collectives/program.h"
#include "collectives/schedule.h"
#include "inccl/ccl.h"
#include "support/seed.h"
#include "tools/run_program.h"
#include "transport/loopback/loopback.h"
#include "tuning/segmentation.h"
#include "tuning/tuner.h"

namespace inccl::test {
namespace {

using Json = nlohmann::json;

Json ExplainJson(const std::string& arguments) {
  const ProgramResult result =
      RunProgram(INCCL_BINARY_DIR "/tools/inccl-info", "--json --explain " + arguments);
  EXPECT_EQ(result.status, 0) << result.err;
  Json json = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << result.out;
  return json;
}

// The statistics of one call on n ranks, by rank.
std::vector<ccl_compression_stats_t> Measure(int n, size_t count, const std::string& spec,
                                             const std::string& algo, const char* channels,
                                             const std::string& collective = "allreduce") {
  const ScopedEnv environment(
      {{"INCCL_ALGO", algo.c_str()}, {"INCCL_CHANNELS", channels}, {"INCCL_CODEC", spec.c_str()}});
  std::vector<ccl_compression_stats_t> stats(static_cast<size_t>(n), CCL_COMPRESSION_STATS_INIT);
  const uint64_t seed = TestSeed();
  RunThreads(n, [&](int rank, ccl_comm_t comm) {
    Rng rng(seed + static_cast<uint64_t>(rank));
    std::vector<float> data(count * static_cast<size_t>(n)), result(data.size());
    for (float& x : data) {
      x = static_cast<float>(rng.Uniform() + rng.Uniform() + rng.Uniform() - 1.5);
    }
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.stats = &stats[static_cast<size_t>(rank)];
    ccl_result_t status = CCL_SUCCESS;
    if (collective == "reduce_scatter") {
      status = ccl_reduce_scatter_compressed(data.data(), result.data(), count, CCL_FLOAT32,
                                             CCL_SUM, &how, comm, nullptr);
    } else if (collective == "allgather") {
      status = ccl_allgather_compressed(data.data(), result.data(), count, CCL_FLOAT32, &how, comm,
                                        nullptr);
    } else {
      status = ccl_allreduce_compressed(data.data(), result.data(), count, CCL_FLOAT32, CCL_SUM,
                                        &how, comm, nullptr);
    }
    EXPECT_EQ(status, CCL_SUCCESS) << ccl_get_last_error(comm);
  });
  return stats;
}

std::string Arguments(size_t count, int n, const std::string& algo, const char* channels,
                      const std::string& collective = "allreduce") {
  return collective + " " + std::to_string(count * 4) + " " + std::to_string(n) + " --channels " +
         channels + (algo.empty() ? "" : " --algo " + algo);
}

TEST(ExplainTest, UncompressedBytesAreThoseOfRealCalls) {
  struct Case {
    int n;
    size_t count;
    const char* algo;
    const char* channels;
  };
  const Case cases[] = {{2, 1, "", "1"},
                        {4, 4096, "", "1"},
                        {4, 4097, "", "1"},
                        {3, 300001, "ring", "1"},
                        {4, 2500000, "direct", "2"},
                        {5, 70000, "tree", "3"},
                        {6, 70000, "recursive_doubling", "1"},
                        {3, 0, "", "1"},
                        {4, 100, "ring", "4"},
                        {1, 100, "", "1"}};
  for (const Case& c : cases) {
    const Json json = ExplainJson(Arguments(c.count, c.n, c.algo, c.channels));
    const std::vector<ccl_compression_stats_t> stats =
        Measure(c.n, c.count, "none", c.algo, c.channels);
    if (c.n == 1) {
      EXPECT_TRUE(json["algorithm"].is_null());
      EXPECT_EQ(stats[0].wire_bytes, 0u);
      continue;
    }
    for (size_t rank = 0; rank < stats.size(); ++rank) {
      const Json& one = json["per_rank"][rank];
      EXPECT_EQ(one["wire_bytes_expected"], stats[rank].wire_bytes) << c.algo << " rank " << rank;
      EXPECT_EQ(one["wire_bytes_at_most"], stats[rank].wire_bytes);
      EXPECT_EQ(one["uncompressed_bytes"], stats[rank].payload_bytes);
    }
  }
}

TEST(ExplainTest, CompressedBytesBoundThoseOfRealCalls) {
  const std::pair<const char*, const char*> cases[] = {
      {"hbi:bits=6", "direct_two_shot"},    {"hbi:bits=4", "direct_two_shot"},
      {"hbi:bits=5,ref=ring", "ring"},      {"hbi:bits=6", "tree"},
      {"hbi:k=7,k2=15", "direct_two_shot"}, {"hbi:bits=6,m=2", "direct_two_shot"}};
  constexpr int kRanks = 4;
  constexpr size_t kCount = (1 << 20) + 5000;
  for (const auto& [spec, algo] : cases) {
    const Json json =
        ExplainJson(Arguments(kCount, kRanks, algo, "1") + " --codec " + std::string(spec));
    const std::vector<ccl_compression_stats_t> stats = Measure(kRanks, kCount, spec, algo, "1");
    const bool reference = std::string(algo) != "tree";
    EXPECT_EQ(json["codec"].get<std::string>().rfind("hbi:", 0), 0u);
    EXPECT_EQ(json["agreement"], "two steps");
    for (size_t rank = 0; rank < stats.size(); ++rank) {
      const Json& one = json["per_rank"][rank];
      ASSERT_EQ(stats[rank].compressed, 1);
      const auto wire = static_cast<double>(stats[rank].wire_bytes);
      EXPECT_LE(wire, one["wire_bytes_at_most"].get<double>());
      EXPECT_EQ(one["slices"], (stats[rank].wire_bytes - stats[rank].payload_bytes) / 64);
      ASSERT_EQ(one["wire_bytes_expected"].is_null(), !reference) << spec << " " << algo;
      if (!reference) continue;
      // The budget holds for the ranks together: each has its own share of the superblocks.
      EXPECT_NEAR(wire / one["wire_bytes_expected"].get<double>(), 1, 0.1)
          << spec << " rank " << rank;
    }
  }
}

// Lists of codes are within the bounds, too, and the codec's need of a residual shows.
TEST(ExplainTest, CodesOfBlocksAreWithinTheBounds) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 300001;
  for (const std::string spec : {"onebit", "dither:bits=4", "dither:bits=2,norm=l2,sparse=1"}) {
    for (const char* algo : {"direct_two_shot", "ring"}) {
      SCOPED_TRACE(spec + " " + algo);
      const Json json = ExplainJson(Arguments(kCount, kRanks, algo, "1") + " --codec " + spec);
      EXPECT_EQ(json["needs_residual"], spec == "onebit");
      const std::vector<ccl_compression_stats_t> stats = Measure(kRanks, kCount, spec, algo, "1");
      for (size_t rank = 0; rank < stats.size(); ++rank) {
        const Json& one = json["per_rank"][rank];
        const auto wire = static_cast<double>(stats[rank].wire_bytes);
        EXPECT_LE(wire, one["wire_bytes_at_most"].get<double>());
        ASSERT_EQ(one["wire_bytes_expected"].is_null(), std::string(algo) == "ring");
        if (std::string(algo) == "ring") continue;
        const double expected = one["wire_bytes_expected"].get<double>();
        EXPECT_LE(wire, expected * 1.02);
        EXPECT_TRUE(spec.find("sparse=1") != std::string::npos || wire > expected * 0.97);
      }
    }
  }
}

// Checksums, which `bits` does not count, are in the expected bytes.
TEST(ExplainTest, ChecksumsAreExpected) {
  const struct {
    const char *spec, *algo;
    double slack;
  } cases[] = {{"hbi:k=7,k2=15,checksum=1", "direct_two_shot", 8},
               {"hbi:k=7,k2=15,ref=ring,checksum=1", "ring", 8},
               {"hbi:k=7,k2=15,m=2,checksum=1", "direct_two_shot", 8}};
  constexpr int kRanks = 4;
  constexpr size_t kCount = 131072;  // enough for an agreement in two steps, which `bits` counts
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    const Json json =
        ExplainJson(Arguments(kCount, kRanks, c.algo, "1") + " --codec " + std::string(c.spec));
    const std::vector<ccl_compression_stats_t> stats = Measure(kRanks, kCount, c.spec, c.algo, "1");
    for (size_t rank = 0; rank < stats.size(); ++rank) {
      const Json& one = json["per_rank"][rank];
      EXPECT_LE(stats[rank].wire_bytes, one["wire_bytes_at_most"].get<uint64_t>());
      EXPECT_NEAR(static_cast<double>(stats[rank].wire_bytes),
                  one["wire_bytes_expected"].get<double>(), c.slack)
          << " rank " << rank;
    }
  }
}

TEST(ExplainTest, CompressedBytesOfSegmentsBoundThoseOfRealCalls) {
  struct Case {
    const char *collective, *spec, *algo, *agreement;
    bool reference;
  };
  const Case cases[] = {{"reduce_scatter", "hbi:bits=6", "direct", "two steps", true},
                        {"reduce_scatter", "hbi:bits=6", "ring", "two steps", false},
                        {"reduce_scatter", "hbi:bits=5,ref=ring", "ring", "two steps", true},
                        {"reduce_scatter", "hbi:k=7,k2=15", "direct", "two steps", true},
                        {"allgather", "hbi:bits=6", "direct", "one step", true},
                        {"allgather", "hbi:bits=4", "ring", "one step", true},
                        {"allgather", "hbi:k=7,k2=15", "direct", "one step", true}};
  constexpr int kRanks = 4;
  constexpr size_t kCount = 300001;
  for (const Case& c : cases) {
    const Json json = ExplainJson(Arguments(kCount, kRanks, c.algo, "1", c.collective) +
                                  " --codec " + std::string(c.spec));
    const std::vector<ccl_compression_stats_t> stats =
        Measure(kRanks, kCount, c.spec, c.algo, "1", c.collective);
    EXPECT_EQ(json["agreement"], c.agreement);
    for (size_t rank = 0; rank < stats.size(); ++rank) {
      const Json& one = json["per_rank"][rank];
      ASSERT_EQ(stats[rank].compressed, 1);
      const auto wire = static_cast<double>(stats[rank].wire_bytes);
      EXPECT_LE(wire, one["wire_bytes_at_most"].get<double>());
      EXPECT_EQ(one["slices"], (stats[rank].wire_bytes - stats[rank].payload_bytes) / 64);
      ASSERT_EQ(one["wire_bytes_expected"].is_null(), !c.reference) << c.spec << " " << c.algo;
      if (!c.reference) continue;
      EXPECT_NEAR(wire / one["wire_bytes_expected"].get<double>(), 1, 0.03)
          << c.collective << " " << c.spec << " rank " << rank;
    }
  }
}

TEST(ExplainTest, WhyACallIsNotCompressed) {
  EXPECT_NE(ExplainJson("allreduce 1M 4 --codec hbi:bits=6 --type int32")["uncompressed_because"]
                .get<std::string>()
                .find("int32"),
            std::string::npos);
  EXPECT_NE(ExplainJson("allreduce 1M 4 --codec hbi:bits=6 --op max")["uncompressed_because"]
                .get<std::string>()
                .find("max"),
            std::string::npos);
  EXPECT_NE(ExplainJson("allreduce 4K 4 --codec hbi:min_bytes=8192")["uncompressed_because"]
                .get<std::string>()
                .find("8192"),
            std::string::npos);
  EXPECT_EQ(ExplainJson("allreduce 1M 4 --codec none")["codec"], "none");
  EXPECT_FALSE(ExplainJson("allreduce 1M 4").contains("uncompressed_because"));
  const Json compressed = ExplainJson("allreduce 1M 4 --compressed");
  EXPECT_EQ(compressed["codec"].get<std::string>().rfind("hbi:", 0), 0u);
}

TEST(ExplainTest, TheChoiceIsTheTuners) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (const auto& [n, bytes] :
         {std::pair(2, 0u), std::pair(16, 16384u), std::pair(17, 16384u), std::pair(3, 16388u)}) {
      const TunerCall call{
          {.collective = collective, .type = DataType::kUint8, .nranks = n, .count = bytes}};
      const Result<Choice> choice = Choose(call, AlgorithmFilter());
      ASSERT_TRUE(choice.ok());
      const Json json = ExplainJson(std::string(Name(collective)) + " " + std::to_string(bytes) +
                                    " " + std::to_string(n));
      EXPECT_EQ(json["algorithm"], Name(choice->algorithm));
      EXPECT_EQ(json["why"], Explain(call, *choice));
    }
  }
}

// What travels in all, from any rank (docs/algorithms.md).
TEST(ExplainTest, BytesOfTheOtherCollectives) {
  constexpr uint64_t kBytes = 1 << 20;
  for (const int n : {2, 5, 8}) {
    for (const char* algo : {"ring", "direct", "tree"}) {
      for (const char* name : {"broadcast", "reduce", "reduce_scatter", "allgather"}) {
        const bool segments =
            std::string(name) == "reduce_scatter" || std::string(name) == "allgather";
        if (segments && std::string(algo) == "tree") continue;
        const Json json =
            ExplainJson(std::string(name) + " 1M " + std::to_string(n) + " --algo " + algo);
        uint64_t total = 0;
        for (const Json& rank : json["per_rank"])
          total += rank["uncompressed_bytes"].get<uint64_t>();
        const auto others = static_cast<uint64_t>(n - 1);
        EXPECT_EQ(total, kBytes * others * (segments ? static_cast<uint64_t>(n) : 1))
            << name << " " << algo << " " << n;
      }
    }
  }
}

TEST(ExplainTest, BytesOfMovesBetweenPairs) {
  constexpr uint64_t kBytes = 300 << 10;
  constexpr uint64_t kRanks = 5;
  for (const auto& [name, pairs] :
       {std::pair("alltoall", kRanks * (kRanks - 1)), std::pair("gather", kRanks - 1),
        std::pair("scatter", kRanks - 1)}) {
    const Json json = ExplainJson(std::string(name) + " 300K 5 --root 3");
    uint64_t total = 0;
    for (const Json& rank : json["per_rank"]) total += rank["uncompressed_bytes"].get<uint64_t>();
    EXPECT_EQ(total, kBytes * pairs) << name;
  }
}

// By the formulas of docs/algorithms.md, of 8 ranks on 2 hosts.
TEST(ExplainTest, BytesBetweenHosts) {
  constexpr uint64_t kBytes = 1 << 20;
  const auto between = [](const std::string& arguments) {
    uint64_t total = 0;
    const Json json = ExplainJson(arguments);
    for (const Json& rank : json["per_rank"]) {
      total += rank["uncompressed_bytes_to_other_hosts"].get<uint64_t>();
    }
    return total;
  };
  EXPECT_EQ(between("allreduce 1M 8"), 0u);
  EXPECT_EQ(between("allreduce 1M 8 --hosts 8"), 0u);
  EXPECT_EQ(between("allreduce 1M 8 --hosts 4,4"), 2 * kBytes);
  EXPECT_EQ(between("allreduce 1M 8 --hosts 4,4 --algo direct_two_shot"), 8 * kBytes);
  EXPECT_EQ(between("broadcast 1M 8 --hosts 1,4,3 --root 2"), 2 * kBytes);
  const Json json = ExplainJson("allreduce 1M 8 --hosts 4,4 --codec hbi:bits=6");
  EXPECT_EQ(json["algorithm"], "hierarchical");
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_EQ(json["steps"], 8);
  EXPECT_EQ(json["agreement"], "four steps");
}

TEST(ExplainTest, MemoryIsWhatLanesTake) {
  for (const char* algo : {"ring", "tree", "recursive_doubling", "direct_two_shot"}) {
    constexpr int kRanks = 6;
    const Json json = ExplainJson(std::string("allreduce 4M 6 --codec hbi:bits=6 --algo ") + algo);
    const Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(algo);
    ASSERT_TRUE(filter.ok());
    const Result<Choice> choice = Choose({{.collective = Collective::kAllReduce,
                                           .type = DataType::kUint8,
                                           .nranks = kRanks,
                                           .count = 4 << 20}},
                                         *filter);
    ASSERT_TRUE(choice.ok());
    std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(kRanks);
    ASSERT_FALSE(ends.empty());
    for (int rank = 0; rank < kRanks; ++rank) {
      Result<Schedule> schedule =
          MakeSchedule({{.collective = Collective::kAllReduce, .nranks = kRanks, .rank = rank},
                        choice->algorithm,
                        1,
                        1,
                        choice->side_one_shot});
      ASSERT_TRUE(schedule.ok());
      const size_t lanes = schedule->lanes.size();
      const uint64_t scratch = uint64_t{schedule->scratch_slots} * 2 * 2 * 131072;
      const auto end = static_cast<size_t>(rank);
      LaneTable table(ends[end].get());
      ASSERT_TRUE(Bind(*std::move(schedule), SlotsFor(131072), &table).ok());
      // Slots begin at whole pages; the directory has a page or two.
      const auto real = static_cast<double>(ends[end]->memory_bytes() + scratch);
      EXPECT_NEAR(json["per_rank"][end]["memory_bytes"].get<double>(), real,
                  4096.0 * static_cast<double>(lanes + 3))
          << algo << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace inccl::test
