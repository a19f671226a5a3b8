// SPDX-License-Identifier: Apache-2.0
//
// NCCL's variables. This library only reads the environment: other threads may read it, too, and
// children inherit it.
#ifndef INCCL_EXT_NCCL_ENVIRONMENT_H_
#define INCCL_EXT_NCCL_ENVIRONMENT_H_

#include <stdio.h>

#include "ext/nccl/library.h"

namespace inccl::nccl {

// The value of a variable: of the environment, else of the file that NCCL_CONF_FILE names, else
// ~/.nccl.conf, or of /etc/nccl.conf; nullptr if it is not set or empty.
const char* Variable(const char* name);

// Opens a file of settings; nullptr and errno if it cannot. Does not wait for the writer of a FIFO.
FILE* OpenToRead(const char* path);

// Gives libinccl the values that NCCL's variables imply. The environment's INCCL_ variables
// override them. Called once.
void PassVariables(const Library& library);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_ENVIRONMENT_H_
