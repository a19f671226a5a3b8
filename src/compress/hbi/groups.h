// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice where sums are taken in groups: exact integers inside a group, quantized
// anew where it ends (docs/format.md, "Groups"). Policy R: m contributions of a ring, one group
// after the other. Policy H: m neighbouring ranks; the groups' sums meet at an owner, in fp32.
// Lengths and codes have been checked: nothing here can fail.
#ifndef INCCL_COMPRESS_HBI_GROUPS_H_
#define INCCL_COMPRESS_HBI_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/hbi/slice.h"

namespace inccl::hbi {

// Whether a kSum payload of h contributions begins with scale codes of its own, kBlocks for each
// superblock of the slice; the planner has groups.
bool HasOwnCodes(const Planner& planner, uint32_t contributions);
// Bytes of such a payload.
uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions);

// One hop of a ring: what has come in, if anything has, and this rank's elements.
struct RingHop {
  const uint8_t* payload = nullptr;
  uint64_t bytes = 0;
  uint32_t contributions = 0;  // of the payload
  const std::byte* elements = nullptr;
};
// Slices: `counter` belongs to the group of the sum that comes out, `shift` to the rank within it.
void FoldRingHop(const SliceContext& slice, const RingHop& hop, const SliceOutputs& outputs);

// A group of ranks on its way into the sum of groups: its members, or its sum on its own scales.
struct Group {
  std::span<Source> members;  // one contribution each; empty: `codes` and `sum`
  const uint8_t* codes = nullptr;
  Source sum;
  uint16_t shift = 0;  // of its second quantization, where that is not to nearest
};
// Into `outputs.sum` goes one group alone.
void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_GROUPS_H_
