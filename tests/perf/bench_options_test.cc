// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "perf/support/options.h"

namespace inccl::perf {
namespace {

Result<ParsedOptions> Parse(std::vector<const char*> arguments,
                            Operation operation = Operation::kAllReduce) {
  arguments.insert(arguments.begin(), "bench");
  return ParseOptions(operation, "bench", static_cast<int>(arguments.size()), arguments.data());
}

BenchOptions ParseOk(const std::vector<const char*>& arguments) {
  Result<ParsedOptions> parsed = Parse(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed->options : BenchOptions();
}

// The message of a command line that must be refused.
std::string Refusal(const std::vector<const char*>& arguments,
                    Operation operation = Operation::kAllReduce) {
  Result<ParsedOptions> parsed = Parse(arguments, operation);
  if (parsed.ok()) {
    ADD_FAILURE() << arguments.front() << " was accepted";
    return "";
  }
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  return parsed.status().message();
}

TEST(BenchOptions, DefaultsAreThoseOfNcclTests) {
  const BenchOptions o = ParseOk({});
  EXPECT_EQ(o.min_bytes, 32u << 20);
  EXPECT_EQ(o.max_bytes, 32u << 20);
  EXPECT_EQ(o.iterations, 20u);
  EXPECT_EQ(o.warmup, 5u);
  EXPECT_EQ(o.checks, 1u);
  EXPECT_EQ(o.aggregated, 1u);
  EXPECT_EQ(o.types, std::vector<DataType>{DataType::kFloat32});
  EXPECT_EQ(o.ops, std::vector<ReduceOp>{ReduceOp::kSum});
  EXPECT_EQ(o.roots, std::vector<int>{0});
  EXPECT_EQ(o.codecs, std::vector<std::string>{"none"});
  EXPECT_EQ(o.ranks, 0);
  EXPECT_TRUE(o.environment.empty());
}

TEST(BenchOptions, ShortAndLongForms) {
  const BenchOptions o = ParseOk({"-b", "4K", "-e", "64M", "-f", "4",        "-n", "7",   "-w", "0",
                                  "-c", "3",  "-m", "2",   "-d", "bfloat16", "-o", "max", "-r", "1",
                                  "-a", "1",  "-z", "1",   "-T", "9",        "-N", "2"});
  EXPECT_EQ(o.min_bytes, 4096u);
  EXPECT_EQ(o.max_bytes, 64u << 20);
  EXPECT_EQ(o.step_factor, 4u);
  EXPECT_EQ(o.iterations, 7u);
  EXPECT_EQ(o.warmup, 0u);
  EXPECT_EQ(o.checks, 3u);
  EXPECT_EQ(o.aggregated, 2u);
  EXPECT_EQ(o.types, std::vector<DataType>{DataType::kBfloat16});
  EXPECT_EQ(o.ops, std::vector<ReduceOp>{ReduceOp::kMax});
  EXPECT_EQ(o.roots, std::vector<int>{1});
  EXPECT_EQ(o.average, Average::kMean);
  EXPECT_EQ(o.timeout_s, 9);
  EXPECT_EQ(o.cycles, 2u);
  const BenchOptions l =
      ParseOk({"--minbytes=1M", "--maxbytes", "3M", "--stepbytes", "512K", "--iters", "3",
               "--warmup_iters", "1", "--agg_iters", "5", "--datatype", "all", "--op", "all"});
  EXPECT_EQ(l.step_bytes, 512u << 10);
  EXPECT_EQ(l.iterations, 3u);
  EXPECT_EQ(l.warmup, 1u);
  EXPECT_EQ(l.aggregated, 5u);
  EXPECT_EQ(l.types.size(), 12u);
  EXPECT_EQ(l.ops.size(), 5u);
}

TEST(BenchOptions, AllRoots) {
  EXPECT_EQ(ParseOk({"-r", "-1"}).roots, std::vector<int>{-1});
  EXPECT_EQ(ParseOk({"--root", "all"}).roots, std::vector<int>{-1});
}

TEST(BenchOptions, Ours) {
  const BenchOptions o =
      ParseOk({"--ranks",       "4",    "--codec",     "none",   "--codec",   "hbi:k=15,k2=31",
               "--algo",        "ring", "--channels",  "2",      "--vectors", "5",
               "--slice-bytes", "16K",  "--transport", "shm",    "--simd",    "scalar",
               "--link-gbps",   "1",    "--link-us",   "25",     "--data",    "gradients:early",
               "--seed",        "42",   "--digest",    "--json", "out.json",  "--reproducible"});
  EXPECT_EQ(o.ranks, 4);
  EXPECT_EQ(o.codecs, (std::vector<std::string>{"none", "hbi:k=15,k2=31"}));
  EXPECT_EQ(o.algorithm, "ring");
  EXPECT_EQ(o.channels, 2);
  EXPECT_EQ(o.vectors, 5);
  EXPECT_EQ(o.data, "gradients:early");
  EXPECT_EQ(o.seed, 42u);
  EXPECT_TRUE(o.digest);
  EXPECT_TRUE(o.reproducible);
  EXPECT_EQ(o.baseline, Baseline::kNone);
  EXPECT_FALSE(o.cuda);
  EXPECT_EQ(o.json, "out.json");
  const std::map<std::string, std::string> environment = {{"INCCL_SLICE_BYTES", "16384"},
                                                          {"INCCL_TRANSPORT", "shm"},
                                                          {"INCCL_TEST_SIMD", "scalar"},
                                                          {"INCCL_TEST_LINK_GBPS", "1"},
                                                          {"INCCL_TEST_LINK_US", "25"}};
  EXPECT_EQ(o.environment, environment);
}

TEST(BenchOptions, OneCodecReplacesTheDefault) {
  EXPECT_EQ(ParseOk({"--codec", "hbi:bits=6"}).codecs, std::vector<std::string>{"hbi:bits=6"});
}

TEST(BenchOptions, BadOnesAreNamed) {
  EXPECT_NE(Refusal({"-b", "4Q"}).find("4Q"), std::string::npos);
  EXPECT_NE(Refusal({"-d", "quad"}).find("quad"), std::string::npos);
  EXPECT_NE(Refusal({"-o", "xor"}).find("xor"), std::string::npos);
  EXPECT_NE(Refusal({"-r", "first"}).find("first"), std::string::npos);
  EXPECT_NE(Refusal({"-r", "-2"}).find("-2"), std::string::npos);
  EXPECT_NE(Refusal({"-b", "8M", "-e", "4M"}).find("minbytes"), std::string::npos);
  EXPECT_NE(Refusal({"--baseline", "gloo"}).find("gloo"), std::string::npos);
  EXPECT_NE(Refusal({"--device", "gpu"}).find("gpu"), std::string::npos);
  EXPECT_NE(Refusal({"--buffers", "gpu"}).find("gpu"), std::string::npos);
  EXPECT_FALSE(ParseOk({}).mem_alloc);
  EXPECT_TRUE(ParseOk({"--buffers", "mem_alloc"}).mem_alloc);
  EXPECT_NE(Refusal({"--nosuchoption"}).find("nosuchoption"), std::string::npos);
  for (const std::vector<const char*>& bad :
       std::vector<std::vector<const char*>>{{"-n", "0"},
                                             {"-n", "-1"},
                                             {"-n", "x"},
                                             {"-m", "0"},
                                             {"-a", "4"},
                                             {"-z", "2"},
                                             {"--ranks", "0"},
                                             {"--ranks", "4097"},
                                             {"--threads", "0"},
                                             {"--row-seconds", "0"},
                                             {"--threads", "4097"},
                                             {"--link-gbps", "0"},
                                             {"stray"},
                                             {"--link-us", "-1"},
                                             {"-g", "0"},
                                             {"--table", "broad"},
                                             {"--slice-bytes", "big"},
                                             {"--codec"},
                                             {"-N", "0"},
                                             {"--vectors", "0"},
                                             {"--channels", "0"}}) {
    Refusal(bad);
  }
}

TEST(BenchOptions, CombinationsThatCannotBe) {
  EXPECT_NE(Refusal({"--ranks", "2", "--baseline", "mpi"}).find("--ranks"), std::string::npos);
  EXPECT_NE(Refusal({"--threads", "2", "--baseline", "mpi"}).find("--threads"), std::string::npos);
  EXPECT_NE(Refusal({"--threads", "2", "--ranks", "2"}).find("--threads"), std::string::npos);
  EXPECT_NE(Refusal({"--device", "cuda", "--baseline", "mpi"}).find("cuda"), std::string::npos);
  EXPECT_NE(Refusal({"--ranks", "2", "--baseline", "nccl"}).find("--device cuda"),
            std::string::npos);
  EXPECT_NE(Refusal({"--codec", "hbi:bits=6"}, Operation::kBroadcast).find("broadcast"),
            std::string::npos);
  EXPECT_TRUE(Parse({"--codec", "none"}, Operation::kBroadcast).ok());
  EXPECT_TRUE(Parse({"--codec", "hbi:bits=6"}, Operation::kReduceScatter).ok());
  EXPECT_TRUE(Parse({"--codec", "hbi:bits=6"}, Operation::kAllGather).ok());
}

TEST(BenchOptions, RefusalsNameTheOptionAsTypedAndWhatThereIs) {
  EXPECT_EQ(Refusal({"-n", "0"}).find("-n,--iters: "), 0u);
  EXPECT_EQ(Refusal({"-o", "foo"}),
            "-o: unknown operation 'foo'; there are sum, prod, max, min, avg, all");
  EXPECT_NE(Refusal({"-d", "flot"}).find("there are int8, uint8, "), std::string::npos);
}

TEST(BenchOptions, Devices) {
  const BenchOptions o = ParseOk({"--ranks", "2", "--device", "cuda", "--baseline", "nccl"});
  EXPECT_TRUE(o.cuda);
  EXPECT_EQ(o.baseline, Baseline::kNccl);
  EXPECT_EQ(ParseOk({"--baseline", "mpi", "--device", "host"}).baseline, Baseline::kMpi);
}

// ccl_comm_init_all takes no options: they go by the environment.
TEST(BenchOptions, OfThreads) {
  const BenchOptions o =
      ParseOk({"--threads", "4", "--algo", "ring", "--channels", "2", "--reproducible", "-T", "9"});
  EXPECT_EQ(o.threads, 4);
  const std::map<std::string, std::string> environment = {{"INCCL_ALGO", "ring"},
                                                          {"INCCL_CHANNELS", "2"},
                                                          {"INCCL_REPRODUCIBLE", "1"},
                                                          {"INCCL_OP_TIMEOUT_MS", "9000"}};
  EXPECT_EQ(o.environment, environment);
  EXPECT_TRUE(ParseOk({"--ranks", "4", "--algo", "ring"}).environment.empty());
}

// What users of nccl-tests type.
TEST(BenchOptions, NcclTestsNames) {
  EXPECT_EQ(ParseOk({"-g", "1", "-t", "4"}).threads, 4);
  EXPECT_EQ(ParseOk({"--ngpus", "1", "--nthreads", "4"}).threads, 4);
  EXPECT_NE(Refusal({"-g", "8"}).find("start 8 ranks"), std::string::npos);
  EXPECT_EQ(ParseOk({"-J", "out.json"}).json, "out.json");
  EXPECT_EQ(ParseOk({"--output_file", "out.json"}).json, "out.json");
  // One thread for each process: nccl-tests' default.
  const BenchOptions forked = ParseOk({"--ranks", "2", "-t", "1", "--algo", "ring"});
  EXPECT_EQ(forked.threads, 0);
  EXPECT_TRUE(forked.environment.empty());
  EXPECT_EQ(ParseOk({"-t", "1", "--baseline", "mpi"}).baseline, Baseline::kMpi);
  EXPECT_EQ(ParseOk({"-d", "bf16"}).types, std::vector<DataType>{DataType::kBfloat16});
}

TEST(BenchOptions, Tables) {
  EXPECT_EQ(ParseOk({}).table, TableKind::kAuto);
  EXPECT_EQ(ParseOk({"--table", "narrow"}).table, TableKind::kNarrow);
  EXPECT_EQ(ParseOk({"--table", "wide"}).table, TableKind::kWide);
  EXPECT_EQ(ParseOk({"--csv"}).table, TableKind::kCsv);
}

TEST(BenchOptions, TheVersionNeedsNothingElse) {
  Result<ParsedOptions> parsed = Parse({"--version"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->version);
  EXPECT_TRUE(parsed->help.empty());
}

TEST(BenchOptions, HelpHasGroupsAndDefaultsInLinesOfATerminal) {
  const std::string help = Parse({"--help"})->help;
  for (const char* part : {"\nRanks and memory:\n", "--iters N=20", "--datatype TYPE=float"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST(BenchOptions, HelpIsAText) {
  Result<ParsedOptions> parsed = Parse({"--help"});
  ASSERT_TRUE(parsed.ok());
  for (const char* word : {"--minbytes", "--codec", "--baseline", "docs/perf-tools.md"}) {
    EXPECT_NE(parsed->help.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace inccl::perf
