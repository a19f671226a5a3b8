// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice where sums are taken in groups of m neighbouring ranks (docs/format.md,
// "Groups"): exact integers inside a group, quantized anew where it ends; the groups' sums meet at
// an owner, in fp32. Lengths and side words have been checked: nothing here can fail.
#ifndef INCCL_COMPRESS_HBI_GROUPS_H_
#define INCCL_COMPRESS_HBI_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/hbi/slice.h"

namespace inccl::hbi {

// Bytes of a kSum payload. One of more than one contribution is the sum of a group: it begins with
// side words of its own, one for each superblock of the slice.
uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions);

// A group of ranks on its way into the sum of groups: its members, or its sum on its own scales.
struct Group {
  std::span<Source> members;  // one contribution each; if empty, `words` and `sum` are set
  const uint8_t* words = nullptr;
  Source sum;
  uint16_t shift = 0;  // for its second quantization, unless that rounds to nearest
};
// Folds groups into the outputs. `outputs.sum` takes a single group only.
void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_GROUPS_H_
