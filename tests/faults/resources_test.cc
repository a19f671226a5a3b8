// SPDX-License-Identifier: Apache-2.0
//
// Too few descriptors, too little shared memory: an error that says what is needed and what the
// limit is, or no effect at all; nothing spins, and no rank is killed.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "faults/fault_test.h"
#include "faults/interposer.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 1;

class ResourcesTest : public TransportFaultTest {
 protected:
  ResourcesTest() : TransportFaultTest(kShortLimits) {}
};
class DescriptorsTest : public ResourcesTest {};

void LimitDescriptors(rlim_t soft, rlim_t hard) {
  const rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0) << std::strerror(errno);
}

// Takes every descriptor there is but `left`; gives them back at its end.
class AllDescriptors {
 public:
  explicit AllDescriptors(size_t left = 0) {
    int fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) fds_.push_back(fd);
    EXPECT_EQ(errno, EMFILE);
    for (; left > 0; --left) {
      close(fds_.back());
      fds_.pop_back();
    }
  }
  ~AllDescriptors() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

ccl_result_t Sum(ccl_comm_t comm, size_t count) {
  std::vector<float> data(count, 1.0f);
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  for (size_t i = 0; result == CCL_SUCCESS && i < count; ++i) EXPECT_EQ(data[i], kRanks);
  return result;
}

int JoinSumDestroy(const Side& side) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return comm == nullptr ? 0 : 11;
  side.mine().result = Sum(comm, 5000);
  side.mine().SetText(ccl_get_last_error(comm));
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

TEST_P(DescriptorsTest, Row16_TheSoftLimitOfDescriptorsIsRaised) {
  ForRow("16");
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    LimitDescriptors(48, 4096);
    return JoinSumDestroy(side);
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
  }
}

TEST_P(DescriptorsTest, Row16_TheHardLimitOfDescriptorsIsNamed) {
  ForRow("16");
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    if (side.rank() == kVictim) LimitDescriptors(48, 48);
    return JoinSumDestroy(side);
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    Report& report = world.report(rank);
    EXPECT_LT(report.seconds, kInitSeconds + SlackSeconds());
    if (rank == kVictim) {
      EXPECT_EQ(report.result, CCL_SYSTEM_ERROR) << report.text;
      EXPECT_TRUE(Matches(report.text, "needs about [0-9]+ descriptors, the limit is 48"))
          << report.text;
    } else {
      EXPECT_TRUE(Matches(report.text, "rank 1 of 3 did not arrive")) << report.text;
    }
  }
}

TEST_P(DescriptorsTest, Row16_ARendezvousWithoutDescriptorsWaitsQuietly) {
  ForRow("16");
  const double seconds = 0.6;
  ProcessWorld maker({.nranks = 1}, [&](const Side& side) {
    LimitDescriptors(128, 128);
    const ccl_unique_id_t id = side.Id();
    std::memcpy(side.mine().text, &id, sizeof id);
    {
      const AllDescriptors taken;
      side.mine().stage = 1;
      const double cpu = CpuSeconds();
      usleep(static_cast<useconds_t>(1e6 * seconds));
      side.mine().seconds = CpuSeconds() - cpu;
    }
    return 0;
  });
  ASSERT_TRUE(maker.side(0).Await(0, 1));
  const std::string long_init = std::to_string(static_cast<int>(10000 * Slowness()));
  const ScopedEnv env({{"INCCL_INIT_TIMEOUT_MS", long_init.c_str()}});
  ProcessWorld world({.nranks = kRanks, .id_maker = kOutside},
                     [](const Side& side) { return JoinSumDestroy(side); });
  ccl_unique_id_t id;
  std::memcpy(&id, maker.report(0).text, sizeof id);
  world.GiveId(id);
  world.ExpectAllExited();
  maker.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
    EXPECT_GT(world.report(rank).seconds, 0.3 * seconds) << "there was no lack of descriptors";
  }
  EXPECT_LT(maker.report(0).seconds, 0.05 * seconds * Slowness()) << "CPU time while waiting";
}

