// SPDX-License-Identifier: Apache-2.0
//
// Which instruction set the kernels of this process use. By default the best one the CPU has; every
// one gives the same bytes, so this is for measuring and for finding defects.
#ifndef INCCL_COMPRESS_SIMD_H_
#define INCCL_COMPRESS_SIMD_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inccl {

// "best", "scalar" (the reference code), or an instruction set: "ssse3", "sse4", "avx2", "avx512",
// or what else SimdTargets() lists. kInvalidArgument, listing what there is, for any other and for
// one the CPU does not have. Thread-safe; work in progress may finish with the former one.
Status SetSimdTarget(std::string_view name);

// Name of the one in use.
const char* SimdTargetName();

// Those this CPU has and this library was built with, best first, "scalar" last.
std::vector<std::string> SimdTargets();

// Those this library was built with, likewise.
std::vector<std::string> SimdTargetsBuilt();

}  // namespace inccl

#endif  // INCCL_COMPRESS_SIMD_H_
