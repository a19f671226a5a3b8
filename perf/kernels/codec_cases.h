// SPDX-License-Identifier: Apache-2.0
//
// Whole codecs as things to measure, one operation at a time as the executor asks for it: encode
// (own elements to a payload of one rank), hop (own elements added to such a payload: a payload of
// two ranks) and decode (a result to elements). What codecs agree on beforehand is agreed.
#ifndef INCCL_PERF_KERNELS_CODEC_CASES_H_
#define INCCL_PERF_KERNELS_CODEC_CASES_H_

#include <memory>
#include <vector>

#include "perf/kernels/kernel_cases.h"

namespace inccl::perf {

// They hold what they work on. Terminates the program if a codec refuses what it is made for.
std::vector<KernelCase> CodecCases();

}  // namespace inccl::perf

#endif  // INCCL_PERF_KERNELS_CODEC_CASES_H_
