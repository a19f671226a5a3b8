// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_BASE_MAX_RANKS_H_
#define INCCL_BASE_MAX_RANKS_H_

namespace inccl {

// The most ranks of a communicator.
inline constexpr int kMaxRanks = 4096;

}  // namespace inccl

#endif  // INCCL_BASE_MAX_RANKS_H_
