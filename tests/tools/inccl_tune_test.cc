// SPDX-License-Identifier: Apache-2.0
//
// inccl-tune: how times become rows, and that what it writes is what the tuner reads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "build_paths.h"
#include "tools/run_program.h"
#include "tools/tune/codec_costs.h"
#include "tools/tune/costs.h"
#include "tools/tune/rows.h"
#include "tuning/tuner.h"

namespace inccl::tools {
namespace {

const TunerRow kGroup{.collective = Collective::kAllReduce, .nranks = 4, .compressed = true};

TuneSample Sample(uint64_t bytes, double direct, double ring) {
  return {bytes, Algorithm::kTwoShot, {{Algorithm::kTwoShot, direct}, {Algorithm::kRing, ring}}};
}

std::vector<std::string> Lines(const std::vector<TuneSample>& samples, double margin) {
  std::vector<std::string> lines;
  for (const TunerRow& row : RowsOf(kGroup, samples, margin)) lines.push_back(FormatRow(row));
  return lines;
}

TEST(IncclTuneTest, NeighboursWithOneWinnerAreOneRowAndOneEndsBetweenSizes) {
  const std::vector<TuneSample> samples = {Sample(1000, 10, 5), Sample(4000, 10, 5),
                                           Sample(16000, 10, 20), Sample(64000, 10, 5)};
  EXPECT_EQ(Lines(samples, 0.1), (std::vector<std::string>{"allreduce 4 compressed 8000 ring",
                                                           "allreduce 4 compressed 32000 direct",
                                                           "allreduce 4 compressed 64000 ring"}));
  EXPECT_TRUE(RowsOf(kGroup, {}, 0.1).empty());
  EXPECT_EQ(Lines({Sample(8, 1, 2), Sample(9, 2, 1)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed 8 direct",
                                      "allreduce 4 compressed 9 ring"}));
}

TEST(IncclTuneTest, TheDefaultStaysUnlessAnotherIsFasterByTheMargin) {
  EXPECT_EQ(Lines({Sample(8, 110, 101)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed 8 direct"}));
  EXPECT_EQ(Lines({Sample(8, 110, 99)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed 8 ring"}));
  EXPECT_EQ(Lines({Sample(8, 110, 101)}, 0),
            (std::vector<std::string>{"allreduce 4 compressed 8 ring"}));
}

// A link of 1 ns a byte, 20 us a message, 5 us a further one; memory of 0.1 ns a byte.
TEST(IncclTuneTest, CostsFollowFromTimes) {
  MeasuredCosts costs;
  AddNetworkCosts({.round_trip = 40'000,
                   .burst_round_trip = 55'000,
                   .exchange = 20'000 + 8'000'000,
                   .exchanged = 8'000'000},
                  &costs);
  AddShmCosts({.round_trip = 1'000, .large_round_trip = 101'000, .large = 1'000'000}, &costs);
  EXPECT_EQ(costs, (MeasuredCosts{{"network_latency_ns", 20'000},
                                  {"network_message_ns", 5'000},
                                  {"network_byte_ps", 1'000},
                                  {"shm_latency_ns", 500},
                                  {"shm_byte_ps", 100}}));
  // Noise.
  AddNetworkCosts({.round_trip = 40'000, .burst_round_trip = 30'000, .exchange = 1, .exchanged = 1},
                  &costs);
  EXPECT_EQ(costs["network_message_ns"], 0u);
  EXPECT_EQ(costs["network_byte_ps"], 0u);
}

TEST(IncclTuneTest, CodecsAreTimed) {
  for (const char* spec : {"none", "hbi:bits=6", "qsgd_ms:q=4+8", "bf16", "lossless"}) {
    const Result<CodecTimes> times = TimeCodec(spec, 3);
    ASSERT_TRUE(times.ok()) << spec << ": " << times.status().message();
    EXPECT_GT(times->encode_ps, 0) << spec;
    EXPECT_GT(times->decode_ps, 0) << spec;
    EXPECT_GT(times->hop_ps, 0) << spec;
    EXPECT_GE(times->fold_ps, 0) << spec;
  }
  EXPECT_FALSE(TimeCodec("nonsense", 1).ok());
}

class IncclTuneRunTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static test::ProgramResult Tune(const std::string& arguments) {
    return test::RunProgram(INCCL_BINARY_DIR "/tools/inccl-tune", arguments);
  }
  // What the library would do with a call, with this table.
  test::ProgramResult Explain() const {
    return test::RunProgram(INCCL_BINARY_DIR "/tools/inccl-info", "--explain allreduce 4K 2",
                            "export INCCL_TUNER_FILE=" + file());
  }
  std::string file() const { return directory_ + "/table"; }

  std::string directory_ = ::testing::TempDir() + "inccl-tune-XXXXXX";
};

TEST_F(IncclTuneRunTest, WritesATableThatTheTunerReads) {
  const test::ProgramResult result = Tune("--ranks 2,3 -b 64 -e 4K -f 8 -n 2 --output " + file());
  ASSERT_EQ(result.status, 0) << result.err;
  const Result<TunerTable> table = TunerTable::Load(file());
  ASSERT_TRUE(table.ok()) << table.status().message();
  for (const int nranks : {2, 3}) {
    for (const bool compressed : {false, true}) {
      for (const uint64_t bytes : {1ull, 4096ull, 4097ull}) {  // it has measured up to 4096
        EXPECT_EQ(table->Find(Collective::kAllReduce, nranks, compressed, bytes).has_value(),
                  bytes <= 4096);
      }
    }
    EXPECT_TRUE(table->Find(Collective::kBroadcast, nranks, false, 1).has_value());
    // There is only one way.
    EXPECT_FALSE(table->Find(Collective::kAllToAll, nranks, false, 1).has_value());
  }
  const std::string expected =
      std::string(Name(*table->Find(Collective::kAllReduce, 2, false, 4096))) +
      ": the fastest for 4096 bytes on 2 ranks in the table of INCCL_TUNER_FILE";
  const test::ProgramResult explained = Explain();
  EXPECT_EQ(explained.status, 0) << explained.err;
  EXPECT_NE(explained.out.find(expected), std::string::npos) << explained.out << expected;
}

TEST_F(IncclTuneRunTest, ABadTableIsAnErrorThatNamesVariableFileAndLine) {
  std::ofstream(file()) << "# nothing yet\nallreduce 2 plain max fastest\n";
  const test::ProgramResult explained = Explain();
  EXPECT_NE(explained.status, 0);
  for (const std::string& words :
       {std::string("INCCL_TUNER_FILE"), file() + ":2", std::string("\"fastest\"")}) {
    EXPECT_NE((explained.out + explained.err).find(words), std::string::npos)
        << explained.out << explained.err;
  }
}

TEST_F(IncclTuneRunTest, MistakesOnTheCommandLineAreNamed) {
  for (const auto& [arguments, words] :
       std::vector<std::pair<std::string, std::string>>{{"--ranks 1", "--ranks"},
                                                        {"--minbytes lots", "--minbytes"},
                                                        {"-b 4K -e 1K", "--maxbytes 1K"},
                                                        {"--collective allscatter", "allscatter"},
                                                        {"--network", "mpirun"},
                                                        {"--stepfactor 1", "--stepfactor"}}) {
    const test::ProgramResult result = Tune(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
  EXPECT_EQ(Tune("--ranks 2 -e 1K -n 1 --codec nonsense").status, 3);
}

}  // namespace
}  // namespace inccl::tools
