// SPDX-License-Identifier: Apache-2.0
#include "topology/processors.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(CpuListTest, ParsesWhatTheKernelWrites) {
  const std::pair<const char*, CpuSet> lists[] = {
      {"", {}},
      {"\n", {}},
      {"0\n", {0}},
      {"0-3", {0, 1, 2, 3}},
      {"0,2-3,9", {0, 2, 3, 9}},
      {"3,1,1-2", {1, 2, 3}},
      {"3-3", {3}},
  };
  for (const auto& [text, cpus] : lists) {
    const Result<CpuSet> parsed = ParseCpuList(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, cpus) << text;
  }
  for (const char* text :
       {"a", "1,", ",1", "1-", "3-1", "-1", "1;2", "1-2-3", "99999999999", "0-99999999", "1 2"}) {
    const Result<CpuSet> parsed = ParseCpuList(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(text), std::string::npos);
  }
}

TEST(CpuListTest, WritesWhatItParses) {
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatCpuList({5}), "5");
  EXPECT_EQ(FormatCpuList({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
}

class ScopedAffinity {
 public:
  ScopedAffinity() { EXPECT_EQ(sched_getaffinity(0, sizeof old_, &old_), 0); }
  ~ScopedAffinity() { sched_setaffinity(0, sizeof old_, &old_); }
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;
  static bool Bind(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }

 private:
  cpu_set_t old_;
};

TEST(CpusTest, TheAffinityMaskCounts) {
  const CpuSet all = AllowedCpus();
  ASSERT_FALSE(all.empty());
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(all.size(), static_cast<size_t>(CPU_COUNT(&mask)));
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), CPU_COUNT(&mask));
  const ScopedAffinity restore;
  ASSERT_TRUE(ScopedAffinity::Bind(all.back()));
  EXPECT_EQ(AllowedCpus(), CpuSet{all.back()});
  EXPECT_EQ(UsableCores(), 1);
  EXPECT_EQ(AllowedCpus(getpid()), CpuSet{all.back()});
}

TEST(CpusTest, QuotaAndMask) {
  EXPECT_EQ(UsableCores({}, 0), 1);
  EXPECT_EQ(UsableCores({0, 1, 2, 3}, 0), 4);
  EXPECT_EQ(UsableCores({0, 1, 2, 3}, 2), 2);
  EXPECT_EQ(UsableCores({0, 1, 2, 3}, 2.5), 3);
  EXPECT_EQ(UsableCores({0, 1, 2, 3}, 0.1), 1);
  EXPECT_EQ(UsableCores({0, 1}, 64), 2);
}

// A tree of files that stands for /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = ::testing::TempDir() + "inccl-root-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(root_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  double Quota() const { return CpuQuota(root_); }

 private:
  std::string root_;
};

TEST(CpuQuotaTest, VersionTwoTakesTheLeastOfAllParents) {
  const FakeRoot root;
  EXPECT_EQ(root.Quota(), 0);
  root.Write("/proc/self/cgroup", "0::/a/b/c\n");
  EXPECT_EQ(root.Quota(), 0);
  root.Write("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  EXPECT_EQ(root.Quota(), 0);
  root.Write("/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  EXPECT_EQ(root.Quota(), 2.5);
  root.Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(root.Quota(), 1);
  root.Write("/sys/fs/cgroup/a/cpu.max", "nonsense");
  EXPECT_EQ(root.Quota(), 1);
}

TEST(CpuQuotaTest, VersionOne) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup",
             "9:name=systemd:/x\n4:memory:/m\n3:cpuset:/x\n1:cpu,cpuacct:/x\n");
  root.Write("/sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "1\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.Quota(), 0);
  root.Write("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(root.Quota(), 3);
}

TEST(CpuQuotaTest, APathFromOutside) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/../../other\n");
  root.Write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(root.Quota(), 4);
}

TEST(EnoughCoresTest, KnownCases) {
  const CpuSet both = {0, 1};
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{}, 0));
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{both, both}, 0));
  EXPECT_FALSE(EnoughCores(std::vector<CpuSet>{both, both, both}, 0));
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{{0}, {1}, {2}}, 0));  // bound by the launcher
  EXPECT_FALSE(EnoughCores(std::vector<CpuSet>{{0}, {0}}, 0));
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{both, {0}}, 0));  // the first must move
  EXPECT_FALSE(EnoughCores(std::vector<CpuSet>{both, {0}, {1}}, 0));
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{both, {}, {}}, 0));
  EXPECT_TRUE(EnoughCores(std::vector<CpuSet>{both, both}, 1.5));
  EXPECT_FALSE(EnoughCores(std::vector<CpuSet>{both, both}, 1));
}

// Hall's condition: every group of ranks may use at least as many processors as it has members.
TEST(EnoughCoresTest, AgreesWithHallsCondition) {
  Rng rng(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    const size_t n = 1 + rng.Below(6);
    std::vector<CpuSet> ranks(n);
    for (CpuSet& rank : ranks) {
      for (int cpu = 0; cpu < 6; ++cpu) {
        if (rng.Below(3) == 0) rank.push_back(cpu);
      }
      if (rank.empty()) rank.push_back(static_cast<int>(rng.Below(6)));
    }
    bool hall = true;
    for (unsigned group = 1; group < 1u << n; ++group) {
      unsigned members = 0, cpus = 0;
      for (size_t rank = 0; rank < n; ++rank) {
        if ((group >> rank & 1) == 0) continue;
        ++members;
        for (const int cpu : ranks[rank]) cpus |= 1u << cpu;
      }
      hall &= members <= static_cast<unsigned>(__builtin_popcount(cpus));
    }
    ASSERT_EQ(EnoughCores(ranks, 0), hall) << "round " << round;
  }
}

TEST(EnoughCoresTest, OfProcesses) {
  const CpuSet all = AllowedCpus();
  const std::vector<pid_t> too_many(all.size() + 1, getpid());
  EXPECT_FALSE(EnoughCores(too_many));
  EXPECT_TRUE(EnoughCores(std::vector<pid_t>{getpid()}));
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    const bool bound = ScopedAffinity::Bind(all.front());
    if (write(ready[1], &byte, 1) != 1) _exit(2);
    close(go[1]);
    if (read(go[0], &byte, 1) < 0) _exit(3);
    _exit(bound ? 0 : 1);
  }
  close(go[0]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(AllowedCpus(child), CpuSet{all.front()});
  EXPECT_FALSE(EnoughCores(std::vector<pid_t>{child, child}));
  {
    const ScopedAffinity restore;
    ASSERT_TRUE(ScopedAffinity::Bind(all.front()));
    EXPECT_FALSE(EnoughCores(std::vector<pid_t>{child, getpid()}));
    if (all.size() > 1 && CpuQuota() == 0) {
      ASSERT_TRUE(ScopedAffinity::Bind(all.back()));
      EXPECT_TRUE(EnoughCores(std::vector<pid_t>{child, getpid()}));
    }
  }
  close(go[1]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(AllowedCpus(child), CpuSet{});  // it is gone
}

}  // namespace
}  // namespace inccl::test
