// SPDX-License-Identifier: Apache-2.0
//
// Communicators that come into being, and what remains of those that do not.
#include "init/join.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "world/baseline.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

constexpr size_t kMostGrowthKib = 8 << 10;  // in 20 rounds

InitOptions Options() {
  setenv("INCCL_CONF_FILE", "/dev/null", 1);
  Result<InitOptions> options = ResolveOptions(nullptr);
  EXPECT_TRUE(options.ok()) << options.status().message();
  return *std::move(options);
}

TEST(MakeThreadsTest, MakesRanksThatCanCall) {
  auto made = MakeThreads(3, Options());
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->size(), 3u);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ((*made)[static_cast<size_t>(rank)]->rank(), rank);
    EXPECT_EQ((*made)[static_cast<size_t>(rank)]->nranks(), 3);
    threads.emplace_back([mine = std::move((*made)[static_cast<size_t>(rank)])]() mutable {
      std::vector<float> data(100, static_cast<float>(mine->rank() + 1)), sum(100);
      Call call;
      call.nranks = 3;
      call.rank = mine->rank();
      call.count = data.size();
      call.send = data.data();
      call.recv = sum.data();
      EXPECT_TRUE(mine->Run(call).ok());
      EXPECT_EQ(sum, std::vector<float>(100, 6.0f));
      mine.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A failed creation holds nothing: no descriptor, thread, mapping or name.
void ExpectHeldNothing(const std::function<void()>& fails) {
  fails();  // what the process makes once
  Baseline baseline(kSanitized ? Baseline::kAnyRss : kMostGrowthKib);  // asan keeps what is freed
  for (int i = 0; i < 20; ++i) fails();
  EXPECT_EQ(baseline.Difference(10), "");
}

TEST(MakeThreadsTest, AFailedCreationHoldsNothing) {
  InitOptions options = Options();
  options.comm.channels = 32;
  options.comm.slice_bytes = 4 << 20;
  options.comm.slot_bytes_max = uint64_t{1} << 40;
  ExpectHeldNothing([&] {
    const Status status = MakeThreads(16, options).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("INCCL_CHANNELS"), std::string::npos) << status.message();
  });
}

// The transport of the offer has been made when the ranks do not meet.
TEST(JoinProcessesTest, AFailedJoinHoldsNothing) {
  for (const char* const transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    InitOptions options = Options();
    options.environment.transport = transport;
    options.comm.name = "mine";
    ExpectHeldNothing([&] {
      int joins = 0;
      const Status status = JoinProcesses(
                                2, 1, options,
                                [&](const JoinOptions&) -> Result<Mesh> {
                                  ++joins;
                                  return RemoteError("rank 1/2: init: nobody is there");
                                },
                                nullptr)
                                .status();
      EXPECT_EQ(joins, 1);
      EXPECT_EQ(status.code(), Code::kRemoteError);
      EXPECT_NE(status.message().find("nobody is there"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("mine"), std::string::npos) << status.message();
    });
  }
}

}  // namespace
}  // namespace inccl::test
