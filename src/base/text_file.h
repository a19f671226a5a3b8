// SPDX-License-Identifier: Apache-2.0
//
// Small files that people write: read whole.
#ifndef INCCL_BASE_TEXT_FILE_H_
#define INCCL_BASE_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "base/status.h"

namespace inccl {

// Who may have written a file that is read.
enum class TextFileWriters {
  kAnybody,
  kThisUser,  // and root: the file is theirs, and nobody else may write to it
};

// The content of the file at `path`, up to `most_bytes`; longer ones are kInvalidArgument, others
// that cannot be read kSystemError, with the number in `*error` (else 0). Messages begin with
// `what` ("configuration file") and the path. Never waits for anybody, should the name be that of a
// pipe. A file that others than `writers` may have written is not read: EPERM. Character devices,
// such as /dev/null, hold nothing that somebody has written.
Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t most_bytes, int* error,
                                 TextFileWriters writers = TextFileWriters::kAnybody);

}  // namespace inccl

#endif  // INCCL_BASE_TEXT_FILE_H_
