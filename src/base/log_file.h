// SPDX-License-Identifier: Apache-2.0
//
// Opens the file that the log is appended to.
#ifndef INCCL_BASE_LOG_FILE_H_
#define INCCL_BASE_LOG_FILE_H_

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace inccl {

// For appending; made with mode 0600 if it is not there. kSystemError naming the file unless it is
// a regular file of this user with no second name: a log must not follow what another user has put
// in its place. Never waits, should the name be that of a pipe.
Result<UniqueFd> OpenLogFile(const std::string& name);

}  // namespace inccl

#endif  // INCCL_BASE_LOG_FILE_H_
