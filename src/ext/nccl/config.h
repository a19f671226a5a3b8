// SPDX-License-Identifier: Apache-2.0
//
// ncclConfig_t as ccl_config_t.
#ifndef INCCL_EXT_NCCL_CONFIG_H_
#define INCCL_EXT_NCCL_CONFIG_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

struct OwnConfig {
  ccl_config_t config = CCL_CONFIG_INIT;  // points to `name`; libinccl copies it during the call
  char name[129] = "";
};

// Checks `given` (NULL: all defaults) by the rules of NCCL: fields that the caller's version does
// not have are default, NCCL_COMM_BLOCKING overrides `blocking`. Hints about thread blocks, network
// plugins and shared resources are checked and have no effect.
ResultCode Convert(const Config* given, OwnConfig* own);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_CONFIG_H_
