// SPDX-License-Identifier: Apache-2.0
//
// Makes communicators from resolved options: for ranks that are processes or threads and meet by an
// id or through their launcher, and for all ranks of one process at once.
#ifndef INCCL_INIT_JOIN_H_
#define INCCL_INIT_JOIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/cancel.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "communicator/communicator.h"
#include "init/options.h"

namespace inccl {

// One of the functions of bootstrap/bootstrap.h.
using JoinFunction = std::function<Result<Mesh>(const JoinOptions&)>;

Result<std::shared_ptr<Communicator>> JoinProcesses(int nranks, int rank,
                                                    const InitOptions& options,
                                                    const JoinFunction& join,
                                                    const Cancel& cancelled);

// Makes all ranks of a communicator in this process.
Result<std::vector<std::shared_ptr<Communicator>>> MakeThreads(int nranks,
                                                               const InitOptions& options);

// Makes communicators from a communicator: split, shrink and grow.

// Returns nullptr for color -1. Collective over the parent.
Result<std::shared_ptr<Communicator>> Split(Communicator* parent, int color, int key,
                                            const InitOptions& options);

Result<std::shared_ptr<Communicator>> Shrink(Communicator* parent, const RankSet& excluded,
                                             const InitOptions& options);

// The part of a member of the parent; the others join with JoinWithId. The members' ranks and their
// id may differ in that some have none: who has no id (nullptr) gets it from who has.
Result<std::shared_ptr<Communicator>> Grow(Communicator* parent, int nranks, const UniqueId* id,
                                           int rank, const InitOptions& options);

}  // namespace inccl

#endif  // INCCL_INIT_JOIN_H_
