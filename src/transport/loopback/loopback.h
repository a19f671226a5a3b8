// SPDX-License-Identifier: Apache-2.0
//
// The transport between ranks that are threads of one process.
#ifndef INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_
#define INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

struct LoopbackOptions {
  // Address space reserved per rank; memory is committed as lanes open.
  size_t arena_bytes = size_t{1} << 30;
  // Bytes of it to commit at creation.
  size_t commit_ahead = 0;
};

// Returns the ends of all ranks; one thread uses each. Their memory lives until the last end is
// destroyed. The result is empty if nranks < 1 or if there is not enough address space.
std::vector<std::unique_ptr<Transport>> MakeLoopback(int nranks,
                                                     const LoopbackOptions& options = {});

}  // namespace inccl

#endif  // INCCL_TRANSPORT_LOOPBACK_LOOPBACK_H_