// UCX takes some for messages of another size than it has seen: then the call fails, on all ranks.
TEST_P(DescriptorsTest, Row16_NoDescriptorsAreNeededOnceAllHaveJoined) {
  ForRow("16");
  const bool needs_some = std::string(GetParam()) == "ucx";
  ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
    LimitDescriptors(256, 256);
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
    {
      const AllDescriptors taken;
      for (const size_t count : {size_t{10}, size_t{200000}}) {
        const ccl_result_t result = Sum(comm, count);
        if (needs_some && result == CCL_REMOTE_ERROR) break;
        EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
      }
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  world.ExpectAllExited();
}

// Whoever it is, and whether the id could still be made: nobody waits, and all learn the cause.
TEST_P(DescriptorsTest, Row16_ASplitSaysWhoLacksDescriptors) {
  ForRow("16");
  if (GetParam() == std::string("ucx")) GTEST_SKIP() << "it may need some for the exchange";
  const std::string why = "needs about [0-9]+ descriptors, the limit is 256";
  ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
    LimitDescriptors(256, 256);
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
    for (const int victim : {0, kVictim}) {
      for (const size_t left : {0, 2, 8}) {
        ccl_comm_t part = nullptr;
        ccl_result_t result = CCL_SUCCESS;
        if (side.rank() == victim) {
          const AllDescriptors taken(left);
          result = ccl_comm_split(comm, 0, 0, &part, nullptr);
        } else {
          result = ccl_comm_split(comm, 0, 0, &part, nullptr);
        }
        const std::string text = ccl_get_last_error(nullptr);
        const bool own = side.rank() == victim;
        EXPECT_EQ(result, own ? CCL_SYSTEM_ERROR : CCL_REMOTE_ERROR) << text;
        EXPECT_TRUE(
            Matches(text, own ? why : fmt::format("split: rank {} cannot join: {}", victim, why)))
            << "rank " << side.rank() << ", " << left << " left: " << text;
        EXPECT_EQ(Sum(comm, 10), CCL_SUCCESS) << ccl_get_last_error(comm);
      }
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  world.ExpectAllExited();
}

INSTANTIATE_OVER_TRANSPORTS(DescriptorsTest);

TEST_P(ResourcesTest, Row17_AFileSizeLimitIsNamedAndRaisesNoSignal) {
  ForRow("17");
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    if (side.rank() == kVictim) {
      const rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    return JoinSumDestroy(side);
  });
  world.ExpectAllExited();
  Report& victim = world.report(kVictim);
  EXPECT_EQ(victim.result, CCL_SYSTEM_ERROR) << victim.text;
  EXPECT_TRUE(Matches(victim.text, "[0-9]+ bytes.* limit of 1048576 bytes")) << victim.text;
  for (const int rank : {0, 2}) {
    EXPECT_EQ(world.report(rank).result, CCL_SYSTEM_ERROR) << world.report(rank).text;
    EXPECT_TRUE(Matches(world.report(rank).text, "rank 1: .* limit of 1048576 bytes"))
        << world.report(rank).text;
  }
}

// The memory runs out at the n-th piece that is committed: in creation, or in a call that opens
// lanes. No rank touches what is not there.
TEST_P(ResourcesTest, Row17_SharedMemoryRunsOutAtAnyPiece) {
  ForRow("17");
  for (uint64_t piece = 1; piece <= 5; ++piece) {
    SCOPED_TRACE(piece);
    ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
      if (side.rank() == kVictim) {
        interposer::Arm({interposer::kFallocate, piece, UINT64_MAX, ENOSPC});
      }
      const int code = JoinSumDestroy(side);
      interposer::Disarm();
      return code;
    });
    world.ExpectAllExited();
    Report& victim = world.report(kVictim);
    if (victim.result == CCL_SUCCESS) {
      EXPECT_GT(piece, 2u);
      continue;
    }
    EXPECT_EQ(victim.result, CCL_SYSTEM_ERROR) << victim.text;
    EXPECT_TRUE(Matches(victim.text, "no memory for [0-9]+ bytes.*errno 28")) << victim.text;
    for (const int rank : {0, 2}) {
      const int result = world.report(rank).result;
      EXPECT_TRUE(result == CCL_SYSTEM_ERROR || result == CCL_REMOTE_ERROR || result == CCL_TIMEOUT)
          << world.report(rank).text;
      EXPECT_TRUE(Matches(world.report(rank).text, "rank 1|peer 1@")) << world.report(rank).text;
    }
  }
}

