// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes on several hosts, which INCCL_HOSTID fakes on one machine.
#ifndef INCCL_TESTS_INTEGRATION_HOSTS_WORLD_H_
#define INCCL_TESTS_INTEGRATION_HOSTS_WORLD_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "inccl/ccl.h"
#include "world/process_world.h"

namespace inccl::test {

using HostsBody = std::function<void(const Side&, ccl_comm_t)>;

inline int Ranks(const std::string& hosts) { return static_cast<int>(hosts.size()); }
inline void SetHost(const std::string& hosts, int rank) {
  setenv("INCCL_HOSTID", hosts.substr(static_cast<size_t>(rank), 1).c_str(), 1);
}
// A process per letter of `hosts`, which is its host. `but`: ranks that end otherwise.
inline void RunHosts(const std::string& hosts, const HostsBody& body,
                     const std::vector<int>& but = {}) {
  ProcessWorld world({.nranks = Ranks(hosts), .deadline_seconds = 120.0 * kSlowness},
                     [&](const Side& side) {
                       SetHost(hosts, side.rank());
                       ccl_comm_t comm = nullptr;
                       if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                       body(side, comm);
                       return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
                     });
  world.ExpectAllExited(but);
}

// Memory that ranks and the test share.
class SharedFloats {
 public:
  explicit SharedFloats(size_t count)
      : bytes_(count * sizeof(float)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~SharedFloats() { munmap(data_, bytes_); }
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;
  float* data() { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_INTEGRATION_HOSTS_WORLD_H_
