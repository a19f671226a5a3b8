// SPDX-License-Identifier: Apache-2.0
//
// The only file that uses hwloc.
#include "topology/topology.h"

#ifdef INCCL_HAVE_HWLOC

#include <fmt/format.h>
#include <hwloc.h>

#include <map>
#include <memory>
#include <tuple>

namespace inccl {
namespace {

CpuSet SetOf(hwloc_const_bitmap_t bitmap) {
  CpuSet cpus;
  if (hwloc_bitmap_weight(bitmap) < 0) return cpus;  // infinite means unknown
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

int Count(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return count < 0 ? 0 : count;
}

const char* TypeName(hwloc_obj_cache_type_t type) {
  switch (type) {
    case HWLOC_OBJ_CACHE_DATA: return "data";
    case HWLOC_OBJ_CACHE_INSTRUCTION: return "instruction";
    case HWLOC_OBJ_CACHE_UNIFIED: return "unified";
  }
  return "unified";
}

Topology Read(hwloc_topology_t from) {
  Topology topology;
  topology.source = "hwloc " + HwlocVersion();
  topology.packages = Count(from, HWLOC_OBJ_PACKAGE);
  topology.cores = Count(from, HWLOC_OBJ_CORE);
  topology.cpus = SetOf(hwloc_topology_get_topology_cpuset(from));
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(from, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    topology.nodes.push_back(
        {static_cast<int>(node->os_index), SetOf(node->cpuset), node->attr->numanode.local_memory});
  }
  std::map<std::tuple<int, std::string, uint64_t>, int> counts;
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE,
        HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L1ICACHE, HWLOC_OBJ_L2ICACHE, HWLOC_OBJ_L3ICACHE}) {
    for (hwloc_obj_t cache = nullptr;
         (cache = hwloc_get_next_obj_by_type(from, type, cache)) != nullptr;) {
      const auto& attributes = cache->attr->cache;
      ++counts[{static_cast<int>(attributes.depth), TypeName(attributes.type), attributes.size}];
    }
  }
  for (const auto& [key, count] : counts) {
    const auto& [level, type, bytes] = key;
    topology.caches.push_back({level, type, bytes, count});
  }
  return topology;
}

}  // namespace

std::optional<Topology> HwlocTopology() {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return std::nullopt;
  const std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, void (*)(hwloc_topology_t)> owner(
      made, hwloc_topology_destroy);
  // The whole machine, not only the part that this process may use.
  if (hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0 ||
      hwloc_topology_set_icache_types_filter(made, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_load(made) != 0) {
    return std::nullopt;
  }
  return Read(made);
}

std::string HwlocVersion() {
  const unsigned version = hwloc_get_api_version();
  return fmt::format("{}.{}", version >> 16, version >> 8 & 0xFF);
}

}  // namespace inccl

#else

namespace inccl {
std::optional<Topology> HwlocTopology() { return std::nullopt; }
std::string HwlocVersion() { return ""; }
}  // namespace inccl

#endif  // INCCL_HAVE_HWLOC
