// SPDX-License-Identifier: Apache-2.0
//
// hbi against the golden rows of format version 3: results of the codec's states driven like the
// direct algorithms and of the oracle; side words, levels and payloads of one call; the plan's
// choices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "build_paths.h"
#include "compress/hbi/plan.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
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

// Zeros, -0, denormals, the ends of the scales, equal magnitudes, infinities and NaN, each in
// superblocks of its own.
std::vector<float> SpecialInput(int rank) {
  std::vector<float> x = GoldenInput(rank, 4096);
  const auto scale = [&](size_t first, int octaves) {
    for (size_t e = 0; e < 256; ++e) x[first + e] = std::ldexp(x[e], octaves);
  };
  scale(512, -120);
  scale(768, -140);
  scale(1024, 126);
  const auto fill = [&x](size_t first, size_t end, float value) {
    for (size_t e = first; e < end; ++e) x[e] = value;
  };
  fill(0, 256, 0.0f);
  fill(256, 512, -0.0f);
  for (size_t e = 1280; e < 1536; ++e) x[e] = e % 2 == 1 ? -1.0f : 1.0f;
  fill(1536, 1568, 0.0f);
  x[1568] = 0x1p-30f;
  fill(1792, 2048, std::numeric_limits<float>::max());
  x[2053] = rank == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
  x[2381] = rank == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
  if (rank != 0) fill(2560, 2816, 0.0f);
  return x;
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
  DataType type = DataType::kFloat32;
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
  row.options.energy = line.find("energy=True") != std::string::npos;
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
  row.spec += row.options.energy ? ",levels=energy" : "";
  row.options.rht = line.find("rht=True") != std::string::npos;
  row.options.m = static_cast<int>(number(" m="));
  if (row.options.m != 0) row.spec += fmt::format(",m={}", row.options.m);
  row.spec += row.options.rht ? ",rht=1" : "";
  row.spec += row.options.unbiased ? ",unbiased=1" : "";
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    if (line.find(fmt::format("kind={} ", Name(type))) != std::string::npos) row.type = type;
  }
  return row;
}

HbiDriver DriverOf(const ResultRow& row) {
  HbiDriver driver(row.spec, row.n, row.type, row.options.average ? ReduceOp::kAvg : ReduceOp::kSum,
                   row.count, row.options.seed, row.options.step);
  driver.set_group(row.options.m);
  return driver;
}

std::vector<float> ResultOf(const ResultRow& row, Way way) {
  HbiDriver driver = DriverOf(row);
  return RunFloat(&driver, way, 16384, GoldenInputs(row.n, row.count));
}

// Of elements of another type: a third of the golden input, or a thousand times it.
TEST(HbiGolden, OtherTypes) {
  int rows = 0;
  for (const std::string& line : GoldenRows("result")) {
    const ResultRow row = ParseResult(line);
    if (row.type == DataType::kFloat32) continue;
    ++rows;
    SCOPED_TRACE(line);
    std::vector<Payload> vectors;
    std::vector<std::byte*> memory;
    for (const std::vector<float>& x : GoldenInputs(row.n, row.count)) {
      Payload bytes(row.count * SizeOf(row.type));
      for (size_t e = 0; e < row.count; ++e) {
        const double third = double{x[e]} / 3;
        const float thousandfold = x[e] * 1000;
        if (row.type == DataType::kFloat64) {
          std::memcpy(bytes.data() + 8 * e, &third, 8);
        } else {
          FromFloat(row.type, &thousandfold, bytes.data() + 2 * e, 1);
        }
      }
      vectors.push_back(std::move(bytes));
    }
    for (int r = 0; r < row.n; ++r) memory.push_back(vectors[static_cast<size_t>(r)].data());
    HbiDriver driver = DriverOf(row);
    driver.Run(Way::kTwoShot, 512, memory, memory);
    EXPECT_EQ(Crc32(vectors[0].data(), vectors[0].size()), row.crc);
  }
  EXPECT_EQ(rows, 3);
}

