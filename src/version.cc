// SPDX-License-Identifier: Apache-2.0
#include "inccl/ccl.h"

ccl_result_t ccl_get_version(int* version) {
  if (version == nullptr) return CCL_INVALID_ARGUMENT;
  *version = CCL_VERSION_CODE;
  return CCL_SUCCESS;
}
