// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice with sums in groups: exact integers inside a group, a new quantization at
// its end (docs/format.md, "Groups"). With policy R a group is m consecutive contributions of a
// ring. With policy H it is m neighbouring ranks, and an owner adds the groups' sums in fp32. The
// caller has checked lengths and codes, so no function here fails.
#ifndef INCCL_COMPRESS_HBI_GROUPS_H_
#define INCCL_COMPRESS_HBI_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/hbi/slice.h"

namespace inccl::hbi {

// True if a kSum payload of h contributions begins with its own scale codes, kBlocks per superblock
// of the slice. The planner has groups.
bool HasOwnCodes(const Planner& planner, uint32_t contributions);
// Bytes of such a payload.
uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions);

// One hop of a ring: the incoming payload, if there is one, and this rank's elements.
struct RingHop {
  const uint8_t* payload = nullptr;
  uint64_t bytes = 0;
  uint32_t contributions = 0;  // in the payload
  const std::byte* elements = nullptr;
};
// The slice's `counter` belongs to the group of the outgoing sum, `shift` to the rank within it.
void FoldRingHop(const SliceContext& slice, const RingHop& hop, const SliceOutputs& outputs);

// A group of ranks as an input of the sum of groups: its members, or its sum on its own scales.
struct Group {
  std::span<Source> members;  // one contribution each; if empty, `codes` and `sum` are set
  const uint8_t* codes = nullptr;
  Source sum;
  uint16_t shift = 0;  // for its second quantization, unless that rounds to nearest
};
// Folds groups into the outputs. `outputs.sum` takes a single group only.
void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_GROUPS_H_
