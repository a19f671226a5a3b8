// SPDX-License-Identifier: Apache-2.0
//
// Results and warnings of libnccl.so.2.
#ifndef INCCL_EXT_NCCL_ERROR_H_
#define INCCL_EXT_NCCL_ERROR_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// Keeps the text for ncclGetLastError, and prints it if the level is kWarn or above. The text is at
// most 1023 bytes.
__attribute__((format(printf, 1, 2))) void Warn(const char* format, ...);

// Prints a line at level kInfo.
__attribute__((format(printf, 1, 2))) void Info(const char* format, ...);

// The result of a call of libinccl as a result of NCCL. Keeps the text of an error for
// ncclGetLastError; libinccl has logged it.
ResultCode FromError(ccl_result_t result);
// As FromError, for the error of a communicator that another call has met.
ResultCode FromErrorOf(Comm comm, ccl_result_t error);
inline ResultCode From(ccl_result_t result) {
  return __builtin_expect(result == CCL_SUCCESS, 1) ? 0 : FromError(result);
}

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_ERROR_H_
