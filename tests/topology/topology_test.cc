// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace inccl::test {
namespace {

class SysfsTest : public ::testing::Test {
 protected:
  SysfsTest() {
    std::string name = ::testing::TempDir() + "inccl-sysfs-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~SysfsTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ + "/sys/devices/system/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  // Two packages with two cores of two threads each; numbered as Linux does: siblings last.
  void WriteMachine() const {
    Write("cpu/online", "0-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const int core = cpu % 4;
      const std::string at = "cpu/cpu" + std::to_string(cpu);
      const std::string siblings = std::to_string(core) + "," + std::to_string(core + 4);
      const std::string package = core < 2 ? "0-1,4-5" : "2-3,6-7";
      Write(at + "/topology/physical_package_id", std::to_string(core / 2));
      Write(at + "/topology/thread_siblings_list", siblings);
      const char* const caches[3][3] = {
          {"1", "Data", "48K"}, {"1", "Instruction", "32K"}, {"3", "Unified", "36608K"}};
      for (int i = 0; i < 3; ++i) {
        const std::string cache = at + "/cache/index" + std::to_string(i);
        Write(cache + "/level", caches[i][0]);
        Write(cache + "/type", caches[i][1]);
        Write(cache + "/size", caches[i][2]);
        Write(cache + "/shared_cpu_list", i == 2 ? package : siblings);
      }
    }
    Write("node/online", "0,2");
    Write("node/node0/cpulist", "0-1,4-5");
    Write("node/node2/cpulist", "2-3,6-7");
    Write("node/node0/meminfo", "Node 0 MemFree: 1 kB\nNode 0 MemTotal:       1024 kB");
    Write("node/node2/meminfo", "Node 2 MemTotal:  2048 kB");
  }
  std::string root_;
};

TEST_F(SysfsTest, AMachine) {
  WriteMachine();
  const Topology topology = SysfsTopology(root_);
  EXPECT_EQ(topology.source, "sysfs");
  EXPECT_EQ(topology.packages, 2);
  EXPECT_EQ(topology.cores, 4);
  EXPECT_EQ(FormatCpuList(topology.cpus), "0-7");
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[0].id, 0);
  EXPECT_EQ(topology.nodes[0].memory_bytes, 1u << 20);
  EXPECT_EQ(topology.nodes[1].id, 2);
  EXPECT_EQ(FormatCpuList(topology.nodes[1].cpus), "2-3,6-7");
  EXPECT_EQ(topology.nodes[1].memory_bytes, 2u << 20);
  ASSERT_EQ(topology.caches.size(), 3u);
  EXPECT_EQ(topology.caches[0].type, "data");
  EXPECT_EQ(topology.caches[0].count, 4);
  EXPECT_EQ(topology.caches[0].bytes, 48u << 10);
  EXPECT_EQ(topology.caches[1].type, "instruction");
  EXPECT_EQ(topology.caches[2].level, 3);
  EXPECT_EQ(topology.caches[2].count, 2);
  EXPECT_EQ(topology.caches[2].bytes, 36608u << 10);
}

TEST_F(SysfsTest, AnOfflineProcessorDoesNotCount) {
  WriteMachine();
  Write("cpu/online", "0-1,4-5");
  const Topology topology = SysfsTopology(root_);
  EXPECT_EQ(topology.packages, 1);
  EXPECT_EQ(topology.cores, 2);
}

TEST_F(SysfsTest, WhatIsNotThereIsZero) {
  const Topology nothing = SysfsTopology(root_);
  EXPECT_EQ(nothing.packages, 0);
  EXPECT_EQ(nothing.cores, 0);
  EXPECT_TRUE(nothing.cpus.empty() && nothing.nodes.empty() && nothing.caches.empty());
  Write("cpu/online", "0-1");
  Write("node/online", "garbage");
  EXPECT_EQ(SysfsTopology(root_).cpus.size(), 2u);
  EXPECT_EQ(SysfsTopology(root_).cores, 0);
  EXPECT_TRUE(SysfsTopology(root_).nodes.empty());
}

TEST(HwlocTest, ASyntheticMachine) {
  if (HwlocVersion().empty()) GTEST_SKIP() << "built without hwloc";
  setenv("HWLOC_SYNTHETIC", "pack:2 numa:1(memory=1GB) l3:1(size=8MB) core:3 l1d:1 pu:2", 1);
  const std::optional<Topology> topology = HwlocTopology();
  unsetenv("HWLOC_SYNTHETIC");
  ASSERT_TRUE(topology.has_value());
  EXPECT_EQ(topology->source, "hwloc " + HwlocVersion());
  EXPECT_EQ(topology->packages, 2);
  EXPECT_EQ(topology->cores, 6);
  EXPECT_EQ(FormatCpuList(topology->cpus), "0-11");
  ASSERT_EQ(topology->nodes.size(), 2u);
  EXPECT_EQ(FormatCpuList(topology->nodes[1].cpus), "6-11");
  EXPECT_GT(topology->nodes[1].memory_bytes, 900u << 20);
  ASSERT_EQ(topology->caches.size(), 2u);
  EXPECT_EQ(topology->caches[0].count, 6);
  EXPECT_EQ(topology->caches[0].type, "data");
  EXPECT_EQ(topology->caches[1].level, 3);
  EXPECT_EQ(topology->caches[1].count, 2);
}

// Two ways to the same truth.
TEST(HwlocTest, AgreesWithSysfsAboutThisMachine) {
  const std::optional<Topology> hwloc = HwlocTopology();
  if (!hwloc) GTEST_SKIP() << "built without hwloc";
  const Topology sysfs = SysfsTopology();
  if (sysfs.cores == 0) GTEST_SKIP() << "/sys does not tell cores";
  EXPECT_EQ(hwloc->cpus, sysfs.cpus);
  EXPECT_EQ(hwloc->cores, sysfs.cores);
}

TEST(TopologyTest, ContainsWhatIsAllowed) {
  const Topology topology = ReadTopology();
  EXPECT_FALSE(topology.source.empty());
  if (topology.cpus.empty()) GTEST_SKIP() << "/sys does not tell processors";
  const std::set<int> all(topology.cpus.begin(), topology.cpus.end());
  for (const int cpu : AllowedCpus()) EXPECT_TRUE(all.count(cpu) == 1) << cpu;
}

}  // namespace
}  // namespace inccl::test
