// SPDX-License-Identifier: Apache-2.0
//
// Which calls are compressed: INCCL_NCCL_POLICY. Without it none is, so that a program that gets
// this library in place of NCCL computes what it computed before.
#ifndef INCCL_EXT_NCCL_POLICY_H_
#define INCCL_EXT_NCCL_POLICY_H_

#include <stdio.h>

#include "ext/nccl/library.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {

// NCCL's variables. This library only reads the environment: other threads may read it, too, and
// children inherit it.

// The value of a variable: of the environment, else of the file that NCCL_CONF_FILE names, else
// ~/.nccl.conf, or of /etc/nccl.conf; nullptr if it is not set or empty.
const char* Variable(const char* name);

// Opens a file of settings; nullptr and errno if it cannot. Does not wait for the writer of a FIFO.
FILE* OpenToRead(const char* path);

// Gives libinccl the values that NCCL's variables imply. The environment's INCCL_ variables
// override them. Called once.
void PassVariables(const Library& library);

// ncclConfig_t as ccl_config_t.
struct OwnConfig {
  ccl_config_t config = CCL_CONFIG_INIT;  // points to `name`; libinccl copies it during the call
  char name[129] = "";
};

// Checks `given` (NULL: all defaults) by the rules of NCCL: fields that the caller's version does
// not have are default, NCCL_COMM_BLOCKING overrides `blocking`. Hints about thread blocks, network
// plugins and shared resources are checked and have no effect.
ResultCode Convert(const Config* given, OwnConfig* own);

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

// Reads INCCL_NCCL_POLICY, or the file that INCCL_NCCL_POLICY_FILE names, and makes the codecs.
// Called once, when libinccl is opened. Sets library->looks if there are rules, or calls are
// counted.
void ReadPolicy(Library* library);

// CCL_INVALID_ARGUMENT, after a warning, if the policy has an error. No communicator is created
// then.
ResultCode CheckPolicy();

struct PolicyChoice {
  int rule;           // its index; -1: none matches
  ccl_codec_t codec;  // NULL: the call runs uncompressed
};
// The first rule that the call matches. `count` is that of the call. Any thread.
PolicyChoice ChooseByPolicy(Kind kind, size_t count, int type, Comm comm);

// With INCCL_NCCL_LOG=1, prints the rules for a communicator of this name.
void TellPolicy(Comm comm, const char* name);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_POLICY_H_
