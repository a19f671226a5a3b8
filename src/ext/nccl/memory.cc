// SPDX-License-Identifier: Apache-2.0
//
// Memory, registration and windows.
#include "ext/nccl/communicators.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/types.h"

using inccl::nccl::Comm;
using inccl::nccl::FindLibrary;
using inccl::nccl::From;
using inccl::nccl::FromCall;
using inccl::nccl::Library;
using inccl::nccl::ResultCode;
using inccl::nccl::Warn;
using inccl::nccl::Window;

INCCL_NCCL_EXPORT(int, MemAlloc, (void** memory, size_t bytes)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (memory == nullptr) {
    Warn("ncclMemAlloc: ptr is NULL");
    return CCL_INVALID_ARGUMENT;
  }
  *memory = nullptr;
  if (bytes == 0) return CCL_SUCCESS;
  const ResultCode result = inccl::nccl::LookForDevices();
  if (result != CCL_SUCCESS) return result;
  if (!__atomic_load_n(&inccl::nccl::devices_found, __ATOMIC_RELAXED)) {
    return From(library->mem_alloc(memory, bytes));
  }
  return From(library->mem_alloc_device(memory, bytes, inccl::nccl::CurrentDevice()));
}

INCCL_NCCL_EXPORT(int, MemFree, (void* memory)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return From(library->mem_free(memory));
}

INCCL_NCCL_EXPORT(int, CommRegister, (const Comm comm, void* memory, size_t bytes, void** handle)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->comm_register(comm, memory, bytes, handle));
}

INCCL_NCCL_EXPORT(int, CommDeregister, (const Comm comm, void* handle)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->comm_deregister(comm, handle));
}

// As NCCL where symmetric memory is not supported: the call succeeds without a window.
INCCL_NCCL_EXPORT(int, CommWindowRegister,
                  (Comm /*comm*/, void* memory, size_t bytes, Window* window, int /*flags*/)) {
  if (memory == nullptr || bytes == 0 || window == nullptr) {
    Warn("ncclCommWindowRegister: memory %p of %zu bytes, window %p", memory, bytes,
         static_cast<void*>(window));
    return CCL_INVALID_ARGUMENT;
  }
  *window = nullptr;
  return CCL_SUCCESS;
}

INCCL_NCCL_EXPORT(int, CommWindowDeregister, (Comm /*comm*/, Window /*window*/)) {
  return CCL_SUCCESS;
}
