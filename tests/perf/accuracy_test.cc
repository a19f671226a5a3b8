// SPDX-License-Identifier: Apache-2.0
//
// The parts of inccl-accuracy and the program itself. The values of NumPy's generator were printed
// by NumPy 2.4.6.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "build_paths.h"
#include "perf/accuracy/inputs.h"
#include "perf/accuracy/measure.h"
#include "perf/accuracy/numpy_random.h"
#include "perf/accuracy/plot.h"
#include "perf/accuracy/reference_table.h"
#include "perf/accuracy/way.h"
#include "perf/support/npy.h"
#include "tools/run_program.h"

namespace inccl::tools {
namespace {

using test::ProgramResult;
using test::RunProgram;

const std::string kProgram = INCCL_BINARY_DIR "/perf/inccl-accuracy";

// ---------------------------------------------------------------- NumPy's numbers

// Sum of a million values, each times its index modulo 7 plus 1.
double WeightedSum(double (NumpyRandom::*draw)()) {
  NumpyRandom random(8);
  double sum = 0;
  for (int i = 0; i < 1000000; ++i) sum += (random.*draw)() * (i % 7 + 1);
  return sum;
}

TEST(NumpyRandom, BitsAreThoseOfDefaultRng) {
  NumpyRandom random(102);
  EXPECT_EQ(random.Next(), 2951315705954145492u);
  EXPECT_EQ(random.Next(), 10808750059907510011u);
}

TEST(NumpyRandom, ValuesAreThoseOfDefaultRng) {
  NumpyRandom normal(8), laplace(8), student(8);
  EXPECT_DOUBLE_EQ(normal.Normal(), -1.738266398496882);
  EXPECT_DOUBLE_EQ(normal.Normal(), -1.3366427931811324);
  EXPECT_DOUBLE_EQ(laplace.Laplace(), -0.42473271214180253);
  EXPECT_DOUBLE_EQ(laplace.Laplace(), 3.6711844060406933);
  EXPECT_NEAR(student.StudentT3(), -4.3769677808399186, 1e-14);
  EXPECT_NEAR(student.StudentT3(), -2.6023192149672045, 1e-14);
}

TEST(NumpyRandom, RareBranchesAreThoseOfDefaultRng) {
  EXPECT_NEAR(WeightedSum(&NumpyRandom::Normal), 1132.34817896, 1e-6);
  EXPECT_NEAR(WeightedSum(&NumpyRandom::Laplace), 10002.4756169, 1e-5);
  EXPECT_NEAR(WeightedSum(&NumpyRandom::StudentT3), -23230.5688624, 1e-5);
}

// ---------------------------------------------------------------- measures

TEST(Measure, ErrorsOfAKnownResult) {
  const std::vector<double> exact = ExactSum({{1.0f, 2.0f, 0.0f}, {2.0f, -2.0f, 4.0f}});
  EXPECT_EQ(exact, (std::vector<double>{3, 0, 4}));
  const Errors errors = ErrorsOf(std::vector<float>{3.0f, 2.0f, 3.0f}, exact);
  EXPECT_DOUBLE_EQ(errors.square, 5);
  EXPECT_DOUBLE_EQ(errors.vnmse, 0.2);
  EXPECT_DOUBLE_EQ(errors.max_error, 2);
  EXPECT_DOUBLE_EQ(errors.cosine, 21 / std::sqrt(25.0 * 22.0));
}

TEST(Measure, NothingThatIsNotFiniteLooksSmall) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Errors errors = ErrorsOf(std::vector<float>{nan, 1.0f}, {1.0, 1.0});
  EXPECT_TRUE(std::isnan(errors.vnmse));
  EXPECT_TRUE(std::isnan(errors.max_error));
  EXPECT_EQ(ErrorsOf(std::vector<float>{0.0f}, {0.0}).vnmse, 0);
  EXPECT_TRUE(std::isinf(ErrorsOf(std::vector<float>{1.0f}, {0.0}).vnmse));
}

TEST(Measure, EachLayerIsRelativeToItsOwnSum) {
  const std::vector<double> errors = LayerErrors({3.0f, 4.0f, 1.0f, 0.0f, 0.0f}, {3, 5, 2, 0, 0},
                                                 {{"a", 2}, {"b", 1}, {"zero", 2}});
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_DOUBLE_EQ(errors[0], 1.0 / 34);
  EXPECT_DOUBLE_EQ(errors[1], 0.25);
  EXPECT_EQ(errors[2], 0);
}

TEST(Measure, LayersOfAFile) {
  const std::string path = ::testing::TempDir() + "accuracy_layers.txt";
  std::ofstream(path) << "# comment\nblocks.0.weight 300 20\n\nhead 5\n";
  const Result<std::vector<Layer>> layers = ReadLayers(path);
  ASSERT_TRUE(layers.ok()) << layers.status().message();
  ASSERT_EQ(layers->size(), 2u);
  EXPECT_EQ((*layers)[0].name, "blocks.0.weight");
  EXPECT_EQ((*layers)[0].cols, 20u);
  EXPECT_EQ((*layers)[1].count, 5u);
  EXPECT_EQ((*layers)[1].cols, 0u);
  for (const char* line :
       {"head", "head 0", "head five", "head 5 x", "head 5 2", "head 5 0", "head 6 2 1"}) {
    std::ofstream(path) << line << "\n";
    EXPECT_FALSE(ReadLayers(path).ok()) << line;
  }
  std::filesystem::remove(path);
  EXPECT_FALSE(ReadLayers(path).ok());
}

// ---------------------------------------------------------------- the reference table

TEST(ReferenceTable, EveryLineOfTheTableIsUnderstood) {
  const Result<std::vector<TableEntry>> entries = ParseTable(TableText());
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(entries->size(),
            7u * 3u * (1u + 3u * 4u));  // data, n, MXFP8 and three ways at four bits
  const TableEntry& entry = (*entries)[2];
  EXPECT_EQ(entry.way.name, "hbi:bits=5,levels=energy");
  EXPECT_EQ(entry.way.algo, "direct");
  EXPECT_DOUBLE_EQ(entry.vnmse, 0.00722);
}

TEST(ReferenceTable, WhatIsNotUnderstoodIsNamed) {
  for (const char* line :
       {"gauss n=2 H direct 4/5 bits 0.1", "gauss n=2 H direct 4 bits 0.1 0.2",
        "gauss n=2 X 4 bits 0.1", "gauss n=two H direct 4 bits 0.1", "nonsense"}) {
    const Result<std::vector<TableEntry>> entries = ParseTable(line);
    ASSERT_FALSE(entries.ok()) << line;
    EXPECT_NE(entries.status().message().find(line), std::string::npos);
  }
  EXPECT_FALSE(TableSample("cauchy", 2, 0).ok());
}

TEST(ReferenceTable, RecordedSamplesAreConsecutiveRanks) {
  EXPECT_EQ(TableSamples("gauss", 8), 4u);
  EXPECT_EQ(TableSamples("late", 2), 4u);
  EXPECT_EQ(TableSamples("late", 8), 1u);
  const Result<Vectors> all = TableSample("late", 8, 0), last = TableSample("late", 2, 3);
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_TRUE(last.ok()) << last.status().message();
  ASSERT_EQ(last->size(), 2u);
  EXPECT_EQ((*last)[0], (*all)[6]);
  EXPECT_EQ((*last)[1], (*all)[7]);
}

// ---------------------------------------------------------------- ways and plots

TEST(Ways, AReducerSumsTensorByTensor) {
  const Vectors inputs = {{1, -8, 2, 5, 0, 0}, {3, 0, 0, 1, 0, -9}};
  const Way way = ReducerWay("topk:k=0.25,residual=1", {{"four", 4, 2}, {"two", 2}});
  ASSERT_TRUE(Available(way).ok());
  EXPECT_FALSE(Available(ReducerWay("topk:j=1", {})).ok());
  const Result<std::unique_ptr<Ranks>> ranks = Ranks::Create(way, 2);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Result<Sum> first = (*ranks)->Take(inputs, 1);
    ASSERT_TRUE(first.ok()) << first.status().message();
    // One element of each tensor and rank.
    EXPECT_EQ(first->result, (std::vector<float>{3, -8, 0, 0, 0, -9}));
    // A pair of 8 bytes from each rank, where an all-reduce would move 32 bits for each element.
    EXPECT_DOUBLE_EQ(first->bits, 2 * 64.0 / 6);
    const Result<Sum> second = (*ranks)->Take(inputs, 2);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(second->result, (std::vector<float>{3, 0, 0, 10, 0, -9}));
    ASSERT_TRUE((*ranks)->Reset().ok());
  }
}

