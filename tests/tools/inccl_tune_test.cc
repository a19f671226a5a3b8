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
#include "tools/tune/rows.h"
#include "tuning/tuner_table.h"

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
                                                           "allreduce 4 compressed max ring"}));
  EXPECT_TRUE(RowsOf(kGroup, {}, 0.1).empty());
  EXPECT_EQ(Lines({Sample(8, 1, 2), Sample(9, 2, 1)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed 8 direct",
                                      "allreduce 4 compressed max ring"}));
}

TEST(IncclTuneTest, TheDefaultStaysUnlessAnotherIsFasterByTheMargin) {
  EXPECT_EQ(Lines({Sample(8, 110, 101)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed max direct"}));
  EXPECT_EQ(Lines({Sample(8, 110, 99)}, 0.1),
            (std::vector<std::string>{"allreduce 4 compressed max ring"}));
  EXPECT_EQ(Lines({Sample(8, 110, 101)}, 0),
            (std::vector<std::string>{"allreduce 4 compressed max ring"}));
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
      for (const uint64_t bytes : {1ull, 4096ull, 1ull << 40}) {
        EXPECT_TRUE(table->Find(Collective::kAllReduce, nranks, compressed, bytes).has_value());
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
                                                        {"--stepfactor 1", "--stepfactor"}}) {
    const test::ProgramResult result = Tune(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
  EXPECT_EQ(Tune("--ranks 2 -e 1K -n 1 --codec nonsense").status, 3);
}

}  // namespace
}  // namespace inccl::tools
