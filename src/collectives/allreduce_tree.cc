// SPDX-License-Identifier: Apache-2.0
#include "collectives/binary_tree.h"
#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

constexpr int kTrees = 2;

int UpLane(PhaseBuilder* phase, int channel, int tree, int child, int parent) {
  return phase->AddLane(channel, kTrees * tree + kSumPlane, child, {parent});
}

int DownLane(PhaseBuilder* phase, int channel, int tree, int parent) {
  return phase->AddLane(channel, kTrees * tree + kResultPlane, parent,
                        DoubleTreeNode(phase->nranks(), tree, parent).children);
}

// The parts of the children and this rank's own, by rank.
std::vector<Operand> Parts(PhaseBuilder* phase, int channel, int tree, const TreeNode& node) {
  std::vector<Operand> parts;
  bool own = false;
  for (int child : node.children) {
    if (!own && child > phase->rank()) {
      parts.push_back(phase->Input());
      own = true;
    }
    parts.push_back(phase->Sum(UpLane(phase, channel, tree, child, phase->rank()),
                               DoubleTreeNode(phase->nranks(), tree, child).size));
  }
  if (!own) parts.push_back(phase->Input());
  return parts;
}

}  // namespace

// Half of the data (chunk t) passes up tree t, is complete at its root, and passes down again.
void AllReduceTree(PhaseBuilder* phase) {
  phase->set_chunks(kTrees);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    for (int tree = 0; tree < kTrees; ++tree) {
      const TreeNode node = DoubleTreeNode(phase->nranks(), tree, phase->rank());
      std::vector<Operand> down;
      if (!node.children.empty()) {
        down.push_back(phase->Result(DownLane(phase, channel, tree, phase->rank())));
      }
      down.push_back(phase->Output());

      const std::vector<Operand> parts = Parts(phase, channel, tree, node);
      const int up_strand = phase->AddStrand(channel);
      if (node.parent < 0) {
        phase->AddStep(up_strand, tree, parts, down);
        continue;
      }
      const int up = UpLane(phase, channel, tree, phase->rank(), node.parent);
      phase->AddStep(up_strand, tree, parts, {phase->Sum(up, node.size)});
      const int from = DownLane(phase, channel, tree, node.parent);
      phase->AddStep(phase->AddStrand(channel), tree, {phase->Result(from)}, down);
    }
  }
}

}  // namespace inccl
