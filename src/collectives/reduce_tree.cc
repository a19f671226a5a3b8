// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Up one binary tree: a rank adds its own part and those of its children, and passes the sum on.
void ReduceTree(PhaseBuilder* phase) {
  const int rank = phase->rank();
  const TreeNode node = RootedTreeNode(*phase, rank);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    std::vector<Operand> parts = {phase->Input()};
    for (int child : node.children) {
      parts.push_back(phase->Sum(phase->AddLane(channel, kSumPlane, child, {rank}),
                                 RootedTreeNode(*phase, child).size));
    }
    const int strand = phase->AddStrand(channel);
    if (node.parent < 0) {
      phase->AddStep(strand, 0, parts, {phase->Output()});
    } else {
      const int up = phase->AddLane(channel, kSumPlane, rank, {node.parent});
      phase->AddStep(strand, 0, parts, {phase->Sum(up, node.size)});
    }
  }
}

}  // namespace inccl
