// SPDX-License-Identifier: Apache-2.0
//
// Up to as many ranks as a communicator may have, over the transports that join processes: every
// collective, and those with a choice of algorithms with each of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/world.h"
#include "faults/operation_cases.h"
#include "world/algorithms.h"

namespace inccl::test {
namespace {

constexpr const char* kCollectives[] = {"allreduce", "reduce_scatter", "allgather",
                                        "broadcast", "reduce",         "alltoall",
                                        "gather",    "scatter",        "sendrecv"};

void CallAll(const char* transport, const std::string& algorithms, int n) {
  const ScopedEnv env({{"INCCL_TRANSPORT", transport},
                       {"INCCL_ALGO", algorithms.c_str()},
                       {"INCCL_SLICE_BYTES", "4096"}});
  SCOPED_TRACE(fmt::format("{} ranks over {}, algorithms \"{}\"", n, transport, algorithms));
  RunThreads(n, [n](int rank, ccl_comm_t comm) {
    for (const char* collective : kCollectives) {
      for (const size_t count : {size_t{3}, size_t{1500}}) {  // fewer than ranks; several slices
        OperationRunner runner({collective, nullptr}, rank, n, count);
        ASSERT_EQ(runner.Run(comm, 2.0f), CCL_SUCCESS)
            << collective << ": " << ccl_get_last_error(comm);
        EXPECT_TRUE(runner.Right()) << collective << " of " << count << ", rank " << rank;
      }
    }
    OperationRunner compressed({"allreduce", nullptr, true}, rank, n, 1500);
    ASSERT_EQ(compressed.Run(comm, 2.0f), CCL_SUCCESS) << ccl_get_last_error(comm);
    EXPECT_TRUE(compressed.Right()) << "compressed, rank " << rank;
  });
}

TEST(ManyRanksTest, EveryCollectiveOverSharedMemory) {
  for (const int n : kSanitized ? std::vector<int>{17} : std::vector<int>{17, 64}) {
    CallAll("shm", "", n);
  }
}

TEST(ManyRanksTest, EveryAlgorithmOverSharedMemory) {
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct_two_shot"}) {
    CallAll("shm", WhereItExists(algorithm), kSanitized ? 17 : 19);
  }
}

TEST(ManyRanksTest, EveryCollectiveOverUcx) {
  if (INCCL_TEST_UCX == 0) GTEST_SKIP() << "built without UCX";
  for (const int n : kSanitized ? std::vector<int>{17} : std::vector<int>{17, 24}) {
    CallAll("ucx", "", n);
  }
}

}  // namespace
}  // namespace inccl::test