// No memory from the n-th piece on that calls commit: lanes go on with the slots that they have, if
// these are enough; else the call fails on every rank.
TEST_P(ResourcesTest, Row17_LanesGoOnWithTheSlotsThatTheyHave) {
  ForRow("17");
  const ScopedEnv env(
      {{"INCCL_ALGO", "ring"}, {"INCCL_SLICE_BYTES", "65536"}, {"INCCL_CHANNELS", "8"}});
  int went_on = 0;
  for (uint64_t piece = 1; piece <= 24; piece += 4) {
    SCOPED_TRACE(piece);
    ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 11;
      if (side.rank() == kVictim) {
        interposer::Arm({interposer::kFallocate, piece, UINT64_MAX, ENOSPC});
      }
      for (int call = 0; call < 5 && side.mine().result == CCL_SUCCESS; ++call) {
        side.mine().result = Sum(comm, 500'000);
      }
      side.mine().counters[0] = interposer::Calls(interposer::kFallocate);
      interposer::Disarm();
      side.mine().SetText(ccl_get_last_error(comm));
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
    world.ExpectAllExited();
    Report& victim = world.report(kVictim);
    if (victim.result == CCL_SUCCESS) {
      went_on += victim.counters[0] >= piece ? 1 : 0;
      continue;
    }
    EXPECT_EQ(victim.result, CCL_SYSTEM_ERROR) << victim.text;
    EXPECT_TRUE(Matches(victim.text, "no memory for [0-9]+ bytes.*errno 28")) << victim.text;
    for (const int rank : {0, 2}) {
      EXPECT_NE(world.report(rank).result, CCL_SUCCESS);
      EXPECT_TRUE(Matches(world.report(rank).text, "rank 1|peer 1@")) << world.report(rank).text;
    }
  }
  RecordProperty("went_on", went_on);  // how many slots are used at once depends on timing
}

TEST_P(ResourcesTest, Row17_NoMemfdAtAll) {
  ForRow("17");
  for (const int error : {EMFILE, ENOSYS, EPERM}) {
    ProcessWorld world({.nranks = 2}, [&](const Side& side) {
      if (side.rank() == 1) interposer::Arm({interposer::kMemfdCreate, 1, UINT64_MAX, error});
      const int code = JoinSumDestroy(side);
      interposer::Disarm();
      return code;
    });
    world.ExpectAllExited();
    for (const int rank : {0, 1}) {
      Report& report = world.report(rank);
      EXPECT_EQ(report.result, CCL_SYSTEM_ERROR) << report.text;
      EXPECT_TRUE(
          Matches(report.text, fmt::format("memfd_create of [0-9]+ bytes.*errno {}", error)))
          << report.text;
    }
  }
}

TEST_P(ResourcesTest, Row17_ASmallDevShmDoesNotMatter) {
  ForRow("17");
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    side.mine().stage = 1;
    if (unshare(CLONE_NEWNS) != 0) return 77;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0) {
      return 77;
    }
    return JoinSumDestroy(side);
  });
  const std::vector<RankEnd>& ends = world.Wait();
  if (ends[0].Exited(77)) GTEST_SKIP() << "needs to be root to mount a small /dev/shm";
  world.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
  }
}
INSTANTIATE_OVER_SHM(ResourcesTest);

}  // namespace
}  // namespace inccl::test
