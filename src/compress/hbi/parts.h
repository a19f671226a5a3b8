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

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_PARTS_H_
