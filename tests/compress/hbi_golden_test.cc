// SPDX-License-Identifier: Apache-2.0
//
// hbi against the golden rows: results of the codec's states driven like the direct algorithms and
// of the oracle, codes, levels and payloads of one call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "build_paths.h"
#include "compress/hbi_driver.h"
#include "support/hbi_oracle.h"

namespace inccl::test {
namespace {

uint32_t Hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= x >> 15;
  x *= 0x846ca68b;
  return x ^ (x >> 16);
}

// A signed 24-bit hash times a power of two that varies by superblock.
std::vector<float> GoldenInput(int rank, size_t count) {
  std::vector<float> x(count);
  for (size_t e = 0; e < count; ++e) {
    const uint32_t hash =
        Hash(static_cast<uint32_t>(2 * e + static_cast<uint64_t>(rank + 1) * 0x9e3779b9u));
    const auto octave = static_cast<int>(Hash(static_cast<uint32_t>((e >> 8) + 12345)) & 15);
    x[e] =
        std::ldexp(static_cast<float>(static_cast<int32_t>(hash >> 8) - (1 << 23)), -23 - octave);
  }
  return x;
}

const std::vector<std::vector<float>>& GoldenInputs(int n, size_t count) {
  static std::map<std::pair<int, size_t>, std::vector<std::vector<float>>> known;
  std::vector<std::vector<float>>& inputs = known[{n, count}];
  for (int r = static_cast<int>(inputs.size()); r < n; ++r) {
    inputs.push_back(GoldenInput(r, count));
  }
  return inputs;
}

std::vector<std::string> GoldenRows(const std::string& kind) {
  std::ifstream file(INCCL_SOURCE_DIR "/tests/compress/hbi_golden.txt");
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kind + " ")) rows.push_back(line);
  }
  return rows;
}

// "result n=2 count=256 bits=6 levels=(15, 15) 4b43084e"
struct ResultRow {
  int n = 0;
  size_t count = 0;
  std::string spec;
  HbiOptions options;
  uint32_t crc = 0;
};

ResultRow ParseResult(std::string line) {
  ResultRow row;
  const size_t levels = line.find("levels=");
  if (levels != std::string::npos) {
    std::sscanf(line.c_str() + levels, "levels=(%d, %d)", &row.options.k, &row.options.k2);
  }
  int bits = 0;
  std::sscanf(line.c_str(), "%*s n=%d count=%zu bits=%d", &row.n, &row.count, &bits);
  row.options.bits8 = 8 * bits;
  row.options.ring = line.find("reference=ring") != std::string::npos;
  row.options.average = line.find("average=True") != std::string::npos;
  row.options.exact = line.find("exact=True") != std::string::npos;
  row.options.unbiased = line.find("unbiased=True") != std::string::npos;
  const auto number = [&line](const char* key) -> uint64_t {
    const size_t at = line.find(key);
    return at == std::string::npos ? 0 : std::stoul(line.substr(line.find('=', at) + 1));
  };
  row.options.seed = number(" seed=");
  row.options.step = number(" step=");
  row.crc = static_cast<uint32_t>(std::stoul(line.substr(line.rfind(' ') + 1), nullptr, 16));
  row.spec = row.options.k > 0 ? fmt::format("hbi:k={},k2={}", row.options.k, row.options.k2)
                               : fmt::format("hbi:bits={}", bits);
  row.spec += row.options.ring ? ",ref=ring" : "";
  row.spec += row.options.exact ? ",ag=exact" : "";
  row.options.rht = line.find("rht=True") != std::string::npos;
  row.options.m = static_cast<int>(number(" m="));
  if (row.options.m != 0) row.spec += fmt::format(",m={}", row.options.m);
  row.spec += row.options.rht ? ",rht=1" : "";
  row.spec += row.options.unbiased ? ",unbiased=1" : "";
  return row;
}

std::vector<float> ResultOf(const ResultRow& row, Way way) {
  HbiDriver driver(row.spec, row.n, DataType::kFloat32,
                   row.options.average ? ReduceOp::kAvg : ReduceOp::kSum, row.count,
                   row.options.seed, row.options.step);
  driver.set_group(row.options.m);
  return RunFloat(&driver, way, 16384, GoldenInputs(row.n, row.count));
}

TEST(HbiGolden, Results) {
  const std::vector<std::string> rows = GoldenRows("result");
  ASSERT_EQ(rows.size(), 176u);
  for (const std::string& line : rows) {
    SCOPED_TRACE(line);
    const ResultRow row = ParseResult(line);
    const std::vector<float> result = ResultOf(row, Way::kTwoShot);
    EXPECT_EQ(Crc32(result.data(), result.size() * sizeof(float)), row.crc);
  }
}

// "groups n=8 count=70000 bits=0 levels=(15, 31) m=4 02cd2836"
TEST(HbiGolden, Groups) {
  const std::vector<std::string> rows = GoldenRows("groups");
  ASSERT_EQ(rows.size(), 11u);
  for (const std::string& line : rows) {
    SCOPED_TRACE(line);
    const ResultRow row = ParseResult(line);
    const std::vector<float> result = ResultOf(row, Way::kGroups);
    EXPECT_EQ(fmt::format("{:08x}", Crc32(result.data(), result.size() * sizeof(float))),
              fmt::format("{:08x}", row.crc));
    EXPECT_TRUE(SameBytes(result, HbiAllReduce(GoldenInputs(row.n, row.count), row.options)));
  }
}

