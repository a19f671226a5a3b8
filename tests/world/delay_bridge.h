// SPDX-License-Identifier: Apache-2.0
//
// A bridge with long cables, for kernels without netem: a process that passes frames between the
// ports of hosts, each after its time. It never reorders the frames of two hosts.
#ifndef INCCL_TESTS_WORLD_DELAY_BRIDGE_H_
#define INCCL_TESTS_WORLD_DELAY_BRIDGE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace inccl::test {

struct DelayBridgeOptions {
  int delay_ms = 0;  // one way
  int sites = 0;     // 0, or host h is on the site h % sites: frames inside a site take no time
};

// Opens the ports "port0", "port1", ... of this network namespace. Returns what failed; empty if
// nothing. The last byte of a host's hardware address is its number + 1.
std::string OpenPorts(int count, std::vector<int>* ports);
// Does not return.
[[noreturn]] void RunDelayBridge(const DelayBridgeOptions& options, const std::vector<int>& ports);

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_DELAY_BRIDGE_H_
