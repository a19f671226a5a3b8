// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "perf/support/host.h"
#include "perf/support/record.h"

namespace inccl::perf {
namespace {

Row SampleRow() {
  Row row;
  row.codec = "hbi:bits=6";
  row.codec_spec = "hbi:bits=6,ref=ring";
  row.algorithm = "ring";
  row.transport = "shm";
  row.nranks = 4;
  row.bytes = 4096;
  row.count = 1024;
  row.out_of_place.time_us = 12.5;
  row.out_of_place.accuracy = Accuracy{0, 0.5, 1, 4};
  row.out_of_place.identical = true;
  row.out_of_place.digest = 0xFEDCBA9876543210u;
  row.out_of_place.wire = Wire{777, 5.25, 6.0, 0.75, true};
  row.out_of_place.baseline = Measurement::Side{25, 26, 27, 0.5};
  row.out_of_place.limit = Measurement::Side{10, 11, 12, 1.25};
  row.in_place.time_us = std::numeric_limits<double>::infinity();
  return row;
}

TEST(BenchRecord, HasEveryField) {
  const nlohmann::ordered_json r = RecordOf(SampleRow(), false);
  for (const char* field :
       {"op",     "algo",    "transport",   "codec",       "nranks",    "bytes",      "count",
        "type",   "redop",   "in_place",    "time_us",     "algbw",     "busbw",      "wire_bytes",
        "ratio",  "max_err", "rel_l2",      "vnmse",       "identical", "digest",     "wrong",
        "p99_us", "max_us",  "baseline_us", "vs_baseline", "root",      "codec_spec", "bits"}) {
    EXPECT_TRUE(r.contains(field)) << field;
  }
  EXPECT_EQ(r["op"], "allreduce");
  EXPECT_EQ(r["codec"], "hbi:bits=6");
  EXPECT_EQ(r["type"], "float");
  EXPECT_EQ(r["redop"], "sum");
  EXPECT_EQ(r["in_place"], false);
  EXPECT_EQ(r["time_us"], 12.5);
  EXPECT_EQ(r["wire_bytes"], 777);
  EXPECT_EQ(r["rel_l2"], 0.5);
  EXPECT_EQ(r["vnmse"], 0.25);
  EXPECT_EQ(r["max_err"], 0.5);
  EXPECT_EQ(r["digest"], "fedcba9876543210");
  EXPECT_EQ(r["baseline_us"], 25);
  EXPECT_EQ(r["vs_baseline"], 0.5);
  EXPECT_EQ(r["baseline_p99_us"], 26);
  EXPECT_EQ(r["baseline_max_us"], 27);
  EXPECT_EQ(r["limit_us"], 10);
  EXPECT_EQ(r["vs_limit"], 1.25);
  EXPECT_EQ(r["limit_p99_us"], 11);
  EXPECT_EQ(r["limit_max_us"], 12);
  EXPECT_TRUE(r["root"].is_null());
}

TEST(BenchRecord, WhatDoesNotExistIsNull) {
  const nlohmann::ordered_json r = RecordOf(SampleRow(), true);
  EXPECT_EQ(r["in_place"], true);
  for (const char* field :
       {"time_us", "wire_bytes", "ratio", "max_err", "vnmse", "identical", "digest", "wrong",
        "baseline_us", "vs_baseline", "limit_us", "vs_limit", "limit_max_us"}) {
    EXPECT_TRUE(r[field].is_null()) << field;
  }
}

// As many cells in every line; what has a comma stands in quotes, what is null is empty.
TEST(BenchRecord, CsvHasTheRecords) {
  const std::string heading = CsvHeading();
  EXPECT_EQ(heading.substr(0, 9), "op,algo,t");
  EXPECT_EQ(heading.back(), '\n');
  const std::string lines = CsvLines(SampleRow());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  const std::string first = lines.substr(0, lines.find('\n') + 1);
  EXPECT_EQ(std::count(first.begin(), first.end(), ','),
            std::count(heading.begin(), heading.end(), ',') + 1);
  EXPECT_EQ(first.substr(0, 59), "allreduce,ring,shm,hbi:bits=6,\"hbi:bits=6,ref=ring\",4,4096,");
  EXPECT_NE(first.find(",sum,,false,12.5,"), std::string::npos) << first;
  EXPECT_NE(lines.find(",sum,,true,,"), std::string::npos) << lines;  // an infinite time
  Row shift = SampleRow();
  shift.operation = Operation::kSendRecv;
  const std::string one = CsvLines(shift);
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 1);
}

TEST(BenchRecord, DocumentSurvivesTheFile) {
  RunHeader header;
  header.command = "allreduce_bench --data 'my \"file\".npy'";
  header.version = "1.2.3";
  const nlohmann::ordered_json document = DocumentOf(header, {SampleRow(), SampleRow()});
  EXPECT_EQ(document["rows"].size(), 4u);
  Row out_of_place_only = SampleRow();
  out_of_place_only.operation = Operation::kAllToAll;
  EXPECT_EQ(DocumentOf(header, {out_of_place_only})["rows"].size(), 1u);
  EXPECT_EQ(document["header"]["command"], header.command);
  for (const char* field : {"version", "host", "cpu", "date", "cores", "seed", "iterations"}) {
    EXPECT_TRUE(document["header"].contains(field)) << field;
  }
  const std::string path =
      testing::TempDir() + "bench_record_" + std::to_string(getpid()) + ".json";
  ASSERT_TRUE(CheckWritable(path).ok());
  ASSERT_TRUE(WriteDocument(path, document).ok());
  std::ifstream file(path);
  EXPECT_EQ(nlohmann::ordered_json::parse(file), document);
  std::remove(path.c_str());
}

TEST(BenchRecord, AFileThatCannotBeWrittenIsNamed) {
  const std::string path = "/nonexistent-directory/out.json";
  for (const Status& s :
       {CheckWritable(path), WriteDocument(path, nlohmann::ordered_json::object())}) {
    EXPECT_EQ(s.code(), Code::kSystemError);
    EXPECT_NE(s.message().find(path), std::string::npos);
  }
}

TEST(BenchHost, CommandLineCanBePastedIntoAShell) {
  const char* argv[] = {"./bench", "-b", "4K", "--data", "a b/{rank}.npy", "it's", ""};
  EXPECT_EQ(CommandLine(7, argv), "./bench -b 4K --data 'a b/{rank}.npy' 'it'\\''s' ''");
}

TEST(BenchHost, KnowsItsDate) {
  const Host host = ThisHost();
  ASSERT_EQ(host.date.size(), 20u);
  EXPECT_EQ(host.date[10], 'T');
  EXPECT_EQ(host.date.back(), 'Z');
  EXPECT_GT(host.cores, 0);
}

}  // namespace
}  // namespace inccl::perf
