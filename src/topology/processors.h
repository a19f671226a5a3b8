// SPDX-License-Identifier: Apache-2.0
//
// The processors that this process may use. They decide whether waiting ranks may spin.
#ifndef INCCL_TOPOLOGY_PROCESSORS_H_
#define INCCL_TOPOLOGY_PROCESSORS_H_

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inccl {

// Numbers of logical processors, ascending.
using CpuSet = std::vector<int>;
// Parses the kernel's format, e.g. "0-3,8". Any other text is kInvalidArgument.
Result<CpuSet> ParseCpuList(std::string_view text);
std::string FormatCpuList(const CpuSet& cpus);

// The affinity mask of a process (0: of the calling thread), which includes cpusets of cgroups.
// Empty if the kernel does not report it.
CpuSet AllowedCpus(pid_t pid = 0);

// The NUMA nodes of these processors; none if they are on every node of the machine, or if the
// kernel does not report nodes. `root` as below.
std::vector<int> BoundNodes(const CpuSet& cpus, const std::string& root = "");

// The CPU quota of this process's cgroups, in processors; 0: no limit. `root` is a prefix of all
// paths, for tests.
double CpuQuota(const std::string& root = "");

// The number of processors that this process can keep busy at once: the allowed ones, limited by
// the quota rounded up; at least 1.
int UsableCores();
int UsableCores(const CpuSet& allowed, double quota);

// True if ranks with these masks can all run at once, each on its own processor. One entry per
// rank; an empty set means any processor.
bool EnoughCores(std::span<const CpuSet> ranks, double quota);
// The same for ranks in processes of this host; a process with several ranks occurs several times.
// A process whose mask cannot be read counts as having the caller's mask.
bool EnoughCores(std::span<const pid_t> pids);

}  // namespace inccl

#endif  // INCCL_TOPOLOGY_PROCESSORS_H_
