// SPDX-License-Identifier: Apache-2.0
//
// Which processors this process may use: what decides whether waiting ranks may keep theirs busy.
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
// "0-3,8", as the kernel writes them. kInvalidArgument for any other text.
Result<CpuSet> ParseCpuList(std::string_view text);
std::string FormatCpuList(const CpuSet& cpus);

// What the affinity mask of a process (0: of the calling thread) allows; cpusets of cgroups are
// part of it. Empty if the kernel does not say.
CpuSet AllowedCpus(pid_t pid = 0);

// Processor time per time that the cgroups of this process grant, in processors; 0: no limit.
// `root` is put before all paths, for tests.
double CpuQuota(const std::string& root = "");

// Processors that this process can keep busy at once: what it is allowed, not more than its quota
// rounded up; at least 1.
int UsableCores();
int UsableCores(const CpuSet& allowed, double quota);

// Whether ranks with these masks can all run at once, each on a processor of its own. One entry per
// rank; an empty set may run anywhere.
bool EnoughCores(std::span<const CpuSet> ranks, double quota);
// The same of processes of this host (threads of a process: its id as often). A process that cannot
// be asked counts as having the caller's mask.
bool EnoughCores(std::span<const pid_t> pids);

}  // namespace inccl

#endif  // INCCL_TOPOLOGY_PROCESSORS_H_
