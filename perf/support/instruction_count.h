// SPDX-License-Identifier: Apache-2.0
//
// Counts the instructions of a piece of code by running it one instruction at a time in a child
// process: exact, the same on a busy machine, and possible where the processor's counters are not
// (virtual machines) or an emulator does not know the instructions (AVX-512). Slow: a few
// microseconds each. x86-64 only.
#ifndef INCCL_PERF_SUPPORT_INSTRUCTION_COUNT_H_
#define INCCL_PERF_SUPPORT_INSTRUCTION_COUNT_H_

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace inccl::perf {

// Instructions in user mode of one call, and of what surrounds it: take differences. kSystemError
// on other processors, kInternalError if the code ended otherwise than by returning.
Result<uint64_t> CountInstructions(const std::function<void()>& code);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_INSTRUCTION_COUNT_H_