TEST(HbiGolden, OracleGivesTheSameResults) {
  for (const std::string& line : GoldenRows("result")) {
    const ResultRow row = ParseResult(line);
    if (row.count > 70000) continue;  // slow, and only the number of windows is new
    SCOPED_TRACE(line);
    const std::vector<float> result = HbiAllReduce(GoldenInputs(row.n, row.count), row.options);
    EXPECT_EQ(Crc32(result.data(), result.size() * sizeof(float)), row.crc);
  }
}

// "reduce_scatter n=2 recvcount=70001 bits=4 24ebcd0a e7772a9d", "allgather n=2 sendcount=70001
// ..."
struct SegmentsRow {
  int n = 0, bits = 0;
  size_t count = 0;
  std::string text;  // up to the checksums
};

SegmentsRow ParseSegments(const std::string& line) {
  SegmentsRow row;
  int length = 0;
  const size_t first = line.find(' ');
  EXPECT_EQ(std::sscanf(line.c_str() + first, " n=%d %*[a-z]=%zu bits=%d%n", &row.n, &row.count,
                        &row.bits, &length),
            3);
  row.text = line.substr(0, first + static_cast<size_t>(length));
  return row;
}

std::string WithChecksums(std::string text, const std::vector<std::vector<float>>& results) {
  for (const std::vector<float>& x : results) {
    text += fmt::format(" {:08x}", Crc32(x.data(), x.size() * sizeof(float)));
  }
  return text;
}

TEST(HbiGolden, ReduceScatter) {
  const std::vector<std::string> rows = GoldenRows("reduce_scatter");
  ASSERT_EQ(rows.size(), 6u);
  for (const std::string& line : rows) {
    const SegmentsRow row = ParseSegments(line);
    std::vector<std::vector<float>> inputs;
    for (int r = 0; r < row.n; ++r) {
      inputs.push_back(GoldenInput(r, static_cast<size_t>(row.n) * row.count));
    }
    HbiDriver driver(fmt::format("hbi:bits={}", row.bits), row.n, DataType::kFloat32,
                     ReduceOp::kSum, row.count, 0, 0, Collective::kReduceScatter);
    EXPECT_EQ(WithChecksums(row.text, ReduceScatterFloat(&driver, Way::kTwoShot, 16384, inputs)),
              line);
    EXPECT_EQ(WithChecksums(row.text, HbiReduceScatter(inputs, {.bits8 = 8 * row.bits})), line);
  }
}

TEST(HbiGolden, AllGather) {
  const std::vector<std::string> rows = GoldenRows("allgather");
  ASSERT_EQ(rows.size(), 6u);
  for (const std::string& line : rows) {
    const SegmentsRow row = ParseSegments(line);
    const std::vector<std::vector<float>>& inputs = GoldenInputs(row.n, row.count);
    const std::vector<std::vector<float>> first_n(inputs.begin(), inputs.begin() + row.n);
    HbiDriver driver(fmt::format("hbi:bits={}", row.bits), row.n, DataType::kFloat32,
                     ReduceOp::kSum, row.count, 0, 0, Collective::kAllGather);
    for (const std::vector<float>& result : AllGatherFloat(&driver, 16384, first_n)) {
      EXPECT_EQ(WithChecksums(row.text, {result}), line);
    }
    EXPECT_EQ(WithChecksums(row.text, {HbiAllGather(first_n, {.bits8 = 8 * row.bits})}), line);
  }
}

TEST(HbiGolden, CodesLevelsAndPayloads) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 70000;
  const std::vector<std::vector<float>>& inputs = GoldenInputs(kRanks, kCount);
  HbiOptions options;
  HbiTrace trace;
  HbiAllReduce(inputs, options, &trace);
  const auto crc_of_levels = [](const std::vector<int>& levels) {
    std::vector<uint16_t> words(levels.begin(), levels.end());
    return Crc32(words.data(), 2 * words.size());
  };
  ASSERT_EQ(GoldenRows("agreed").size(), 1u);
  EXPECT_EQ(GoldenRows("agreed")[0], fmt::format("agreed codes {:08x} levels {:08x} {:08x}",
                                                 Crc32(trace.codes.data(), trace.codes.size()),
                                                 crc_of_levels(trace.k), crc_of_levels(trace.k2)));

  HbiDriver driver("hbi:bits=6", kRanks, DataType::kFloat32, ReduceOp::kSum, kCount);
  driver.Begin();
  std::vector<std::byte*> in;
  for (int r = 0; r < kRanks; ++r) {
    in.push_back(
        reinterpret_cast<std::byte*>(const_cast<float*>(inputs[static_cast<size_t>(r)].data())));
  }
  driver.Agree(0, kCount, in);
  const Range all{0, 0, kCount};
  std::vector<std::string> rows;
  Payload sum;
  for (int r = 0; r < kRanks; ++r) {
    const Payload own =
        driver.Make(r, all, {driver.In(r, all, in)}, HbiDriver::Sum(1), driver.Capacity(all));
    std::vector<Term> terms;
    if (r > 0) terms.push_back(HbiDriver::Of(HbiDriver::Sum(r), &sum));
    terms.push_back(driver.In(r, all, in));
    sum = driver.Make(r, all, terms, HbiDriver::Sum(r + 1), driver.Capacity(all));
    rows.push_back(fmt::format("payload of rank {} {} {:08x} sum of ranks 0 to {} {:08x}", r,
                               own.size(), Crc32(own.data(), own.size()), r,
                               Crc32(sum.data(), sum.size())));
  }
  EXPECT_EQ(rows, GoldenRows("payload"));
}

}  // namespace
}  // namespace inccl::test
