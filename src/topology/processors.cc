// SPDX-License-Identifier: Apache-2.0
#include "topology/processors.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>

namespace inccl {
namespace {

constexpr int kMostCpus = 1 << 20;

// Removes a number from the start of *text.
bool TakeNumber(std::string_view* text, int* number) {
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0 || *number >= kMostCpus) return false;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return true;
}

// Finds a processor for `rank`, moving other ranks to alternatives (an augmenting path of a
// bipartite matching).
bool Place(size_t rank, std::span<const CpuSet> ranks, std::map<int, size_t>* owner,
           std::vector<bool>* tried) {
  (*tried)[rank] = true;
  for (const int cpu : ranks[rank]) {
    const auto found = owner->find(cpu);
    if (found == owner->end() ||
        (!(*tried)[found->second] && Place(found->second, ranks, owner, tried))) {
      (*owner)[cpu] = rank;
      return true;
    }
  }
  return false;
}

// The quota of one directory of a cgroup hierarchy in processors; 0: none.
double QuotaOf(const std::string& directory) {
  std::string quota;
  double granted = 0, period = 0;
  if (std::ifstream both(directory + "/cpu.max"); both >> quota >> period) {
    // "max" is not a number and means no limit.
    const auto [stop, error] = std::from_chars(quota.data(), quota.data() + quota.size(), granted);
    if (error != std::errc()) granted = 0;
  } else if (std::ifstream first(directory + "/cpu.cfs_quota_us"); first >> granted) {
    std::ifstream second(directory + "/cpu.cfs_period_us");
    second >> period;
  }
  return granted > 0 && period > 0 ? granted / period : 0;
}

}  // namespace

Result<CpuSet> ParseCpuList(std::string_view text) {
  const std::string whole(text);
  const auto wrong = [&] {
    return InvalidArgument(fmt::format("\"{}\" is no list of processors", whole));
  };
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  CpuSet cpus;
  while (!text.empty()) {
    int first = 0;
    if (!TakeNumber(&text, &first)) return wrong();
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!TakeNumber(&text, &last) || last < first) return wrong();
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return wrong();
    text.remove_prefix(1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string FormatCpuList(const CpuSet& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) text += fmt::format("-{}", cpus[end - 1]);
    i = end;
  }
  return text;
}

CpuSet AllowedCpus(pid_t pid) {
  // The kernel refuses a mask that is shorter than its own, so this tries longer ones.
  for (int count = 1024; count <= kMostCpus; count *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(static_cast<size_t>(count)), [](cpu_set_t* set) { CPU_FREE(set); });
    if (mask == nullptr) return {};
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    CPU_ZERO_S(bytes, mask.get());
    if (sched_getaffinity(pid, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    CpuSet cpus;
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

std::vector<int> BoundNodes(const CpuSet& cpus, const std::string& root) {
  const std::string nodes = root + "/sys/devices/system/node/";
  const auto read = [&](const std::string& name) {
    std::ifstream file(nodes + name);
    std::string line;
    std::getline(file, line);
    return ParseCpuList(line);
  };
  const Result<CpuSet> online = read("online");
  if (!online.ok()) return {};
  std::vector<int> bound;
  for (const int node : *online) {
    const Result<CpuSet> there = read(fmt::format("node{}/cpulist", node));
    if (!there.ok()) return {};
    if (std::find_first_of(cpus.begin(), cpus.end(), there->begin(), there->end()) != cpus.end()) {
      bound.push_back(node);
    }
  }
  return bound.size() == online->size() ? std::vector<int>() : bound;
}

double CpuQuota(const std::string& root) {
  double least = 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.find("..") != path.npos) path = "/";  // outside the visible part of the hierarchy
    std::vector<std::string> mounts;
    if (controllers.empty()) {
      mounts = {"", "/unified"};
    } else if ((',' + controllers + ',').find(",cpu,") != std::string::npos) {
      mounts = {"/cpu", "/" + controllers};
    }
    // A group's quota also limits all groups below it.
    while (!path.empty()) {
      while (path.ends_with('/')) path.pop_back();
      for (const std::string& mount : mounts) {
        const double quota = QuotaOf(fmt::format("{}/sys/fs/cgroup{}{}", root, mount, path));
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
      }
      path.resize(path.empty() ? 0 : path.rfind('/') + 1);
    }
  }
  return least;
}

int UsableCores(const CpuSet& allowed, double quota) {
  const int cpus = std::max(1, static_cast<int>(allowed.size()));
  if (quota <= 0 || quota >= cpus) return cpus;
  return std::max(1, static_cast<int>(std::ceil(quota)));
}

int UsableCores() { return UsableCores(AllowedCpus(), CpuQuota()); }

bool EnoughCores(std::span<const CpuSet> ranks, double quota) {
  if (quota > 0 && static_cast<double>(ranks.size()) > std::ceil(quota)) return false;
  std::map<int, size_t> owner;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<bool> tried(ranks.size(), false);
    if (!ranks[rank].empty() && !Place(rank, ranks, &owner, &tried)) return false;
  }
  return true;
}

bool EnoughCores(std::span<const pid_t> pids) {
  std::vector<CpuSet> masks;
  for (const pid_t pid : pids) {
    masks.push_back(AllowedCpus(pid));
    if (masks.back().empty()) masks.back() = AllowedCpus();
  }
  return EnoughCores(masks, CpuQuota());
}

}  // namespace inccl
