// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
const Kernels& BestKernels() { return ScalarKernels(); }
}  // namespace inccl::hbi
