// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"
#include "tuning/tuner.h"

namespace inccl {
namespace {

TunerTable Parsed(const std::string& text) {
  Result<TunerTable> table = TunerTable::Parse(text, "table");
  EXPECT_TRUE(table.ok()) << table.status().message();
  return table.ok() ? *table : TunerTable();
}

const char* const kText =
    "# measured somewhere\n"
    "allreduce 2 plain 16384 direct_one_shot # small\n"
    "allreduce 2 plain 1048576 direct\n"
    "allreduce\t2 plain max ring\n"
    "\n"
    "allreduce 8 plain 4096 recursive_doubling\n"
    "broadcast 4 plain max tree\n"
    "allreduce 2 compressed 4096 direct_one_shot\r\n";

TEST(TunerTableTest, FindsByCollectiveKindRanksAndBytes) {
  const TunerTable table = Parsed(kText);
  const auto find = [&](Collective collective, int nranks, bool compressed, uint64_t bytes) {
    const std::optional<Algorithm> found = table.Find(collective, nranks, compressed, bytes);
    return std::string(found ? Name(*found) : "none");
  };
  EXPECT_EQ(find(Collective::kAllReduce, 2, false, 0), "direct_one_shot");
  EXPECT_EQ(find(Collective::kAllReduce, 2, false, 16384), "direct_one_shot");
  EXPECT_EQ(find(Collective::kAllReduce, 2, false, 16385), "direct");
  EXPECT_EQ(find(Collective::kAllReduce, 2, false, 1048577), "ring");
  EXPECT_EQ(find(Collective::kAllReduce, 2, false, UINT64_MAX), "ring");
  EXPECT_EQ(find(Collective::kAllReduce, 5, false, 16385), "direct");  // as with 2 ranks
  EXPECT_EQ(find(Collective::kAllReduce, 8, false, 4096), "recursive_doubling");
  EXPECT_EQ(find(Collective::kAllReduce, 64, false, 1), "recursive_doubling");
  EXPECT_EQ(find(Collective::kAllReduce, 8, false, 4097), "none");
  EXPECT_EQ(find(Collective::kAllReduce, 3, true, 4096), "direct_one_shot");
  EXPECT_EQ(find(Collective::kAllReduce, 3, true, 4097), "none");
  EXPECT_EQ(find(Collective::kBroadcast, 3, false, 1), "none");
  EXPECT_EQ(find(Collective::kBroadcast, 4, false, 1), "tree");
  EXPECT_EQ(find(Collective::kBroadcast, 4, true, 1), "none");
  EXPECT_EQ(find(Collective::kReduce, 4, false, 1), "none");
  EXPECT_FALSE(TunerTable().Find(Collective::kAllReduce, 2, false, 1).has_value());
}

// Against a search that knows nothing of order.
TEST(TunerTableTest, FindsWhatALinearSearchFinds) {
  Rng rng(test::TestSeed());
  for (int round = 0; round < 200; ++round) {
    std::map<std::tuple<int, int, bool>, std::map<uint64_t, Algorithm>> groups;
    for (uint64_t i = 0; i < rng.Below(12); ++i) {
      const auto collective = static_cast<Collective>(rng.Below(3));
      const int nranks = 2 + static_cast<int>(rng.Below(6));
      const auto algorithm = static_cast<Algorithm>(rng.Below(kAlgorithms));
      if (!HasSchedule(collective, algorithm, nranks)) continue;
      groups[{static_cast<int>(collective), nranks, rng.Below(2) == 0}][rng.Below(100)] = algorithm;
    }
    std::string text;
    for (const auto& [group, limits] : groups) {
      for (const auto& [bytes, algorithm] : limits) {
        text += FormatRow({static_cast<Collective>(std::get<0>(group)), std::get<1>(group),
                           std::get<2>(group), bytes, algorithm}) +
                "\n";
      }
    }
    const TunerTable table = Parsed(text);
    for (int query = 0; query < 100; ++query) {
      const int collective = static_cast<int>(rng.Below(3));
      const int nranks = 2 + static_cast<int>(rng.Below(8));
      const bool compressed = rng.Below(2) == 0;
      const uint64_t bytes = rng.Below(110);
      std::optional<Algorithm> expected;
      for (int n = nranks; n >= 2; --n) {
        const auto group = groups.find({collective, n, compressed});
        if (group == groups.end()) continue;
        const auto limit = group->second.lower_bound(bytes);
        if (limit != group->second.end()) expected = limit->second;
        break;
      }
      ASSERT_EQ(table.Find(static_cast<Collective>(collective), nranks, compressed, bytes),
                expected)
          << text << "query " << collective << " " << nranks << " " << compressed << " " << bytes;
    }
  }
}

TEST(TunerTableTest, RowsSurviveBeingWrittenAndReadAndTellTablesApart) {
  const TunerTable table = Parsed(kText);
  std::string text;
  for (const TunerRow& row : table.rows()) text += FormatRow(row) + "\n";
  const TunerTable again = Parsed(text);
  EXPECT_EQ(again.rows(), table.rows());
  EXPECT_EQ(again.Digest(), table.Digest());
  EXPECT_EQ(TunerTable().Digest(), 0u);
  for (const char* other : {"allreduce 2 plain max ring", "allreduce 2 compressed max ring",
                            "allreduce 3 plain max ring", "allreduce 2 plain max tree",
                            "allreduce 2 plain 1 ring", "broadcast 2 plain max ring"}) {
    EXPECT_NE(Parsed(other).Digest(), table.Digest());
    if (std::string(other) != "allreduce 2 plain max ring") {
      EXPECT_NE(Parsed(other).Digest(), Parsed("allreduce 2 plain max ring").Digest()) << other;
    }
  }
}

TEST(TunerTableTest, TheRateOfTheLinkReplacesTheDefault) {
  const struct {
    uint32_t mbps;
    uint64_t ps;
  } kRates[] = {{0, 850},      {10'000, 850}, {1000, 8500},
                {100'000, 85}, {10, 100'000}, {UINT32_MAX, 1}};
  for (const auto& rate : kRates) {
    TunerTable table;
    table.SetLink(rate.mbps, 0);
    EXPECT_EQ(table.costs().network_byte_ps, rate.ps) << rate.mbps;
    EXPECT_EQ(table.costs().shm_byte_ps, CostConstants().shm_byte_ps);
  }
  // The default in a file is a measured value as any other.
  for (const uint64_t given : {uint64_t{850}, uint64_t{8000}}) {
    TunerTable table = Parsed("cost network_byte_ps " + std::to_string(given));
    table.SetLink(25'000, 0);
    EXPECT_EQ(table.costs().network_byte_ps, given);
  }
  TunerTable table = Parsed("cost shm_byte_ps 7");
  table.SetLink(25'000, 0);
  EXPECT_EQ(table.costs().network_byte_ps, 340u);
  EXPECT_EQ(table.costs().shm_byte_ps, 7u);
}

TEST(TunerTableTest, ALongRoundTripReplacesTheDefault) {
  TunerTable table;
  table.SetLink(1000, kLongRoundTripUs - 1);  // as on networks of one site
  EXPECT_EQ(table.costs().network_latency_ns, CostConstants().network_latency_ns);
  EXPECT_EQ(BytesUnderWay(table.costs()), 0u);
  table.SetLink(1000, 20'000);
  EXPECT_EQ(table.costs().network_latency_ns, 10'000'000u);
  EXPECT_EQ(BytesUnderWay(table.costs()), 20'000'000'000u / 8500);  // 2.35 MB
  table.SetLink(UINT32_MAX, UINT32_MAX);
  EXPECT_EQ(table.costs().network_latency_ns, kMostCostNs);
  table.SetLink(1000, 90);  // the rendezvous is far, but no rank is
  EXPECT_EQ(table.costs().network_latency_ns, CostConstants().network_latency_ns);
  TunerTable given = Parsed("cost network_latency_ns 7000");
  given.SetLink(1000, 20'000);
  EXPECT_EQ(given.costs().network_latency_ns, 7000u);
  EXPECT_EQ(given.costs().site_latency_ns, 7000u);  // it stands for all links
  TunerTable both = Parsed("cost network_latency_ns 7000\ncost site_latency_ns 9");
  both.SetLink(1000, 20'000);
  EXPECT_EQ(both.costs().site_latency_ns, 9u);
  // A file can also say that links are long.
  EXPECT_EQ(BytesUnderWay(Parsed("cost network_latency_ns 500000").costs()), 1'000'000'000u / 850);
}

TEST(TunerTableTest, ConstantsOfTheCostModelSurviveBeingWrittenAndRead) {
  const TunerTable table = Parsed(
      "cost network_byte_ps 8000\nallreduce 2 plain max ring\ncost shm_latency_ns 0 # fast\n");
  EXPECT_EQ(table.costs().network_byte_ps, 8000u);
  EXPECT_EQ(table.costs().shm_latency_ns, 0u);
  EXPECT_EQ(table.costs().network_latency_ns, CostConstants().network_latency_ns);
  EXPECT_EQ(table.rows().size(), 1u);
  std::string text;
  for (const CostField& field : kCostFields) text += FormatCost(field, table.costs()) + "\n";
  EXPECT_EQ(Parsed(text).costs(), table.costs());
  for (const CostField& field : kCostFields) {
    CostConstants other;
    other.*field.value += 1;
    const TunerTable changed = Parsed(FormatCost(field, other));
    EXPECT_EQ(changed.costs(), other);
    EXPECT_FALSE(changed.empty());
    EXPECT_NE(changed.Digest(), 0u) << field.name;
    EXPECT_NE(changed.Digest(), Parsed(text).Digest()) << field.name;
  }
  // What says nothing new changes nothing.
  EXPECT_TRUE(Parsed(FormatCost(kCostFields[0], CostConstants())).empty());
}

TEST(TunerTableTest, MistakesAreNamedWithFileAndLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"allreduce 2 plain max", "table:1: 4 words"},
      {"#\nallreduce 2 plain max ring ring", "table:2: 6 words"},
      {"allreduse 2 plain max ring", "table:1: \"allreduse\" is no collective"},
      {"allreduce 1 plain max ring", "\"1\" is no number of ranks in [2, 4096]"},
      {"allreduce 4097 plain max ring", "\"4097\" is no number of ranks"},
      {"allreduce 2x plain max ring", "\"2x\" is no number of ranks"},
      {"allreduce 2 packed max ring", "\"packed\" is neither plain nor compressed"},
      {"allreduce 2 plain -1 ring", "\"-1\" is neither a number of bytes nor max"},
      {"allreduce 2 plain 4K ring", "\"4K\" is neither"},
      {"allreduce 2 plain 99999999999999999999 ring", "is neither"},
      {"allreduce 2 plain max rign", "\"rign\" is no algorithm"},
      {"reduce_scatter 2 plain max tree", "there is no reduce_scatter on 2 ranks"},
      {"allreduce 2 plain 8 ring\nallreduce 2 plain 8 tree", "table:2: \"allreduce 2 plain 8 tree"},
      {"allreduce 2 plain max ring\nallreduce 2 plain 8 tree", "BYTES ascending"},
      {"allreduce 2 plain 8 ring\nreduce 2 plain 8 ring\nallreduce 2 plain 9 ring", "table:3: "},
      {std::string("allreduce 2 plain max r\x01\xFF", 25), "\"r??\" is no algorithm"},
      {"cost network_byte_ps", "table:1: 2 words; such a line is cost NAME VALUE"},
      {"cost network_bite_ps 1", "\"network_bite_ps\" is no constant of the cost model"},
      {"cost network_byte_ps -1", "network_byte_ps: \"-1\" is no whole number in [0, 100000]"},
      {"cost network_byte_ps 0.5", "network_byte_ps: \"0.5\" is no whole number"},
      {"cost network_byte_ps 100001", "network_byte_ps: \"100001\" is no whole number"},
      {"cost network_latency_ns 1000000001", "network_latency_ns: \"1000000001\""},
      {"cost shm_byte_ps 99999999999999999999", "shm_byte_ps: \"9999"},
      {"cost shm_byte_ps 1\n\ncost shm_byte_ps 1", "table:3: shm_byte_ps is given twice"}};
  for (const auto& [text, words] : cases) {
    const Result<TunerTable> table = TunerTable::Parse(text, "table");
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_EQ(table.status().code(), Code::kInvalidArgument);
    EXPECT_NE(table.status().message().find(words), std::string::npos)
        << table.status().message() << "\nwanted: " << words;
  }
}

TEST(TunerTableTest, FilesThatCannotBeReadAreNamed) {
  std::string directory = ::testing::TempDir() + "inccl-table-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string file = directory + "/table", pipe = directory + "/pipe";
  std::ofstream(file) << "allreduce 2 plain max ring\n";
  EXPECT_EQ(TunerTable::Load(file)->rows().size(), 1u);
  std::ofstream(file) << std::string(300 * 1024, '#');
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {directory + "/missing", directory, file}) {
    const Result<TunerTable> table = TunerTable::Load(path);
    ASSERT_FALSE(table.ok()) << path;
    EXPECT_EQ(table.status().code(), Code::kInvalidArgument) << path;
    EXPECT_NE(table.status().message().find(path), std::string::npos) << table.status().message();
  }
  EXPECT_TRUE(TunerTable::Load(pipe)->empty());  // and it returns
  std::filesystem::remove_all(directory);
}

TEST(TunerTableTest, TheTunerFollowsItWhereItMay) {
  const TunerTable table = Parsed(
      "allreduce 2 plain 65536 ring\nallreduce 2 plain max tree\n"
      "allreduce 2 compressed max ring\n");
  TunerCall call{
      {.collective = Collective::kAllReduce, .type = DataType::kUint8, .nranks = 2, .count = 4096}};
  const AlgorithmFilter all;
  const auto chosen = [&](const AlgorithmFilter& filter) {
    const Result<Choice> choice = Choose(call, filter, table);
    EXPECT_TRUE(choice.ok()) << choice.status().message();
    return *choice;
  };
  EXPECT_EQ(chosen(all).algorithm, Algorithm::kRing);
  EXPECT_EQ(chosen(all).rule, TunerRule::kTable);
  EXPECT_NE(Explain(call, chosen(all)).find("INCCL_TUNER_FILE"), std::string::npos);
  call.count = 1 << 20;
  EXPECT_EQ(chosen(all).algorithm, Algorithm::kTree);
  // What is not admitted is not taken, whatever was measured.
  EXPECT_EQ(chosen(*AlgorithmFilter::Parse("^tree")).algorithm,
            Choose(call, *AlgorithmFilter::Parse("^tree"))->algorithm);
  EXPECT_EQ(chosen(*AlgorithmFilter::Parse("ring")).rule, TunerRule::kOnlyOne);
  call.reproducible = true;
  EXPECT_TRUE(FoldsInRankOrder(call.collective, chosen(all).algorithm));
  call.reproducible = false;
  call.compressed = true;
  EXPECT_EQ(chosen(all).algorithm, Algorithm::kRing);
  call.route = {.group = 2, .because = "m=2"};
  EXPECT_EQ(chosen(all).algorithm, Algorithm::kTwoShot);
  call.route = {};
  const std::vector<uint64_t> apart = {1, 2};
  const HostMap hosts(apart);  // a table is that of one host
  call.hosts = &hosts;
  EXPECT_EQ(chosen(all).rule, TunerRule::kModel);
}

}  // namespace
}  // namespace inccl
