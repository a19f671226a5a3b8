// SPDX-License-Identifier: Apache-2.0
//
// How messages name this rank and its communicator.
#ifndef INCCL_BASE_RANK_NAME_H_
#define INCCL_BASE_RANK_NAME_H_

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace inccl {

// "rank 1/4"; with the name that ccl_config_t has for the communicator: rank 1/4 of "gradients".
inline std::string RankName(int rank, int nranks, const std::string& comm_name) {
  return comm_name.empty() ? fmt::format("rank {}/{}", rank, nranks)
                           : fmt::format("rank {}/{} of \"{}\"", rank, nranks, comm_name);
}

// An error that begins with "rank 1/4", from code that does not know the communicator's name, with
// the name added.
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
