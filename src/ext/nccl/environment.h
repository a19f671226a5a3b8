// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_EXT_NCCL_ENVIRONMENT_H_
#define INCCL_EXT_NCCL_ENVIRONMENT_H_

namespace inccl::nccl {

// Sets the INCCL_ variables that NCCL's variables imply and that are not set, as NCCL sets those of
// its configuration files. Called once, before libinccl is opened.
void TranslateEnvironment();

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_ENVIRONMENT_H_
