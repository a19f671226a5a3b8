// SPDX-License-Identifier: Apache-2.0
//
// perf/regress: what counts as one case, and what as slower.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/regress/compare.h"
#include "perf/support/record.h"

namespace inccl::perf {
namespace {

using Json = nlohmann::json;
using Verdict = Comparison::Verdict;

// As the benchmarks write it: an all-reduce whose ratio in place is twice that out of place.
Json DocumentWith(double ratio, uint64_t bytes = 1 << 20, double link_gbps = 0) {
  Row row;
  row.algorithm = row.transport = "auto";
  row.codec = row.codec_spec = "none";
  row.nranks = 4;
  row.bytes = bytes;
  row.count = bytes / 4;
  row.out_of_place.time_us = 100 * ratio;
  row.out_of_place.limit = Measurement::Side{100, 0, 0, ratio};
  row.in_place.limit = Measurement::Side{100, 0, 0, 2 * ratio};
  RunHeader header;
  header.nranks = 4;
  header.link_gbps = link_gbps;
  return Json::parse(DocumentOf(header, {row}).dump());
}

Ratios RatiosOf(const std::vector<Json>& documents) {
  Ratios ratios;
  for (const Json& document : documents) {
    const Status s = AddRatios(document, "file", &ratios);
    EXPECT_TRUE(s.ok()) << s.message();
  }
  return ratios;
}

TEST(BenchRegress, PlacementSizeAndLinkMakeCases) {
  const Ratios ratios = RatiosOf(
      {DocumentWith(1), DocumentWith(3, 2 << 20), DocumentWith(5, 1 << 20, 10), DocumentWith(7)});
  ASSERT_EQ(ratios.size(), 6u);
  EXPECT_EQ(ratios.at("allreduce 4 ranks float sum 000001048576 B"), (std::vector<double>{1, 7}));
  EXPECT_EQ(ratios.at("allreduce 4 ranks float sum 000001048576 B in place"),
            (std::vector<double>{2, 14}));
  EXPECT_EQ(ratios.at("allreduce 4 ranks float sum 000002097152 B"), (std::vector<double>{3}));
  EXPECT_EQ(ratios.at("allreduce 4 ranks float sum 000001048576 B link 10 Gbit/s"),
            (std::vector<double>{5}));
}

TEST(BenchRegress, JudgesMediansByTheTolerance) {
  const Ratios saved = {{"a", {1.0, 2.0, 9.0}}, {"b", {2.0}}, {"c", {2.0}}, {"gone", {1.0}}};
  const Ratios now = {{"a", {2.3}}, {"b", {2.5}}, {"c", {1.5}}, {"more", {1.0}}};
  const std::vector<Comparison> found = Compare(saved, now, 0.2);
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].verdict, Verdict::kSame);  // 2.3 over the median 2
  EXPECT_EQ(found[0].saved, 2);
  EXPECT_EQ(found[1].verdict, Verdict::kSlower);
  EXPECT_EQ(found[1].change(), 1.25);
  EXPECT_EQ(found[2].verdict, Verdict::kFaster);
  EXPECT_EQ(found[3].name, "gone");
  EXPECT_EQ(found[3].verdict, Verdict::kOnlySaved);
  EXPECT_EQ(found[4].verdict, Verdict::kOnlyNew);
  EXPECT_EQ(Compare(saved, now, 0.3)[1].verdict, Verdict::kSame);

  const std::string text = FormatComparison(found, 0.2);
  EXPECT_NE(text.find("SLOWER"), std::string::npos) << text;
  EXPECT_NE(text.find("# 1 slower, 1 faster by more than 20 %, 1 within it; 1 not run, 1 new"),
            std::string::npos)
      << text;
}

TEST(BenchRegress, NamesTheFileThatIsNoBenchmarks) {
  Json without = DocumentWith(1);
  for (Json& row : without["rows"]) row["vs_limit"] = nullptr;
  Json strange = DocumentWith(1);
  strange["rows"][0]["bytes"] = "many";
  for (const Json& document : {Json(), Json(3), Json{{"rows", 1}}, Json{{"rows", Json::array()}},
                               without, strange, Json{{"rows", {1}}}}) {
    Ratios ratios;
    const Status s = AddRatios(document, "run.json", &ratios);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << document.dump();
    EXPECT_EQ(s.message().find("run.json: "), 0u) << s.message();
  }
}

}  // namespace
}  // namespace inccl::perf
