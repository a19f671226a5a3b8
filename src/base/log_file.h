// SPDX-License-Identifier: Apache-2.0
//
// Where the log goes.
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

// Gets each line in place of the file or stderr: its level ("WARN") and its text, escaped. nullptr:
// none. Any thread.
using LogFunction = void (*)(const char* level, const char* text);
void SetLogFunction(LogFunction function);

}  // namespace inccl

#endif  // INCCL_BASE_LOG_FILE_H_
