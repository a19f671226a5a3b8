// SPDX-License-Identifier: Apache-2.0
//
// Selects the instruction set that the kernels of this process use; by default the best one of the
// CPU. All give the same bytes, so the choice is for measurements and for finding defects.
#ifndef INCCL_COMPRESS_SIMD_H_
#define INCCL_COMPRESS_SIMD_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inccl {

// Accepts "best", "scalar" (the reference code), or an instruction set of SimdTargets(), such as
// "ssse3", "sse4", "avx2", "avx512". For any other, a kInvalidArgument lists the available ones.
// Thread-safe; work in progress may finish with the previous one.
Status SetSimdTarget(std::string_view name);

// Name of the instruction set in use.
const char* SimdTargetName();

// The instruction sets that this CPU has and this library was built with, best first, "scalar"
// last.
std::vector<std::string> SimdTargets();

// The instruction sets that this library was built with, in the same order.
std::vector<std::string> SimdTargetsBuilt();

}  // namespace inccl

#endif  // INCCL_COMPRESS_SIMD_H_
