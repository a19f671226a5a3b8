// SPDX-License-Identifier: Apache-2.0
//
// The benchmarks with --device cuda and --baseline nccl, on fakes of both in memory of the host:
// what is copied, timed, checked and left out, and what is said where there is no device. (What the
// library does with memory of a device is tested elsewhere.)
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>

#include "build_paths.h"
#include "tools/run_program.h"

namespace inccl::perf {
namespace {

using test::FileContent;
using test::ProgramResult;
using test::RunProgram;

constexpr const char* kFakes = INCCL_BINARY_DIR "/tests/fakes";

ProgramResult Bench(const std::string& name, const std::string& arguments,
                    const std::string& environment = "") {
  return RunProgram(INCCL_BINARY_DIR "/perf/" + name + "_bench", arguments,
                    "unset ${!OMPI_*} ${!PMI*}; export LD_LIBRARY_PATH=" + std::string(kFakes) +
                        " " + environment);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class JsonFile {
 public:
  ~JsonFile() { unlink(path_.c_str()); }
  std::string option() const { return " --json " + path_; }
  const std::string& path() const { return path_; }
  nlohmann::json Read() const { return nlohmann::json::parse(FileContent(path_)); }

 private:
  const std::string path_ = testing::TempDir() + "bench-device-" + std::to_string(getpid());
};

TEST(BenchDevice, WithoutADeviceItSaysWhy) {
  for (const std::string ranks : {"--ranks 3", "--threads 2"}) {
    const ProgramResult run =
        Bench("allreduce", ranks + " --device cuda -b 4K -e 4K", "FAKE_CUDA_DEVICES=0");
    EXPECT_EQ(run.status, 4) << ranks << run.err;
    // Once, not by every rank.
    EXPECT_EQ(run.err,
              "allreduce_bench: rank 0: --device cuda: cuInit: no CUDA-capable device is detected "
              "(100)\n");
    EXPECT_EQ(run.out, "");
  }
}

TEST(BenchDevice, EveryOperationIsCopiedThereAndBackAndChecked) {
  for (const std::string name : {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce",
                                 "alltoall", "gather", "scatter", "sendrecv"}) {
    const ProgramResult run = Bench(
        name, "--ranks 3 --device cuda -b 16 -e 300000 -f 50 -n 2 -w 1 --limit --digest -r 1");
    EXPECT_EQ(run.status, 0) << name << run.out << run.err;
    EXPECT_TRUE(Has(run.out, "# Out of bounds values : 0 OK")) << name << run.out;
  }
}

TEST(BenchDevice, CodecsAndTheHeader) {
  const JsonFile json;
  const ProgramResult run = Bench(
      "allreduce",
      "--ranks 2 --device cuda -b 1M -e 1M -n 2 -w 0 --codec hbi:bits=6 --limit" + json.option(),
      "FAKE_CUDA_DEVICES=2");
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_TRUE(Has(run.out, "# device cuda: Fake 0 of 2")) << run.out;
  EXPECT_TRUE(Has(run.out, "device 1 Fake 1")) << run.out;
  const nlohmann::json document = json.Read();
  EXPECT_EQ(document["header"]["device"], "Fake 0");
  EXPECT_EQ(document["header"]["devices"], 2);
  for (const nlohmann::json& row : document["rows"]) {
    EXPECT_TRUE(row["compressed"].get<bool>());
    EXPECT_GT(row["limit_us"].get<double>(), 0);
    EXPECT_EQ(row["wrong"], 0);
  }
}

TEST(BenchDevice, TheDigestIsThatOfTheHost) {
  const JsonFile json;
  const std::string arguments =
      "--ranks 2 -b 40000 -e 40000 -n 1 -w 0 --digest --codec hbi" + json.option();
  ASSERT_EQ(Bench("allreduce", arguments).status, 0);
  const nlohmann::json host = json.Read();
  EXPECT_TRUE(host["header"]["device"].is_null());
  ASSERT_EQ(Bench("allreduce", arguments + " --device cuda").status, 0);
  const nlohmann::json device = json.Read();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(host["rows"][i]["digest"], device["rows"][i]["digest"]);
}

TEST(BenchDevice, AWrongByteThatComesBackIsSeen) {
  for (const std::string name : {"allreduce", "alltoall"}) {
    const ProgramResult run =
        Bench(name, "--ranks 2 --device cuda -b 4K -e 4K -n 1 -w 0", "FAKE_CUDA_SPOIL=1");
    EXPECT_EQ(run.status, 1) << run.out << run.err;
    EXPECT_TRUE(Has(run.out, "FAILED")) << run.out;
  }
}

#if INCCL_TEST_CUDA
// The library's own way on devices, too: over a fake driver whose memory the processor cannot
// touch.
TEST(BenchDevice, RanksShareADeviceAsProcessesAndAsThreads) {
  for (const std::string ranks : {"--ranks 3", "--threads 3"}) {
    for (const std::string name : {"allreduce", "reduce_scatter", "alltoall", "sendrecv"}) {
      const ProgramResult run =
          Bench(name, ranks + " --device cuda -b 16 -e 300000 -f 50 -n 2 -w 1 --limit",
                "FAKE_CUDA_DEVICES=2 LD_LIBRARY_PATH=" INCCL_BINARY_DIR "/tests/fake_driver");
      EXPECT_EQ(run.status, 0) << name << ranks << run.out << run.err;
      EXPECT_TRUE(Has(run.out, "device 1 Fake 1")) << run.out;
      EXPECT_TRUE(Has(run.out, "# Out of bounds values : 0 OK")) << name << run.out;
    }
    // A driver whose allocations wait for all streams may not stop a call, not even the first one.
    // (Of threads, sends and receives may wait for each other's staging.)
    using Call = std::pair<std::string, std::string>;
    for (const auto& [name, codec] :
         {Call("allreduce", ""), Call("allreduce", " --codec hbi:bits=6"), Call("sendrecv", "")}) {
      if (name == "sendrecv" && ranks == "--threads 3") continue;
      std::string arguments = ranks + " --device cuda -b 3M -e 3M -n 2 -w 1 -c 1";
      arguments += codec;
      const ProgramResult run =
          Bench(name, arguments,
                "FAKE_CUDA_DEVICES=1 FAKE_CUDA_ALLOCATIONS_WAIT=1 INCCL_DEBUG=INFO "
                "INCCL_DEBUG_SUBSYS=INIT,TRANSPORT "
                "LD_LIBRARY_PATH=" INCCL_BINARY_DIR "/tests/fake_driver");
      EXPECT_EQ(run.status, 0) << name << codec << ranks << run.out << run.err;
      EXPECT_TRUE(Has(run.err, "joined over") || ranks[2] == 't') << "no log: " << run.err;
      EXPECT_FALSE(Has(run.err, "does not reach")) << "slots: " << run.err;
    }
  }
}

// Zero copy; processes import each other's buffers by CUDA's handles.
TEST(BenchDevice, RanksReadEachOthersMemory) {
  for (const std::string ranks : {"--ranks 3", "--threads 3"}) {
    for (const std::string name : {"allreduce", "reduce_scatter", "allgather"}) {
      const ProgramResult run = Bench(
          name, ranks + " --device cuda -b 10M -e 10M -n 3 -w 2 --buffers mem_alloc",
          "FAKE_CUDA_DEVICES=2 FAKE_CUDA_ALLOCATIONS_WAIT=1 INCCL_DEBUG=INFO "
          "INCCL_DEBUG_SUBSYS=TRANSPORT LD_LIBRARY_PATH=" INCCL_BINARY_DIR "/tests/fake_driver");
      EXPECT_EQ(run.status, 0) << name << ranks << run.out << run.err;
      EXPECT_TRUE(Has(run.out, "# Out of bounds values : 0 OK")) << name << run.out;
      EXPECT_TRUE(Has(run.err, "on its device where they lie")) << name << ranks << run.err;
    }
  }
}
#endif

// ---------------------------------------------------------------- NCCL beside it

TEST(BenchDevice, NcclIsLeftOutWithTheReason) {
  const std::string arguments = "--ranks 2 --device cuda --baseline nccl -b 4K -e 4K -n 1 -w 0";
  ProgramResult run = Bench("allreduce", arguments);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(Has(run.out, "# NCCL left out: 2 ranks, 1 GPU: NCCL needs one for each rank\n"))
      << run.out;
  EXPECT_FALSE(Has(run.out, "ours/")) << run.out;
  run = Bench("allreduce", arguments, "FAKE_CUDA_DEVICES=2 INCCL_NCCL_LIBRARY=/nowhere/nccl");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(Has(run.out, "# NCCL left out: /nowhere/nccl: cannot open shared object file"))
      << run.out;
  run = Bench("allreduce", arguments,
              std::string("FAKE_CUDA_DEVICES=2 INCCL_NCCL_LIBRARY=") + kFakes + "/libcuda.so.1");
  EXPECT_TRUE(Has(run.out, "libcuda.so.1 has no ncclGetVersion")) << run.out;
}

TEST(BenchDevice, NcclRunsBeside) {
  const JsonFile json;
  const std::string log = json.path() + ".log";
  // libnccl.so.2 is found where the loader searches.
  const ProgramResult run = Bench(
      "allreduce",
      "--ranks 3 --device cuda --baseline nccl -b 4K -e 400K -f 100 -n 3 -w 1" + json.option(),
      "FAKE_CUDA_DEVICES=4 FAKE_NCCL_LOG=" + log);
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_TRUE(Has(run.out, "NCCL")) << run.out;
  const nlohmann::json document = json.Read();
  EXPECT_EQ(document["header"]["baseline"], "nccl 2.99.3");
  for (const nlohmann::json& row : document["rows"]) {
    EXPECT_GT(row["baseline_us"].get<double>(), 0);
    EXPECT_GT(row["vs_baseline"].get<double>(), 0);
  }
  // Three ranks, out of place and in place, once for warmup, three times, and once to be checked.
  const std::string sums = FileContent(log);
  unlink(log.c_str());
  EXPECT_EQ(std::count(sums.begin(), sums.end(), '\n'), 3 * 2 * 5 * 2);
  EXPECT_TRUE(Has(sums, "sum of 1024\n")) << sums;
  EXPECT_TRUE(Has(sums, "sum of 102400\n")) << sums;
}

// A call that is not the same would be no comparison.
TEST(BenchDevice, AWrongSumOfNcclIsSeen) {
  const ProgramResult run =
      Bench("allreduce", "--ranks 2 --device cuda --baseline nccl -b 4K -e 4K -n 1 -w 0",
            "FAKE_CUDA_DEVICES=2 FAKE_NCCL_WRONG=1");
  EXPECT_EQ(run.status, 3) << run.out << run.err;
  EXPECT_TRUE(Has(run.err, "NCCL: 1024 elements are not those of the same call of inccl"))
      << run.err;
}

TEST(BenchDevice, AnErrorOfNcclIsTheRuns) {
  const ProgramResult run =
      Bench("alltoall", "--ranks 2 --device cuda --baseline nccl -b 4K -e 4K -n 1 -w 0",
            "FAKE_CUDA_DEVICES=2");
  EXPECT_EQ(run.status, 3) << run.out << run.err;
  EXPECT_TRUE(Has(run.err, "ncclSend, ncclRecv: refused by the fake (4)")) << run.err;
}

// ---------------------------------------------------------------- less of it

// Without the limit it would not end.
TEST(BenchRowSeconds, FewerIterationsWhereAllWouldTakeLonger) {
  const JsonFile json;
  const ProgramResult run = Bench("allreduce",
                                  "--ranks 2 -b 4K -e 16K -f 4 -n 1000000000 -w 1000000000 "
                                  "--row-seconds 0.05 --codec none --codec hbi:bits=6" +
                                      json.option());
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(json.Read()["rows"].size(), 8u);
}

// A run that is stopped leaves the rows that it had.
TEST(BenchRows, AreWrittenOneByOne) {
  const JsonFile json;
  const std::string bench =
      INCCL_BINARY_DIR
      "/perf/allreduce_bench --ranks 2 -b 4K -e 1G -f 2 -n 1000 --link-gbps 1 -c 0" +
      json.option();
  const ProgramResult run =
      RunProgram("bash", "-c '" + bench + " & until grep -qs in_place " + json.path() +
                             "; do sleep 0.02; done; kill $!; wait $!'");
  EXPECT_EQ(run.status, 128 + SIGTERM) << run.out << run.err;
  const nlohmann::json rows = json.Read()["rows"];
  ASSERT_GE(rows.size(), 2u);
  EXPECT_EQ(rows[0]["bytes"], 4096);
}

#ifndef INCCL_NO_FAULT_POINTS
// Between calls it is the launcher that misses a rank; who it was the library knows.
TEST(BenchRows, ADeadRankIsNamedByTheOthers) {
  for (const std::string hit : {"1", "2", "3"}) {
    const ProgramResult run =
        Bench("allreduce", "--ranks 3 -b 4K -e 4K -n 3 -w 0",
              "INCCL_TEST_FAULT='rank=1;point=call.after_finish;hit=" + hit + ";action=kill'");
    EXPECT_EQ(run.status, 3) << run.err;
    EXPECT_TRUE(Has(run.err, "rank 1 was killed by signal 9")) << run.err;
    for (const std::string rank : {"0", "2"}) {
      const std::regex named("allreduce_bench: rank " + rank + ": .*rank " + rank +
                             "/3 [^\n]*peer 1@\\S+ failed: ");
      EXPECT_TRUE(std::regex_search(run.err, named)) << "hit " << hit << "\n" << run.err;
    }
    EXPECT_FALSE(Has(run.err, "another rank died")) << run.err;
  }
}
#endif

// ---------------------------------------------------------------- ranks as threads

TEST(BenchThreads, RanksAreThreadsOfOneProcess) {
  const JsonFile json;
  const ProgramResult run =
      Bench("allreduce",
            "--threads 3 -b 4K -e 4M -f 32 -n 2 -w 1 --codec none --codec hbi:bits=6 "
            "--algo ring --channels 2 --digest" +
                json.option());
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  const nlohmann::json document = json.Read();
  EXPECT_EQ(document["header"]["launcher"], "threads");
  EXPECT_EQ(document["header"]["nranks"], 3);
  // One process.
  std::smatch first, second;
  ASSERT_TRUE(std::regex_search(run.out, first, std::regex("Rank  0 Pid +([0-9]+)"))) << run.out;
  ASSERT_TRUE(std::regex_search(run.out, second, std::regex("Rank  2 Pid +([0-9]+)"))) << run.out;
  EXPECT_EQ(first[1], second[1]);
}

}  // namespace
}  // namespace inccl::perf
