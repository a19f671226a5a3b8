// SPDX-License-Identifier: Apache-2.0
//
// The harness itself: it must see what it is there to see.
#include "world/world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "world/baseline.h"
#include "world/clock.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

TEST(ProcessWorldTest, SeesHowEachRankEnds) {
  ProcessWorld world({.nranks = 4}, [](const Side& side) {
    side.mine().stage = side.rank() + 10;
    if (side.rank() == 1) raise(SIGKILL);
    if (side.rank() == 2) {
      std::fprintf(stderr, "a word on stderr\n");
      return 5;
    }
    EXPECT_NE(side.rank(), 3) << "meant to fail";
    return 0;
  });
  const std::vector<RankEnd>& ends = world.Wait();
  EXPECT_TRUE(ends[0].Exited());
  EXPECT_TRUE(ends[1].Killed(SIGKILL));
  EXPECT_TRUE(ends[2].Exited(5));
  EXPECT_NE(ends[2].output.find("a word on stderr"), std::string::npos);
  EXPECT_TRUE(ends[3].Exited(1)) << ends[3].Describe();
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(world.report(rank).stage, rank + 10);
}

TEST(ProcessWorldTest, SeesWhatIsLeftBehind) {
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    if (side.rank() == 1) return open("/dev/null", O_RDONLY) < 0 ? 9 : 0;
    return 0;
  });
  const std::vector<RankEnd>& ends = world.Wait();
  EXPECT_TRUE(ends[0].Exited());
  EXPECT_TRUE(ends[1].Exited(98)) << ends[1].Describe();
  EXPECT_NE(std::string(world.report(1).left_behind).find("descriptors"), std::string::npos);
}

TEST(ProcessWorldTest, EndsAtTheDeadlineWithStacks) {
  const double start = Seconds();
  ProcessWorld world({.nranks = 2, .deadline_seconds = 0.3}, [](const Side& side) {
    while (side.rank() == 1) pause();
    return 0;
  });
  const std::vector<RankEnd>& ends = world.Wait();
  EXPECT_TRUE(ends[0].Exited());
  EXPECT_TRUE(ends[1].timed_out);
  EXPECT_NE(ends[1].output.find("threads of process"), std::string::npos) << ends[1].output;
  EXPECT_NE(ends[1].output.find("api_tests"), std::string::npos) << ends[1].output;
  EXPECT_LT(Seconds() - start, 40.0);
}

TEST(ProcessWorldTest, RunsManyAFewAtATime) {
  int checked = 0;
  RunWorlds(
      20, 4,
      [](size_t i) {
        return std::make_unique<ProcessWorld>(WorldOptions{.nranks = 1}, [i](const Side& side) {
          side.mine().stage = static_cast<int>(i);
          return 0;
        });
      },
      [&](size_t i, ProcessWorld& world) {
        world.ExpectAllExited();
        EXPECT_EQ(world.report(0).stage, static_cast<int>(i));
        ++checked;
      });
  EXPECT_EQ(checked, 20);
}

TEST(BaselineTest, SeesDescriptorsThreadsAndMemory) {
  Baseline fds;
  const int fd = open("/dev/null", O_RDONLY);
  EXPECT_NE(fds.Difference(0.01).find("descriptors"), std::string::npos);
  close(fd);
  EXPECT_EQ(fds.Difference(0), "");
  Baseline threads;
  std::thread sleeper([] { usleep(200000); });
  EXPECT_NE(threads.Difference(0.01).find("threads"), std::string::npos);
  EXPECT_EQ(threads.Difference(10), "") << "it ends by itself";
  sleeper.join();
  if (kSanitized) return;
  Baseline memory(8 * 1024);
  std::vector<char> large(32 << 20, 'x');
  EXPECT_NE(memory.Difference(0).find("resident"), std::string::npos);
  EXPECT_EQ(large[7], 'x');
}

TEST(ErrorFormatTest, NamesWhatIsMissing) {
  const ErrorNames names = {.rank = 1, .nranks = 4, .peers = {2}, .peer_pid = 77};
  const std::string good = "rank 1/4 in op 6 allreduce(count=1): peer 2@host:77 failed";
  EXPECT_EQ(MissingFromError(good, CCL_REMOTE_ERROR, names), "");
  for (const char* bad :
       {"rank 2/4 in op 6 allreduce(count=1): peer 2@host:77 failed",
        "rank 1/4: peer 2@host:77 failed", "rank 1/4 in op 6: peer 3@host:77 failed",
        "rank 1/4 in op 6: peer 2@host:78 failed", "rank 1/4 in op 6: a peer failed",
        "told: rank 1/4 in op 6: peer 2@host:77 failed"}) {
    EXPECT_NE(MissingFromError(bad, CCL_REMOTE_ERROR, names), "") << bad;
  }
  EXPECT_NE(MissingFromError(good, CCL_TIMEOUT, names), "") << "a timeout says how long";
}

}  // namespace
}  // namespace inccl::test
