// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Down one binary tree; a rank forwards what it receives to its children, verbatim.
void BroadcastTree(PhaseBuilder* phase) {
  const TreeNode node = RootedTreeNode(*phase, phase->rank());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    Operand input = phase->Input();
    if (node.parent >= 0) {
      input = phase->Result(phase->AddLane(channel, kResultPlane, node.parent,
                                           RootedTreeNode(*phase, node.parent).children));
    }
    std::vector<Operand> outputs;
    if (!node.children.empty()) {
      outputs.push_back(
          phase->Result(phase->AddLane(channel, kResultPlane, phase->rank(), node.children)));
    }
    outputs.push_back(phase->Output());
    phase->AddStep(phase->AddStrand(channel), 0, {input}, outputs);
  }
}

}  // namespace inccl
