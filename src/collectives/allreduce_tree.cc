// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

constexpr int kTrees = 2;

// The nodes of the trees are places of this order, so that subtrees are on few hosts.
int UpLane(PhaseBuilder* phase, const HostOrder& order, int channel, int tree, int child,
           int parent) {
  return phase->AddLane(channel, kTrees * tree + kSumPlane, order.At(child), {order.At(parent)});
}

int DownLane(PhaseBuilder* phase, const HostOrder& order, int channel, int tree, int parent) {
  std::vector<int> children = DoubleTreeNode(phase->nranks(), tree, parent).children;
  for (int& child : children) child = order.At(child);
  return phase->AddLane(channel, kTrees * tree + kResultPlane, order.At(parent),
                        std::move(children));
}

// The parts of the children and this rank's own, by place.
std::vector<Operand> Parts(PhaseBuilder* phase, const HostOrder& order, int channel, int tree,
                           const TreeNode& node) {
  std::vector<Operand> parts;
  bool own = false;
  for (int child : node.children) {
    if (!own && child > order.place()) {
      parts.push_back(phase->Input());
      own = true;
    }
    parts.push_back(phase->Sum(UpLane(phase, order, channel, tree, child, order.place()),
                               DoubleTreeNode(phase->nranks(), tree, child).size));
  }
  if (!own) parts.push_back(phase->Input());
  return parts;
}

}  // namespace

// Half of the data (chunk t) passes up tree t, is complete at its root, and passes down again.
void AllReduceTree(PhaseBuilder* phase) {
  phase->set_chunks(kTrees);
  const HostOrder order(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    for (int tree = 0; tree < kTrees; ++tree) {
      const TreeNode node = DoubleTreeNode(phase->nranks(), tree, order.place());
      std::vector<Operand> down;
      if (!node.children.empty()) {
        down.push_back(phase->Result(DownLane(phase, order, channel, tree, order.place())));
      }
      down.push_back(phase->Output());

      const std::vector<Operand> parts = Parts(phase, order, channel, tree, node);
      const int up_strand = phase->AddStrand(channel);
      if (node.parent < 0) {
        phase->AddStep(up_strand, tree, parts, down);
        continue;
      }
      const int up = UpLane(phase, order, channel, tree, order.place(), node.parent);
      phase->AddStep(up_strand, tree, parts, {phase->Sum(up, node.size)});
      const int from = DownLane(phase, order, channel, tree, node.parent);
      phase->AddStep(phase->AddStrand(channel), tree, {phase->Result(from)}, down);
    }
  }
}

}  // namespace inccl
