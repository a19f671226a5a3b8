// SPDX-License-Identifier: Apache-2.0
//
// Ranks of NCCL's interface as threads of this process, and waits that end.
#ifndef INCCL_TESTS_NCCL_RANKS_H_
#define INCCL_TESTS_NCCL_RANKS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "build_paths.h"
#include "nccl/functions.h"

// For functions that return nothing: ends them, with the library's words, if a call fails.
#define NCCL_OK(call) ASSERT_EQ(call, 0) << ncclGetLastError(nullptr)

namespace inccl::test {

// libnccl.so.2 would find it beside itself; the sources in this program, under a sanitizer, not.
inline const int library_is_named =
    setenv("INCCL_LIBRARY", INCCL_BINARY_DIR "/src/libinccl.so.0", 0);

using Clock = std::chrono::steady_clock;
// What the library promises to end at once; long enough for a machine that does other things.
inline constexpr double kSoon = 20;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// As NCCL_CONFIG_INITIALIZER of 2.28.
inline Config DefaultConfig(unsigned version = 22809) {
  Config config{};
  config.size = sizeof config;
  config.magic = nccl::kConfigMagic;
  config.version = version;
  for (int Config::*field :
       {&Config::blocking, &Config::cga_cluster_size, &Config::min_ctas, &Config::max_ctas,
        &Config::split_share, &Config::traffic_class, &Config::collnet_enable, &Config::cta_policy,
        &Config::shrink_share, &Config::nvls_ctas, &Config::channels_per_net_peer,
        &Config::nvlink_centric_sched}) {
    config.*field = nccl::kUndefined;
  }
  return config;
}

inline Config NonBlocking() {
  Config config = DefaultConfig();
  config.blocking = 0;
  return config;
}

// Polls as PyTorch does.
inline int WaitUntilSettled(NcclComm comm, double limit = 60) {
  const Clock::time_point start = Clock::now();
  int error = kInProgress;
  while (error == kInProgress && SecondsSince(start) < limit) {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), kSuccess);
    usleep(500);
  }
  return error;
}

// All ranks of `comm` sum 2^(world rank): who is in it. 0: the call failed.
inline uint64_t Members(NcclComm comm, int world_rank) {
  uint64_t bits = uint64_t{1} << world_rank;
  const int result = ncclAllReduce(&bits, &bits, 1, kUint64, kSum, comm, nullptr);
  return result == kSuccess ? bits : 0;
}

// Runs function(rank, comm) in a thread for each rank of a new communicator, which it leaves to
// them.
inline void Ranks(int n, const std::function<void(int, NcclComm)>& function) {
  std::vector<NcclComm> comms(static_cast<size_t>(n));
  NCCL_OK(ncclCommInitAll(comms.data(), n, nullptr));
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { function(rank, comms[static_cast<size_t>(rank)]); });
  }
  for (std::thread& thread : threads) thread.join();
}

inline bool LastErrorSays(const std::string& text) {
  return std::string(ncclGetLastError(nullptr)).find(text) != std::string::npos;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_NCCL_RANKS_H_
