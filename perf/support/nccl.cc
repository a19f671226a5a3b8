// SPDX-License-Identifier: Apache-2.0
#include "perf/support/nccl.h"

#include <fmt/format.h>

#include "perf/support/library.h"

namespace inccl::perf {

Result<Nccl> Nccl::Load(const std::string& file) {
  Result<Library> library = Library::Load(file.empty() ? "libnccl.so.2" : file);
  if (!library.ok()) return library.status();
  Nccl nccl{};
  library->Find("ncclGetVersion", &nccl.get_version);
  library->Find("ncclGetErrorString", &nccl.get_error_string);
  library->Find("ncclGetUniqueId", &nccl.get_unique_id);
  library->Find("ncclCommInitRank", &nccl.comm_init_rank);
  library->Find("ncclCommDestroy", &nccl.comm_destroy);
  library->Find("ncclAllReduce", &nccl.all_reduce);
  library->Find("ncclReduceScatter", &nccl.reduce_scatter);
  library->Find("ncclAllGather", &nccl.all_gather);
  library->Find("ncclBroadcast", &nccl.broadcast);
  library->Find("ncclReduce", &nccl.reduce);
  library->Find("ncclSend", &nccl.send);
  library->Find("ncclRecv", &nccl.recv);
  library->Find("ncclGroupStart", &nccl.group_start);
  library->Find("ncclGroupEnd", &nccl.group_end);
  if (Status s = library->status(); !s.ok()) return s;
  return nccl;
}

std::string Nccl::Version() const {
  int version = 0;
  if (get_version(&version) != 0) return "unknown";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status Nccl::Check(int result, const char* call) const {
  if (result == 0) return {};
  return SystemError(fmt::format("{}: {} ({})", call, get_error_string(result), result));
}

}  // namespace inccl::perf
