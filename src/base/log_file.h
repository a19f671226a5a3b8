// SPDX-License-Identifier: Apache-2.0
//
// Opens the log file.
#ifndef INCCL_BASE_LOG_FILE_H_
#define INCCL_BASE_LOG_FILE_H_

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace inccl {

// "" if the name has a % only in %h, the host's name, %p, the process id, and %%, a %; else what it
// is instead.
std::string CheckLogFileName(std::string_view name);

// Opens a file for appending, or creates it with mode 0600. Returns kSystemError, naming the file,
// unless it is a regular file of this user with one link: the log must not follow a link or file
// that another user has put there. Does not block if the name is a pipe.
Result<UniqueFd> OpenLogFile(const std::string& name);

}  // namespace inccl

#endif  // INCCL_BASE_LOG_FILE_H_
