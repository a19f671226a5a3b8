// SPDX-License-Identifier: Apache-2.0
//
// Functions that binaries built for newer versions of NCCL need in order to load. Those that inccl
// does not have return ncclInvalidUsage and warn; those that only advise succeed.
#include "ext/nccl/collectives.h"
#include "ext/nccl/communicators.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {
namespace {

ResultCode NotSupported(const char* name) {
  Warn("nccl%s: not supported by inccl", name);
  return Fail(CCL_INVALID_USAGE);
}

}  // namespace
}  // namespace inccl::nccl

using inccl::nccl::Comm;
using inccl::nccl::Team;
using inccl::nccl::Warn;

// The functions use none of their arguments, so they are declared without: in the calling
// conventions of x86-64 and 64-bit ARM the caller removes arguments.
#define INCCL_NCCL_STUB(name) \
  INCCL_NCCL_EXPORT(int, name, ()) { return inccl::nccl::NotSupported(#name); }

INCCL_NCCL_STUB(CommQueryProperties)
INCCL_NCCL_STUB(DevCommCreate)
INCCL_NCCL_STUB(DevCommDestroy)
INCCL_NCCL_STUB(GetCftDeviceLeInfo)
INCCL_NCCL_STUB(GetLsaDevicePointer)
INCCL_NCCL_STUB(GetLsaMultimemDevicePointer)
INCCL_NCCL_STUB(GetMultimemDeviceLeInfo)
INCCL_NCCL_STUB(GetMultimemDevicePointer)
INCCL_NCCL_STUB(GetPeerDeviceLeInfo)
INCCL_NCCL_STUB(GetPeerDevicePointer)
INCCL_NCCL_STUB(GinBarrierCreateRequirement)
INCCL_NCCL_STUB(GinInboxA2ACreateRequirement)
INCCL_NCCL_STUB(GinOutboxCreateRequirement)
INCCL_NCCL_STUB(LLA2ACreateRequirement)
INCCL_NCCL_STUB(LsaBarrierCreateRequirement)
INCCL_NCCL_STUB(PutSignal)
INCCL_NCCL_STUB(SetEncryption)
INCCL_NCCL_STUB(Signal)
INCCL_NCCL_STUB(WaitSignal)
INCCL_NCCL_STUB(WinGetUserPtr)

INCCL_NCCL_EXPORT(int, LLA2ACalcSlots, ()) {
  (void)inccl::nccl::NotSupported("LLA2ACalcSlots");
  return 0;
}

// A team of the calling rank alone.
#define INCCL_NCCL_TEAM(name) \
  INCCL_NCCL_EXPORT(Team, name, ()) { return {1, 0, 1}; }

INCCL_NCCL_TEAM(TeamCft)
INCCL_NCCL_TEAM(TeamCftMultimem)
INCCL_NCCL_TEAM(TeamLsa)
INCCL_NCCL_TEAM(TeamRail)

INCCL_NCCL_EXPORT(Team, TeamWorld, (Comm comm)) {
  Team world{1, 0, 1};
  if (const inccl::nccl::Library* const library = inccl::nccl::FindLibrary(); library != nullptr) {
    (void)library->comm_count(comm, &world.nranks);
    (void)library->comm_user_rank(comm, &world.rank);
  }
  return world;
}

// This rank is number team.rank of the team, and the only rank of its own team.
INCCL_NCCL_EXPORT(int, TeamRankToLsa, (Comm /*comm*/, Team team, int rank)) {
  return (rank - team.rank) * team.stride;
}
INCCL_NCCL_EXPORT(int, TeamRankToWorld, (Comm comm, Team team, int rank)) {
  return pncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}

INCCL_NCCL_EXPORT(void, ResetDebugInit, ()) {}
extern "C" INCCL_NCCL_VISIBLE void ncclResetDebugInitInternal();
extern "C" void ncclResetDebugInitInternal() {}

INCCL_NCCL_EXPORT(int, CommSuspend, (Comm /*comm*/, int /*flags*/)) { return CCL_SUCCESS; }
INCCL_NCCL_EXPORT(int, CommResume, (Comm /*comm*/)) { return CCL_SUCCESS; }

INCCL_NCCL_EXPORT(int, CommMemStats, (Comm /*comm*/, int /*stat*/, uint64_t* value)) {
  if (value == nullptr) {
    Warn("ncclCommMemStats: value is NULL");
    return CCL_INVALID_ARGUMENT;
  }
  *value = 0;
  return CCL_SUCCESS;
}

// There are no parameters to look up: no key is known.
#define INCCL_NCCL_PARAMETER(name)                  \
  INCCL_NCCL_EXPORT(int, name, ()) {                \
    Warn("nccl" #name ": inccl has no parameters"); \
    return CCL_INVALID_ARGUMENT;                    \
  }

INCCL_NCCL_PARAMETER(ParamBind)
INCCL_NCCL_PARAMETER(ParamGet)
INCCL_NCCL_PARAMETER(ParamGetI16)
INCCL_NCCL_PARAMETER(ParamGetI32)
INCCL_NCCL_PARAMETER(ParamGetI64)
INCCL_NCCL_PARAMETER(ParamGetI8)
INCCL_NCCL_PARAMETER(ParamGetParameter)
INCCL_NCCL_PARAMETER(ParamGetStr)
INCCL_NCCL_PARAMETER(ParamGetU16)
INCCL_NCCL_PARAMETER(ParamGetU32)
INCCL_NCCL_PARAMETER(ParamGetU64)
INCCL_NCCL_PARAMETER(ParamGetU8)

INCCL_NCCL_EXPORT(int, ParamGetAllParameterKeys, (const char*** table, int* length)) {
  static const char* none = nullptr;
  if (table == nullptr || length == nullptr) {
    Warn("ncclParamGetAllParameterKeys: an argument is NULL");
    return CCL_INVALID_ARGUMENT;
  }
  *table = &none;
  *length = 0;
  return CCL_SUCCESS;
}

INCCL_NCCL_EXPORT(void, ParamDumpAll, ()) {}

// Memory, registration and windows.

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
