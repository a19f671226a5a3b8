// SPDX-License-Identifier: Apache-2.0
//
// Loads libibverbs when it is first needed, so a library built with RDMA also works where
// libibverbs is not installed. Posting and polling need no function of it: verbs.h calls them
// through the context of the device.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_LIBRARY_H_
#define INCCL_TRANSPORT_VERBS_VERBS_LIBRARY_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace inccl::verbs {

#define INCCL_VERBS_FUNCTIONS(X) \
  X(ibv_get_device_list)         \
  X(ibv_free_device_list)        \
  X(ibv_get_device_name)         \
  X(ibv_open_device)             \
  X(ibv_close_device)            \
  X(ibv_query_device)            \
  X(ibv_query_port)              \
  X(_ibv_query_gid_ex)           \
  X(ibv_alloc_pd)                \
  X(ibv_dealloc_pd)              \
  X(ibv_reg_mr)                  \
  X(ibv_dereg_mr)                \
  X(ibv_create_comp_channel)     \
  X(ibv_destroy_comp_channel)    \
  X(ibv_create_cq)               \
  X(ibv_destroy_cq)              \
  X(ibv_get_cq_event)            \
  X(ibv_ack_cq_events)           \
  X(ibv_create_srq)              \
  X(ibv_destroy_srq)             \
  X(ibv_create_qp)               \
  X(ibv_modify_qp)               \
  X(ibv_destroy_qp)              \
  X(ibv_wc_status_str)

// Calls put the name in parentheses, (ibv.ibv_reg_mr)(...), because verbs.h has macros of some.
struct Library {
#define INCCL_VERBS_MEMBER(name) decltype(&::name) name{};  // NOLINT: gcc wants no parentheses
  INCCL_VERBS_FUNCTIONS(INCCL_VERBS_MEMBER)
#undef INCCL_VERBS_MEMBER
  // ibv_reg_dmabuf_mr, which verbs.h and libibverbs have from rdma-core 34 on; nullptr: they lack
  // it.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access) = nullptr;
};

// Owners. Each is released by a function of the library, which is never unloaded.
using Context = std::unique_ptr<ibv_context, int (*)(ibv_context*)>;
using ProtectionDomain = std::unique_ptr<ibv_pd, int (*)(ibv_pd*)>;
using Channel = std::unique_ptr<ibv_comp_channel, int (*)(ibv_comp_channel*)>;
using CompletionQueue = std::unique_ptr<ibv_cq, int (*)(ibv_cq*)>;
using SharedReceives = std::unique_ptr<ibv_srq, int (*)(ibv_srq*)>;
using QueuePair = std::unique_ptr<ibv_qp, int (*)(ibv_qp*)>;
using MemoryRegion = std::unique_ptr<ibv_mr, int (*)(ibv_mr*)>;

// Loads libibverbs once per process. Errors: kInvalidUsage (not installed), kSystemError (too old).
// Tests name a stand-in in INCCL_TEST_IBVERBS.
Result<const Library*> Load();

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_LIBRARY_H_