// "special n=3 bits=6 average=True c4214f94"
TEST(HbiGolden, SpecialValues) {
  const std::vector<std::string> rows = GoldenRows("special");
  ASSERT_EQ(rows.size(), 10u);
  const std::vector<std::vector<float>> inputs = {SpecialInput(0), SpecialInput(1),
                                                  SpecialInput(2)};
  for (const std::string& line : rows) {
    SCOPED_TRACE(line);
    ResultRow row = ParseResult(line);
    row.n = 3;
    row.count = 4096;
    row.spec.replace(row.spec.find("bits=0"), 6, "bits=6");
    row.options.bits8 = 48;
    HbiDriver driver = DriverOf(row);
    const std::vector<float> result = RunFloat(&driver, Way::kTwoShot, 1024, inputs);
    EXPECT_EQ(Crc32(result.data(), result.size() * sizeof(float)), row.crc);
    EXPECT_TRUE(SameBytes(result, HbiAllReduce(inputs, row.options)));
  }
}

TEST(HbiGolden, Results) {
  const std::vector<std::string> rows = GoldenRows("result");
  ASSERT_EQ(rows.size(), 238u);
  for (const std::string& line : rows) {
    SCOPED_TRACE(line);
    const ResultRow row = ParseResult(line);
    if (row.type != DataType::kFloat32) continue;
    const std::vector<float> result = ResultOf(row, Way::kTwoShot);
    EXPECT_EQ(Crc32(result.data(), result.size() * sizeof(float)), row.crc);
  }
}

// "groups n=8 count=70000 bits=0 levels=(15, 31) m=4 02cd2836"
TEST(HbiGolden, Groups) {
  const std::vector<std::string> rows = GoldenRows("groups");
  ASSERT_EQ(rows.size(), 12u);
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
    if (row.type != DataType::kFloat32) continue;
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

template <typename Word, typename Value>
std::string CrcAs(const std::vector<Value>& values) {
  const std::vector<Word> words(values.begin(), values.end());
  return fmt::format("{:08x}", Crc32(words.data(), words.size() * sizeof(Word)));
}

std::vector<uint32_t> WordsOf(const std::vector<uint16_t>& codes) {
  std::vector<uint32_t> words;
  for (size_t b = 0; b < codes.size(); b += 8) words.push_back(HbiWord(&codes[b]));
  return words;
}

TEST(HbiGolden, WordsLevelsAndPayloads) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 70000;
  const std::vector<std::vector<float>>& all_inputs = GoldenInputs(kRanks, kCount);
  const std::vector<std::vector<float>> inputs(all_inputs.begin(), all_inputs.begin() + kRanks);
  HbiTrace trace;
  HbiAllReduce(inputs, {}, &trace);
  std::vector<int> energies;
  for (size_t b = 0; b < trace.codes.size(); b += 8) energies.push_back(HbiEnergy(&trace.codes[b]));
  ASSERT_EQ(GoldenRows("agreed").size(), 1u);
  EXPECT_EQ(
      GoldenRows("agreed")[0],
      fmt::format("agreed codes {} energy exponents {} levels {} {}", CrcAs<uint16_t>(trace.codes),
                  CrcAs<int32_t>(energies), CrcAs<uint16_t>(trace.k), CrcAs<uint16_t>(trace.k2)));

  HbiDriver driver("hbi:bits=6", kRanks, DataType::kFloat32, ReduceOp::kSum, kCount);
  driver.Begin();
  const std::vector<std::byte*> in = Memory(inputs);
  const Range all{0, 0, kCount};
  const Format side{Form::kSide}, result{Form::kResult};
  std::vector<std::string> rows;
  Payload merged;
  for (int r = 0; r < kRanks; ++r) {
    const std::vector<Term> own = {driver.In(r, all, in)};
    std::vector<Term> both = own;
    if (r > 0) both.insert(both.begin(), HbiDriver::Of(side, &merged));
    const Payload mine = driver.Make(r, all, own, side, driver.SideRoom(all));
    merged = driver.Make(r, all, both, side, driver.SideRoom(all));
    rows.push_back(fmt::format("side words of rank {} {:08x} merged with ranks 0 to {} {:08x}", r,
                               Crc32(mine.data(), mine.size()), r,
                               Crc32(merged.data(), merged.size())));
    const std::vector<std::vector<float>> first(inputs.begin(), inputs.begin() + r + 1);
    EXPECT_EQ(CrcAs<uint32_t>(WordsOf(HbiAgree(first))),
              rows.back().substr(rows.back().size() - 8));
  }
  EXPECT_EQ(rows, GoldenRows("side"));

  driver.Agree(0, kCount, in);
  rows.clear();
  Payload sum;
  for (int r = 0; r < kRanks; ++r) {
    const Payload own =
        driver.Make(r, all, {driver.In(r, all, in)}, HbiDriver::Sum(1), driver.Capacity(all));
    std::vector<Term> terms;
    if (r > 0) terms.push_back(HbiDriver::Of(HbiDriver::Sum(r), &sum));
    terms.push_back(driver.In(r, all, in));
    sum = driver.Make(r, all, terms, HbiDriver::Sum(r + 1), driver.Capacity(all));
    rows.push_back(fmt::format("payload of rank {} {} {:08x} sum of ranks 0 to {} {} {:08x}", r,
                               own.size(), Crc32(own.data(), own.size()), r, sum.size(),
                               Crc32(sum.data(), sum.size())));
  }
  EXPECT_EQ(rows, GoldenRows("payload"));

  const Payload made = driver.Make(0, all, {HbiDriver::Of(HbiDriver::Sum(kRanks), &sum)}, result,
                                   driver.Capacity(all));
  const size_t words = 4 * trace.k.size();
  EXPECT_EQ(std::vector<std::string>{fmt::format("own words of the result {:08x} payload {} {:08x}",
                                                 Crc32(made.data(), words), made.size() - words,
                                                 Crc32(made.data() + words, made.size() - words))},
            GoldenRows("own"));
  EXPECT_EQ(CrcAs<uint32_t>(WordsOf(trace.own)), GoldenRows("own")[0].substr(24, 8));
}

