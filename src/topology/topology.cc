// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace inccl {
namespace {

// The first line of a file; "" if there is none.
std::string Line(const std::string& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

CpuSet List(const std::string& file) {
  Result<CpuSet> cpus = ParseCpuList(Line(file));
  return cpus.ok() ? *std::move(cpus) : CpuSet{};
}

// "32K", "36608K"
uint64_t CacheBytes(const std::string& text) {
  std::istringstream in(text);
  uint64_t number = 0;
  char unit = 0;
  if (!(in >> number)) return 0;
  in >> unit;
  return unit == 'K' ? number << 10 : unit == 'M' ? number << 20 : number;
}

std::string TypeName(const std::string& type) {
  if (type == "Data") return "data";
  return type == "Instruction" ? "instruction" : "unified";
}

// "Node 0 MemTotal:       32859432 kB"
uint64_t NodeMemory(const std::string& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("MemTotal:");
    if (at != line.npos) return std::strtoull(line.c_str() + at + 9, nullptr, 10) << 10;
  }
  return 0;
}

void ReadCpus(const std::string& directory, Topology* topology) {
  std::set<std::string> packages, cores;
  std::set<std::tuple<int, std::string, std::string, uint64_t>> caches;  // one entry per cache
  for (const int cpu : topology->cpus) {
    const std::string at = fmt::format("{}/cpu/cpu{}", directory, cpu);
    packages.insert(Line(at + "/topology/physical_package_id"));
    cores.insert(Line(at + "/topology/thread_siblings_list"));
    for (int i = 0;; ++i) {
      const std::string cache = fmt::format("{}/cache/index{}", at, i);
      const std::string level = Line(cache + "/level");
      if (level.empty()) break;
      std::string shared = Line(cache + "/shared_cpu_list");
      if (shared.empty()) shared = std::to_string(cpu);
      caches.emplace(std::atoi(level.c_str()), TypeName(Line(cache + "/type")), shared,
                     CacheBytes(Line(cache + "/size")));
    }
  }
  packages.erase("");
  cores.erase("");
  topology->packages = static_cast<int>(packages.size());
  topology->cores = static_cast<int>(cores.size());
  std::map<std::tuple<int, std::string, uint64_t>, int> counts;
  for (const auto& [level, type, shared, bytes] : caches) ++counts[{level, type, bytes}];
  for (const auto& [key, count] : counts) {
    const auto& [level, type, bytes] = key;
    topology->caches.push_back({level, type, bytes, count});
  }
}

}  // namespace

Topology SysfsTopology(const std::string& root) {
  Topology topology;
  topology.source = "sysfs";
  const std::string directory = root + "/sys/devices/system";
  topology.cpus = List(directory + "/cpu/online");
  ReadCpus(directory, &topology);
  for (const int id : List(directory + "/node/online")) {
    const std::string node = fmt::format("{}/node/node{}", directory, id);
    topology.nodes.push_back({id, List(node + "/cpulist"), NodeMemory(node + "/meminfo")});
  }
  return topology;
}

Topology ReadTopology() {
  std::optional<Topology> from_hwloc = HwlocTopology();
  return from_hwloc ? *std::move(from_hwloc) : SysfsTopology();
}

}  // namespace inccl
