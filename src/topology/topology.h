// SPDX-License-Identifier: Apache-2.0
//
// Reads the machine's topology: from hwloc if built with it, else from /sys.
#ifndef INCCL_TOPOLOGY_TOPOLOGY_H_
#define INCCL_TOPOLOGY_TOPOLOGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/processors.h"

namespace inccl {

// A zero or an empty set means unknown.
struct Topology {
  struct Cache {
    int level = 0;
    std::string type;    // "data", "instruction", "unified"
    uint64_t bytes = 0;  // of one cache
    int count = 0;
  };
  struct Node {
    int id = 0;
    CpuSet cpus;
    uint64_t memory_bytes = 0;
  };
  std::string source;  // "hwloc 2.8", "sysfs"
  int packages = 0;
  int cores = 0;
  CpuSet cpus;  // logical processors that are online, allowed or not
  std::vector<Node> nodes;
  std::vector<Cache> caches;  // by level, then type
};

// Takes milliseconds with hwloc, so calls must not use it.
Topology ReadTopology();

// From /sys below `root`.
Topology SysfsTopology(const std::string& root = "");
// Returns nullopt if built without hwloc or if hwloc finds nothing.
std::optional<Topology> HwlocTopology();
// The version of hwloc's interface, e.g. "2.8"; "" if built without hwloc.
std::string HwlocVersion();

}  // namespace inccl

#endif  // INCCL_TOPOLOGY_TOPOLOGY_H_