TEST(Ways, SeriesLeaveOutWhatVariesAndAlgorithmsAreTheUsualOnes) {
  EXPECT_EQ(CodecWay("hbi:bits=6", "").series, "hbi (direct)");
  EXPECT_EQ(CodecWay("hbi:bits=6,rht=1", "").series, "hbi:rht=1 (direct)");
  EXPECT_EQ(CodecWay("hbi:ref=ring,bits=6,rht=1", "").series, "hbi:ref=ring,rht=1 (ring)");
  EXPECT_EQ(CodecWay("hbi:k=7,k2=15", "tree").series, "hbi (tree)");
  EXPECT_EQ(CodecWay("qsgd:q=8", "").series, "qsgd (direct)");
  EXPECT_EQ(CodecWay("mxfp8", "").series, "mxfp8 (ring)");
  EXPECT_FALSE(Available(CodecWay("nothing:of=this", "")).ok());
  EXPECT_TRUE(Available(Mxfp8Reference()).ok());
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Row RowOf(const std::string& data, const std::string& spec, double bits, double vnmse) {
  Row row;
  row.data = data;
  row.nranks = 2;
  row.count = 100;
  row.way = CodecWay(spec, "");
  row.bits = bits;
  row.vnmse = vnmse;
  return row;
}

TEST(Plot, EveryRowHasItsMarkAndTextIsEscaped) {
  const std::string svg =
      PlotSvg({RowOf("a<b&c", "hbi:bits=6", 6, 1e-3), RowOf("a<b&c", "hbi:bits=8", 8, 1e-5),
               RowOf("t3", "mxfp8", 8.25, 2e-3), RowOf("t3", "exact", 32, 0)});
  EXPECT_EQ(Count(svg, "<circle"), 3u + 2u);  // the rows with an error, and the legend
  EXPECT_EQ(Count(svg, "a&lt;b&amp;c, n = 2"), 1u);
  EXPECT_EQ(Count(svg, "<g "), 2u);
  EXPECT_EQ(Count(svg, "</g>"), 2u);
  EXPECT_NE(svg.find("outside of the axes: exact (ring)"), std::string::npos);
  EXPECT_EQ(Count(svg, ">exact (ring)<"), 0u);  // not in the legend
  EXPECT_EQ(Count(svg, ">error (vNMSE)<"), 2u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

// The legend begins with it, and its marks lie above the others'.
TEST(Plot, HbiIsOnTop) {
  const std::string svg =
      PlotSvg({RowOf("d", "mxfp8", 8.25, 2e-3), RowOf("d", "hbi:bits=6", 6, 1e-3)});
  const size_t panel_end = svg.find("</g>");
  EXPECT_LT(svg.find("hbi (direct)", panel_end), svg.find("mxfp8 (ring)", panel_end));
  const std::string last_mark = svg.substr(svg.rfind("<circle", panel_end), 80);
  EXPECT_NE(last_mark.find("fill=\"#0072b2\""), std::string::npos)
      << last_mark;  // the first colour
}

// The heights of two points show which error is larger, and a decade is a decade.
TEST(Plot, ErrorsAreOnALogarithmicAxis) {
  const std::string svg =
      PlotSvg({RowOf("d", "hbi:bits=8", 8, 1e-4), RowOf("d", "hbi:bits=6", 6, 1e-3),
               RowOf("d", "hbi:bits=4", 4, 1e-2)});
  const std::regex line("<path d=\"M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)\"");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(svg, match, line)) << svg;
  const double x4 = std::stod(match[1]), y4 = std::stod(match[2]), x6 = std::stod(match[3]);
  const double y6 = std::stod(match[4]), x8 = std::stod(match[5]), y8 = std::stod(match[6]);
  EXPECT_LT(y4, y6);
  EXPECT_NEAR(y8 - y6, y6 - y4, 0.2);
  EXPECT_NEAR(x8 - x6, x6 - x4, 0.2);
}

// ---------------------------------------------------------------- the program

TEST(Program, MeasuresAndLeavesOutWhatIsNotKnown) {
  const std::string plot = ::testing::TempDir() + "accuracy_test.svg";
  const ProgramResult run =
      RunProgram(kProgram,
                 "--data normal --ranks 2,3 --bits 6 --count 5000 --repeats 2 --steps 8 --csv "
                 "--codec hbi:k=15,ag=exact --codec nothing:of=this --plot " +
                     plot);
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_NE(run.err.find("# skipped: nothing:of=this"), std::string::npos) << run.err;
  EXPECT_EQ(Count(run.out, "\n"), 1u + 2u * 4u) << run.out;
  EXPECT_NE(run.out.find("normal,3,5000,\"hbi:k=15,ag=exact\",direct,"), std::string::npos);
  EXPECT_EQ(Count(test::FileContent(plot), "<g "), 2u);
  std::filesystem::remove(plot);
}

// The layer that errs most, and the scale: casts to bf16 err alike at any scale that has no
// denormals, so a factor of a power of two changes the largest error alone.
TEST(Program, ScalesInputsAndNamesTheWorstLayer) {
  const std::string path = ::testing::TempDir() + "accuracy_scaled_layers.txt";
  std::ofstream(path) << "first 256\nsecond 744\n";
  const std::string arguments =
      "--data normal --ranks 2 --bits '' --codec bf16 --count 1000 --repeats 1 --csv --layers " +
      path;
  const ProgramResult plain = RunProgram(kProgram, arguments);
  const ProgramResult scaled = RunProgram(kProgram, arguments + " --scale 1.8014398509481984e16");
  const std::regex line("bf16,ring,16.0000,([^,]+),([^,]+),([^,]+),,([^,]+),(first|second)");
  std::smatch one, two;
  ASSERT_TRUE(std::regex_search(plain.out, one, line)) << plain.out << plain.err;
  ASSERT_TRUE(std::regex_search(scaled.out, two, line)) << scaled.out << scaled.err;
  EXPECT_GE(std::stod(one[4]), std::stod(one[1]));
  EXPECT_EQ(one[1], two[1]);
  EXPECT_EQ(one[4], two[4]);
  EXPECT_NEAR(std::stod(two[2]) / std::stod(one[2]), 0x1p54, 0x1p54 * 1e-5);
  const ProgramResult other = RunProgram(kProgram, "--ranks 2 --count 999 --layers " + path);
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("layers of 1000 elements, data of 999"), std::string::npos);
  std::filesystem::remove(path);
}

// Of such data every row would be NaN, or an error of 0.
TEST(Program, RefusesDataThatIsNotFinite) {
  const std::string path = ::testing::TempDir() + "accuracy_test_bad.npy";
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> values = {1, 2, 3, 4, 5, bad};
    const uint64_t shape[] = {2, 3};
    ASSERT_TRUE(perf::WriteNpy(path, values, shape).ok());
    const ProgramResult run = RunProgram(kProgram, "--ranks 2 --data " + path);
    EXPECT_EQ(run.status, 1);
    EXPECT_NE(run.err.find(path + ": element 2 of rank 1 is "), std::string::npos) << run.err;
    EXPECT_EQ(Count(run.out, "bf16"), 0u) << run.out;
  }
  std::filesystem::remove(path);
}

