// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/group.h"

#include "ext/nccl/communicators.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {
namespace {

// Initial-exec: no call of the loader for each use.
__attribute__((tls_model("initial-exec"))) thread_local int depth = 0;
__attribute__((tls_model("initial-exec"))) thread_local ResultCode first_error = CCL_SUCCESS;
__attribute__((tls_model("initial-exec"))) thread_local ResultCode progress = CCL_SUCCESS;

// Ends the group of libinccl without starting its calls: a call that fails spoils it.
void Drop(const Library& library) {
  const Silence silence;
  (void)library.allreduce(nullptr, nullptr, 0, CCL_FLOAT32, CCL_SUM, nullptr, nullptr);
  (void)library.group_end();
}

// Returns true at the outermost end.
bool Leave(const char* function, ResultCode* result) {
  if (depth == 0) {
    Warn("%s: not in a group call.", function);
    *result = CCL_INVALID_USAGE;
    return false;
  }
  *result = CCL_SUCCESS;
  return --depth == 0;
}

ResultCode TakeFirstError() {
  const ResultCode error = first_error;
  first_error = CCL_SUCCESS;
  return error;
}

}  // namespace

bool InGroup() { return depth > 0; }

ResultCode Fail(ResultCode result) {
  if (depth > 0 && first_error == CCL_SUCCESS) first_error = result;
  return result;
}

void ProgressesAfterGroup() { progress = CCL_IN_PROGRESS; }

}  // namespace inccl::nccl

using inccl::nccl::Library;
using inccl::nccl::ResultCode;

INCCL_NCCL_EXPORT(int, GroupStart, ()) {
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (inccl::nccl::depth == 0) {
    const ResultCode result = inccl::nccl::From(library->group_start());
    if (result != CCL_SUCCESS) return result;
  }
  ++inccl::nccl::depth;
  return CCL_SUCCESS;
}

INCCL_NCCL_EXPORT(int, GroupEnd, ()) {
  ResultCode result = CCL_SUCCESS;
  if (!inccl::nccl::Leave("ncclGroupEnd", &result)) return result;
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  result = inccl::nccl::TakeFirstError();
  if (result == CCL_SUCCESS) {
    result = inccl::nccl::From(library->group_end());
  } else {
    inccl::nccl::Drop(*library);
  }
  inccl::nccl::GroupEnded(result == CCL_SUCCESS);
  const ResultCode progress = inccl::nccl::progress;
  inccl::nccl::progress = CCL_SUCCESS;
  return result == CCL_SUCCESS ? progress : result;
}

INCCL_NCCL_EXPORT(int, GroupSimulateEnd, (inccl::nccl::SimInfo * info)) {
  ResultCode result = CCL_SUCCESS;
  if (!inccl::nccl::Leave("ncclGroupSimulateEnd", &result)) return result;
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  result = inccl::nccl::TakeFirstError();
  inccl::nccl::Drop(*library);
  inccl::nccl::GroupEnded(false);
  inccl::nccl::progress = CCL_SUCCESS;
  if (result != CCL_SUCCESS || info == nullptr) return result;
  if (info->magic != inccl::nccl::kSimInfoMagic || info->size < sizeof *info) {
    inccl::nccl::Warn("ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
    return CCL_INVALID_ARGUMENT;
  }
  info->estimated_time = 0;  // there is no estimate
  return CCL_SUCCESS;
}
