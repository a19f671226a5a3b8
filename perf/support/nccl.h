// SPDX-License-Identifier: Apache-2.0
//
// NCCL, loaded when it is asked for. Types and prototypes are those of NCCL's public C API, whose
// numbers of data types and reductions inccl shares.
#ifndef INCCL_PERF_SUPPORT_NCCL_H_
#define INCCL_PERF_SUPPORT_NCCL_H_

#include <cstddef>
#include <string>

#include "base/status.h"

namespace inccl::perf {

struct NcclUniqueId {
  char internal[128];
};

struct Nccl {
  using Comm = void*;

  int (*get_version)(int* version);
  const char* (*get_error_string)(int result);
  int (*get_unique_id)(NcclUniqueId* id);
  int (*comm_init_rank)(Comm* comm, int nranks, NcclUniqueId id, int rank);
  int (*comm_destroy)(Comm comm);
  int (*all_reduce)(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                    void* stream);
  int (*reduce_scatter)(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                        void* stream);
  int (*all_gather)(const void* send, void* recv, size_t count, int type, Comm comm, void* stream);
  int (*broadcast)(const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   void* stream);
  int (*reduce)(const void* send, void* recv, size_t count, int type, int op, int root, Comm comm,
                void* stream);
  int (*send)(const void* send, size_t count, int type, int peer, Comm comm, void* stream);
  int (*recv)(void* recv, size_t count, int type, int peer, Comm comm, void* stream);
  int (*group_start)();
  int (*group_end)();

  // From a file, or with "" from libnccl.so.2 where the loader finds it.
  static Result<Nccl> Load(const std::string& file);
  std::string Version() const;  // "2.27.7"
  Status Check(int result, const char* call) const;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_NCCL_H_