TEST(Program, RefusesBadInput) {
  const ProgramResult absent = RunProgram(kProgram, "--data /no/such.npy --ranks 2");
  EXPECT_EQ(absent.status, 1);
  EXPECT_NE(absent.err.find("/no/such.npy"), std::string::npos);
  EXPECT_EQ(RunProgram(kProgram, "--ranks 65").status, 2);
  for (const char* scale : {"nan", "inf", "-inf", "0"}) {
    const ProgramResult run = RunProgram(kProgram, std::string("--data normal --scale ") + scale);
    EXPECT_EQ(run.status, 2) << scale;
    EXPECT_NE(run.err.find("--scale"), std::string::npos) << run.err;
    EXPECT_EQ(run.out, "");
  }
  for (const char* scale : {"1e38", "1e-44"}) {
    const ProgramResult run =
        RunProgram(kProgram, std::string("--data normal --ranks 2 --count 1000 --scale ") + scale);
    EXPECT_EQ(run.status, 1) << scale;
    EXPECT_NE(run.err.find("--scale"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("of rank "), std::string::npos) << run.err;
  }
  EXPECT_EQ(
      RunProgram(kProgram, "--data normal --ranks 2 --count 256 --plot /no/such/dir.svg").status,
      1);
}

}  // namespace
}  // namespace inccl::tools
