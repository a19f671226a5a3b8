// SPDX-License-Identifier: Apache-2.0
//
// Makes communicators from a communicator: split and shrink.
#ifndef INCCL_INIT_SPLIT_SHRINK_H_
#define INCCL_INIT_SPLIT_SHRINK_H_

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "communicator/communicator.h"
#include "init/options.h"

namespace inccl {

// Returns nullptr for color -1. Collective over the parent.
Result<std::shared_ptr<Communicator>> Split(Communicator* parent, int color, int key,
                                            const InitOptions& options);

struct Shrunk {
  std::shared_ptr<Communicator> communicator;
  uint64_t last_completed = 0;  // operations of the parent that completed on every member
};
Result<Shrunk> Shrink(Communicator* parent, const RankSet& excluded, const InitOptions& options);

}  // namespace inccl

#endif  // INCCL_INIT_SPLIT_SHRINK_H_
