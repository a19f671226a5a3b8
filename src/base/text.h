// SPDX-License-Identifier: Apache-2.0
//
// Reads small text files, such as configuration files, as a whole; escapes untrusted text; names
// ranks in messages.
#ifndef INCCL_BASE_TEXT_H_
#define INCCL_BASE_TEXT_H_

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace inccl {

// Who may have written a file.
enum class TextFileWriters {
  kAnyUser,
  kThisUser,  // this user or root owns the file, and no other user may write to it
};

// Returns the content of the file at `path`. A file of more than `most_bytes` is kInvalidArgument;
// one that cannot be read is kSystemError with the errno in *error (else 0). Messages begin with
// `what` (e.g. "configuration file") and the path. Does not block if the name is a pipe. Fails with
// EPERM if users other than `writers` may have written the file; character devices, such as
// /dev/null, pass this check.
Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t most_bytes, int* error,
                                 TextFileWriters writers = TextFileWriters::kAnyUser);

// Escapes untrusted text for terminals, log files and error messages.

// Control characters (C0, DEL and C1, all of which terminals interpret) and bytes that are not part
// of well-formed UTF-8 become \xNN; all other text stays. Escaping twice changes nothing.
std::string Escaped(std::string_view text);

// How messages name a rank and its communicator.

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

#endif  // INCCL_BASE_TEXT_H_
