// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_INIT_THREAD_TRANSPORTS_H_
#define INCCL_INIT_THREAD_TRANSPORTS_H_

#include <memory>
#include <vector>

#include "base/status.h"
#include "config/variables.h"
#include "transport/transport.h"

namespace inccl {

// Makes the transports of all ranks of one process: the first of INCCL_TRANSPORT (default:
// loopback) that can be made. `for_device`: commits the slots for calls on device memory at once.
Result<std::vector<std::unique_ptr<Transport>>> MakeThreadTransports(int nranks,
                                                                     const Environment& environment,
                                                                     bool for_device = false);

}  // namespace inccl

#endif  // INCCL_INIT_THREAD_TRANSPORTS_H_
