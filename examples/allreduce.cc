// SPDX-License-Identifier: Apache-2.0
// Four processes sum a vector, compressed. They find each other by the environment.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <inccl/ccl.hpp>
#include <string>
#include <vector>

namespace ccl = inccl::api;

namespace {

constexpr int kRanks = 4;

ccl::Status Run() {
  ccl::Result<ccl::Communicator> comm = ccl::Communicator::InitEnv();
  if (!comm.ok()) return comm.status();
  const ccl::Result<ccl::Codec> codec = ccl::Codec::Create("hbi:bits=8");
  if (!codec.ok()) return codec.status();

  const int rank = *comm->Rank();
  std::vector<float> values(1 << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100 * (rank + 1));
  ccl::Stats stats;
  ccl::Compression how;
  how.codec = &*codec;
  how.stats = &stats;
  ccl::Status status = comm->AllReduceCompressed(values, values, CCL_SUM, how);
  if (status.ok() && rank == 0) {
    std::printf("%.2f bits, ratio %.1f: 990 is %g\n", stats.bits, stats.ratio, values[99]);
  }
  return status;
}

}  // namespace

int main() {
  setenv("INCCL_SIZE", std::to_string(kRanks).c_str(), 1);
  setenv("INCCL_JOB", ("example-" + std::to_string(getpid())).c_str(), 1);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() != 0) continue;
    setenv("INCCL_RANK", std::to_string(rank).c_str(), 1);
    const ccl::Status status = Run();
    if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.text());
    return status.ok() ? 0 : 1;
  }
  int status = 0;
  bool failed = false;
  while (wait(&status) > 0) failed = failed || status != 0;
  return failed ? 1 : 0;
}
