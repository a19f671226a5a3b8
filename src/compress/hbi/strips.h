// SPDX-License-Identifier: Apache-2.0
//
// The superblocks of a slice that kernels of strips take (kernels/hbi_kernels.h): all up to the
// last one with levels, where the instruction set has such kernels and the type is fp32, fp16 or
// bf16. Each function returns their number; the caller does the rest.
#ifndef INCCL_COMPRESS_HBI_STRIPS_H_
#define INCCL_COMPRESS_HBI_STRIPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/hbi/slice.h"

namespace inccl::hbi {

// Encodes own elements; sum->at advances.
uint32_t EncodeStrips(const SliceContext& slice, const std::byte* elements, Sink* sum);

// The owner's step. The sources are own elements and packed sums of as many contributions each,
// else it does nothing; it may change their order. `at` of sources and result advances. The result
// is not wanted if `result->at` is nullptr, nor are the elements if they are.
uint32_t FoldStrips(const SliceContext& slice, std::span<Source> sources, uint8_t* result_words,
                    Sink* result, std::byte* elements);

// Decodes fields with these side words; source->at advances.
uint32_t DecodeStrips(const SliceContext& slice, const uint8_t* words, Source* source,
                      std::byte* elements);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_STRIPS_H_
