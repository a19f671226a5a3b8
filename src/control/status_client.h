// SPDX-License-Identifier: Apache-2.0
//
// The client's side of status_server.h.
#ifndef INCCL_CONTROL_STATUS_CLIENT_H_
#define INCCL_CONTROL_STATUS_CLIENT_H_

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace inccl {

// The sockets in a directory of this user; those of processes that have ended are removed. Empty
// if there is no such directory.
std::vector<std::string> FindStatusSockets(const std::string& directory);

// Sends `request`, "local" or "all", and returns the answer. Returns kTimeout if the process does
// not answer (it is stopped), and kSystemError if it has ended.
Result<std::string> AskForStatus(const std::string& path, const std::string& request, Time limit);

}  // namespace inccl

#endif  // INCCL_CONTROL_STATUS_CLIENT_H_
