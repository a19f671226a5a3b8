// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "perf/support/layout.h"
#include "perf/support/table.h"

namespace inccl::perf {
namespace {

Row SampleRow() {
  Row row;
  row.codec = "hbi:bits=6";
  row.nranks = 4;
  row.bytes = 4194304;
  row.count = 1048576;
  row.out_of_place.time_us = 12.345;
  row.out_of_place.algbw = 2.5;
  row.out_of_place.busbw = 3.75;
  row.out_of_place.accuracy = Accuracy{0, 0.001, 4, 100};
  row.out_of_place.identical = true;
  row.out_of_place.digest = 0xABC;
  row.out_of_place.wire = Wire{786432, 5.33, 6, 0.01, true};
  row.in_place = row.out_of_place;
  row.in_place.time_us = 23456.7;
  row.in_place.busbw = 1.25;
  row.in_place.accuracy = Accuracy{3, 0.002, 1, 100};
  return row;
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(BenchTable, ColumnsInNcclTestsOrderThenOurs) {
  const Table table({true, true, "", 12});
  EXPECT_EQ(Words(table.Format(SampleRow())),
            (std::vector<std::string>{"4194304",    "1048576",  "float",
                                      "sum",
                                      "-1",  //
                                      "12.35",      "2.50",     "3.75",
                                      "0",          "23457",    "2.50",
                                      "1.25",       "3",  //
                                      "hbi:bits=6", "786432",   "5.33",
                                      "6.00",       "2.00e-03", "2.00e-01",
                                      "4.00e-02",   "yes",      "0000000000000abc"}));
}

TEST(BenchTable, NamesStandAboveTheirColumns) {
  const Table table({true, true, "MPI", 12});
  Row row = SampleRow();
  row.out_of_place.baseline = Measurement::Side{24.69, 0, 0, 0.5};
  const std::vector<std::string> header = Lines(table.Header());
  ASSERT_EQ(header.size(), 3u);
  for (const std::string& line : header) EXPECT_EQ(line.front(), '#');
  const std::string line = table.Format(row);
  // Right-aligned columns end where their names do.
  const auto end_of = [](const std::string& text, const std::string& word) {
    return text.find(word) + word.size();
  };
  EXPECT_EQ(end_of(header[1], "size"), end_of(line, "4194304"));
  EXPECT_EQ(end_of(header[1], "redop"), end_of(line, "sum"));
  EXPECT_EQ(end_of(header[1], "time"), end_of(line, "12.35"));
  EXPECT_EQ(end_of(header[2], "(us)"), end_of(line, "12.35"));
  EXPECT_EQ(header[1].find("codec"), line.find("hbi:bits=6"));
  EXPECT_EQ(header[1].find("digest"), line.find("0000000000000abc"));
  EXPECT_EQ(end_of(header[1], "identical"), end_of(line, "yes"));
  EXPECT_EQ(end_of(header[1], "MPI"), end_of(line, "24.69"));
  EXPECT_EQ(end_of(header[1], "ours/"), end_of(line, "0.50"));
  EXPECT_EQ(Words(line).back(), "n/a");  // no baseline in place
}

TEST(BenchTable, OtherSidesAndTailsStandBehindEachPlacement) {
  Row row = SampleRow();
  row.out_of_place.p99_us = 13;
  row.out_of_place.max_us = 14;
  row.out_of_place.baseline = Measurement::Side{25, 26, 27, 0.5};
  row.out_of_place.limit = Measurement::Side{6, 7, 8, 2};
  row.in_place.p99_us = 23;
  row.in_place.max_us = 24;
  row.in_place.limit = Measurement::Side{9, 10, 11, 3};
  const Table without({true, false, "", 12});
  const Table limits({.check = true, .codec_width = 12, .limit = true});
  const Table all(
      {.check = true, .baseline = "MPI", .codec_width = 12, .limit = true, .tails = true});
  const auto added = [&](const Table& table) {
    std::vector<std::string> words = Words(table.Format(row));
    const size_t before = Words(without.Format(row)).size();
    return std::vector<std::string>(words.begin() + static_cast<ptrdiff_t>(before), words.end());
  };
  EXPECT_EQ(added(limits), (std::vector<std::string>{"6.00", "2.00", "9.00", "3.00"}));
  EXPECT_EQ(added(all), (std::vector<std::string>{
                            "13.00", "14.00", "25.00", "0.50", "26.00", "27.00",  // ours, MPI
                            "6.00",  "2.00",  "7.00",  "8.00",                    // limit
                            "23.00", "24.00", "n/a",   "n/a",  "n/a",   "n/a",    // in place
                            "9.00",  "3.00",  "10.00", "11.00"}));
  // As wide as what stands below.
  EXPECT_EQ(Lines(all.Header())[1].size() + 1, all.Format(row).size());
  EXPECT_EQ(Lines(limits.Header())[1].size() + 1, limits.Format(row).size());
}

TEST(BenchTable, WhatIsNotKnownIsNotInvented) {
  const Table table({false, false, "", 12});
  Row row;
  row.operation = Operation::kBroadcast;
  row.codec = "none";
  row.root = 2;
  EXPECT_EQ(Words(table.Format(row)),
            (std::vector<std::string>{"0",    "0",   "float", "none", "2",    "0.00", "0.00",
                                      "0.00", "N/A", "0.00",  "0.00", "0.00", "N/A",  "none",
                                      "-",    "-",   "-",     "N/A",  "N/A",  "N/A",  "-"}));
}

TEST(BenchTable, WhatHasNoInPlaceFormIsNotCounted) {
  const Table table({true, false, "", 12});
  Row row = SampleRow();
  row.operation = Operation::kAllToAll;
  row.in_place = Measurement();
  const std::vector<std::string> words = Words(table.Format(row));
  const std::vector<std::string> in_place(words.begin() + 9, words.begin() + 13);
  EXPECT_EQ(in_place, std::vector<std::string>(4, "N/A"));
  EXPECT_EQ(words[13], "hbi:bits=6");
  EXPECT_EQ(table.Footer({row}),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.75\n#\n");
}

TEST(BenchTable, TheNarrowOneFitsItsTerminal) {
  const Table table({.narrow = true});
  const std::string line = table.Format(SampleRow());
  EXPECT_EQ(Words(line), (std::vector<std::string>{"4194304", "float", "sum", "12.35", "3.75", "0",
                                                   "23457", "1.25", "3", "6.00", "5.33", "2.00e-01",
                                                   "yes", "hbi:bits=6"}));
  const std::vector<std::string> header = Lines(table.Header());
  ASSERT_EQ(header.size(), 3u);
  for (const std::string& text : {header[0], header[1], header[2], line}) {
    EXPECT_LE(text.size(), 120u) << text;
  }
  const auto end_of = [](const std::string& text, const std::string& word) {
    return text.find(word) + word.size();
  };
  EXPECT_EQ(end_of(header[1], "time"), end_of(line, "12.35"));
  EXPECT_EQ(end_of(header[1], "bits"), end_of(line, "6.00"));
  EXPECT_EQ(end_of(header[1], "same"), end_of(line, "yes"));
  EXPECT_EQ(header[1].find("codec"), line.find("hbi:bits=6"));
}

TEST(BenchTable, TheNarrowOneHasTheColumnsOfItsOperation) {
  const auto names = [](Operation operation) {
    const Table table({.narrow = true, .operation = operation});
    Row row = SampleRow();
    row.operation = operation;
    const std::vector<std::string> header = Lines(table.Header());
    if (!HasCompressed(operation)) {
      EXPECT_EQ(header[1].size() + 1, table.Format(row).size());
    }
    return Words(header[1].substr(1));
  };
  EXPECT_EQ(names(Operation::kReduce),
            (std::vector<std::string>{"size", "type", "op", "root", "time", "busbw", "#wrong",
                                      "time", "busbw", "#wrong", "rel", "L2", "same"}));
  EXPECT_EQ(names(Operation::kAllToAll), (std::vector<std::string>{"size", "type", "time", "busbw",
                                                                   "#wrong", "rel", "L2", "same"}));
}

TEST(BenchTable, Times) {
  EXPECT_EQ(FormatTime(1.234), "   1.23");
  EXPECT_EQ(FormatTime(123.45), "  123.5");
  EXPECT_EQ(FormatTime(12345.6), "  12346");
}

TEST(BenchTable, FooterCountsWhatIsWrong) {
  const Table table({true, true, "", 12});
  Row good = SampleRow();
  good.in_place.accuracy->wrong = 0;
  EXPECT_EQ(table.Footer({good}),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.5\n#\n");
  Row bad = SampleRow();
  bad.out_of_place.identical = false;
  bad.in_place.digest = 1;
  const std::string footer = table.Footer({good, bad});
  EXPECT_NE(footer.find("# Out of bounds values : 3 FAILED\n"), std::string::npos);
  EXPECT_NE(footer.find("# Ranks with different results : FAILED\n"), std::string::npos);
  EXPECT_NE(footer.find("# ! :"), std::string::npos);
  EXPECT_NE(table.Format(bad).find(" no "), std::string::npos);
  EXPECT_NE(table.Format(bad).find("0000000000000abc!"), std::string::npos);
  EXPECT_TRUE(bad.out_of_place.Failed());
  EXPECT_TRUE(bad.in_place.Failed());
  EXPECT_FALSE(good.in_place.Failed());
}

TEST(BenchTable, ACodecThatDidNotRunIsMarked) {
  const Table table({true, false, "", 12});
  Row row = SampleRow();
  row.out_of_place.wire->compressed = false;
  EXPECT_NE(table.Format(row).find("hbi:bits=6* "), std::string::npos);
  EXPECT_NE(table.Footer({row}).find("# * :"), std::string::npos);
}

}  // namespace
}  // namespace inccl::perf