// cost, k, k2, threshold of each point by energy.
std::vector<int64_t> HullOf(int n, const hbi::Config& config) {
  std::vector<int64_t> values;
  const hbi::Hull hull = hbi::BuildHull(Collective::kAllReduce, n, config);
  size_t i = 0;
  if (!config.unbiased) {
    i = hull.after_dropped + 1;
    const hbi::HullPoint& p = hull.points[hull.after_dropped];
    values = {0, 0, 0, hbi::kAlways, p.cost, p.k, p.k2, hull.threshold_after_dropped};
  }
  for (; i < hull.points.size(); ++i) {
    const hbi::HullPoint& p = hull.points[i];
    values.insert(values.end(), {p.cost, p.k, p.k2, p.threshold});
  }
  return values;
}
std::vector<int64_t> HullOfOracle(int n, const HbiOptions& options) {
  std::vector<int64_t> hull;
  for (const HbiChoice& c : HbiHull(n, options)) {
    hull.insert(hull.end(), {c.cost, c.k, c.k2, c.threshold});
  }
  return hull;
}

// "hull n=2 direct 33 cf5dc371"
TEST(HbiGolden, Hulls) {
  const std::vector<std::string> rows = GoldenRows("hull");
  ASSERT_EQ(rows.size(), 10u);
  for (const std::string& line : rows) {
    SCOPED_TRACE(line);
    int n = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "hull n=%d", &n), 1);
    const bool ring = line.find("ring") != std::string::npos;
    const std::string before = fmt::format("hull n={} {}", n, ring ? "ring" : "direct");
    hbi::Config config;
    if (ring) config.reference = hbi::Reference::kRing;
    HbiOptions options;
    options.ring = ring;
    const std::vector<int64_t> hull = HullOf(n, config);
    EXPECT_EQ(fmt::format("{} {} {}", before, hull.size() / 4, CrcAs<int64_t>(hull)), line);
    EXPECT_EQ(HullOfOracle(n, options), hull);
  }
}

// With 128 and 129 ranks three choices lie on one line: the middle one is not kept.
TEST(HbiGolden, HullsEqualTheOracle) {
  for (const int n : {2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 64, 100, 127, 128, 129, 130}) {
    for (const bool ring : {false, true}) {
      for (const bool unbiased : {false, true}) {
        hbi::Config config;
        config.reference = ring ? hbi::Reference::kRing : hbi::Reference::kTwoShot;
        config.unbiased = unbiased;
        HbiOptions options;
        options.ring = ring;
        options.unbiased = unbiased;
        ASSERT_EQ(HullOfOracle(n, options), HullOf(n, config)) << n << ' ' << ring << unbiased;
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
