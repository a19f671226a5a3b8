// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads of one process.
#ifndef INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_
#define INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

struct LoopbackOptions {
  // Address space reserved per rank; memory is taken as lanes open.
  size_t arena_bytes = size_t{1} << 30;
  // Of it, what can be used from the beginning.
  size_t commit_ahead = 0;
};

// The ends of all ranks, each to be used by one thread. Their memory lives until the last end is
// destroyed. Empty if nranks < 1 or there is not enough address space.
std::vector<std::unique_ptr<Transport>> MakeLoopback(int nranks,
                                                     const LoopbackOptions& options = {});

}  // namespace inccl

#endif  // INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_
