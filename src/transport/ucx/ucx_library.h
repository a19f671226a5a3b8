// SPDX-License-Identifier: Apache-2.0
//
// Loads UCX when it is first needed. Its constructor changes the process (signal handlers, patches
// of mmap), which processes that do not use UCX must not see; and a library built with UCX also
// works where UCX is not installed.
#ifndef INCCL_TRANSPORT_UCX_UCX_LIBRARY_H_
#define INCCL_TRANSPORT_UCX_UCX_LIBRARY_H_

#include <ucp/api/ucp.h>

#include "base/status.h"

namespace inccl::ucx {

#define INCCL_UCX_FUNCTIONS(X)  \
  X(ucp_get_version)            \
  X(ucp_config_read)            \
  X(ucp_config_modify)          \
  X(ucp_config_release)         \
  X(ucp_init_version)           \
  X(ucp_cleanup)                \
  X(ucp_worker_create)          \
  X(ucp_worker_destroy)         \
  X(ucp_worker_get_address)     \
  X(ucp_worker_release_address) \
  X(ucp_worker_get_efd)         \
  X(ucp_worker_arm)             \
  X(ucp_worker_progress)        \
  X(ucp_worker_flush_nbx)       \
  X(ucp_ep_create)              \
  X(ucp_ep_close_nbx)           \
  X(ucp_tag_send_nbx)           \
  X(ucp_tag_recv_nbx)           \
  X(ucp_request_check_status)   \
  X(ucp_request_cancel)         \
  X(ucp_request_free)           \
  X(ucs_status_string)

struct Library {
#define INCCL_UCX_MEMBER(name) decltype(&::name) name{};  // NOLINT: gcc wants no parentheses
  INCCL_UCX_FUNCTIONS(INCCL_UCX_MEMBER)
#undef INCCL_UCX_MEMBER
};

// Loads UCX once per process and never unloads it. If the application has not loaded UCX itself,
// Load sets it to be silent and to leave signals and functions of the process alone, unless UCX_
// variables in the environment say otherwise. Load refuses in a process that runs with another
// user's rights (AT_SECURE). A kSystemError says what is missing.
Result<const Library*> Load();

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_LIBRARY_H_
