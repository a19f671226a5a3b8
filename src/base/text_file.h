// SPDX-License-Identifier: Apache-2.0
//
// Small files that people write: read whole.
#ifndef INCCL_BASE_TEXT_FILE_H_
#define INCCL_BASE_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "base/status.h"

namespace inccl {

// The content of the file at `path`, up to `most_bytes`; longer ones are kInvalidArgument, others
// that cannot be read kSystemError, with the number in `*error` (else 0). Messages begin with
// `what` ("configuration file") and the path. Never waits for anybody, should the name be that of a
// pipe.
Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t most_bytes, int* error);

}  // namespace inccl

#endif  // INCCL_BASE_TEXT_FILE_H_
