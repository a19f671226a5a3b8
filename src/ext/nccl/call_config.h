// SPDX-License-Identifier: Apache-2.0
//
// The configuration of one call, ncclCollConfig_t, whose list of vendors' options may have a codec
// for the call (inccl/nccl_options.h).
#ifndef INCCL_EXT_NCCL_CALL_CONFIG_H_
#define INCCL_EXT_NCCL_CALL_CONFIG_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

struct CallCodec {
  bool given = false;           // false: the policy decides
  ccl_codec_t codec = nullptr;  // NULL: uncompressed
};

// Checks `config` (NULL: no options) by NCCL's rules and finds the codec. `function` is the name
// for error texts; `compresses`: it may have a codec. Returns CCL_INVALID_ARGUMENT after a warning
// that names the argument.
ResultCode ReadCallConfig(const char* function, const CollConfig* config, bool compresses,
                          CallCodec* codec);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_CALL_CONFIG_H_
