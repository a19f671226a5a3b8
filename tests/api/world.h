// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads and processes (world/world.h), and what can join them in this build.
#ifndef INCCL_TESTS_API_WORLD_H_
#define INCCL_TESTS_API_WORLD_H_

#include <cstdlib>
#include <vector>

#include "world/world.h"  // IWYU pragma: export

namespace inccl::test {

// Of ccl_comm_init_all.
inline std::vector<const char*> ThreadTransports() {
  if (INCCL_TEST_UCX != 0) return {"loopback", "shm", "ucx", "tcp"};
  return {"loopback", "shm", "tcp"};
}

// With INCCL_TEST_RDMA on a machine with an RDMA device: that alone.
inline std::vector<const char*> TransportSelections() {
  if (std::getenv("INCCL_TEST_RDMA") != nullptr) return {"verbs"};
  if (INCCL_TEST_UCX != 0) return {"shm", "ucx", "tcp"};
  return {"shm", "tcp"};
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_WORLD_H_
