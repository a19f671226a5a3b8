// SPDX-License-Identifier: Apache-2.0
//
// The work of slice.h on several threads: a slice is cut between superblocks, and each part is a
// slice of its own, whose payloads lie within those of the whole slice. The bits are those of one
// thread.
#ifndef INCCL_COMPRESS_HBI_PARTS_H_
#define INCCL_COMPRESS_HBI_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/team.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

// Bytes [begin, end) of a payload or of elements.
struct Extent {
  size_t begin = 0, end = 0;
};
// Where a part lies in the slice's packed sum, in its kResult payload (side words and fields are
// apart there) and in its elements.
struct PartExtents {
  Extent sum, words, fields, elements;
};

// FoldSlice. The thread that has made a part passes it to `made` at once; `made` does not throw.
// `scratch` is kept by the caller for the next slices. Returns false, without any effect, if the
// slice is too small to be cut.
bool FoldParts(Team* team, const SliceContext& slice, std::span<const Source> sources,
               const SliceOutputs& outputs, std::vector<Source>* scratch,
               const std::function<void(const PartExtents&)>& made);

// DecodeResult.
void DecodeParts(Team* team, const SliceContext& slice, const uint8_t* payload,
                 std::byte* elements);
// Merges side words to `words`: those of the inputs, which are side words or own elements. The own
// elements' words are computed, or `own_words` if that is not nullptr; it may be `words` if own
// elements are among the inputs. Returns whether all words are valid.
bool FoldWordsParts(Team* team, const SliceContext& slice, std::span<const Term> inputs,
                    const uint8_t* own_words, uint8_t* words);
// AreValid.
bool AreValidParts(Team* team, const uint8_t* words, uint32_t superblocks);

// The superblocks of a slice that kernels of strips take (kernels/hbi_kernels.h): all up to the
// last one with levels, where the instruction set has such kernels and the type is fp32, fp16 or
// bf16. Each function returns their number; the caller does the rest.

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

#endif  // INCCL_COMPRESS_HBI_PARTS_H_
