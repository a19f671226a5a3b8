// SPDX-License-Identifier: Apache-2.0
//
// How messages name a rank and its communicator.
#ifndef INCCL_BASE_RANK_NAME_H_
#define INCCL_BASE_RANK_NAME_H_

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace inccl {

// "rank 1/4", or with the communicator's name from ccl_config_t: rank 1/4 of "gradients".
inline std::string RankName(int rank, int nranks, const std::string& comm_name) {
  return comm_name.empty() ? fmt::format("rank {}/{}", rank, nranks)
                           : fmt::format("rank {}/{} of \"{}\"", rank, nranks, comm_name);
}

// Adds the communicator's name to an error that begins with "rank 1/4".
inline Status WithCommName(const Status& status, int rank, int nranks,
                           const std::string& comm_name) {
  const std::string bare = RankName(rank, nranks, "");
  if (comm_name.empty() || !status.message().starts_with(bare)) return status;
  const std::string named = RankName(rank, nranks, comm_name);
  if (status.message().starts_with(named)) return status;
  return {status.code(), named + status.message().substr(bare.size())};
}

}  // namespace inccl

#endif  // INCCL_BASE_RANK_NAME_H_
