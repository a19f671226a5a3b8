// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

int FloorLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n))) - 1; }

// One root, parents and children agree, every rank reaches the root, sizes are those of the
// subtrees. Returns the depth.
int CheckTree(const std::vector<TreeNode>& nodes) {
  const int n = static_cast<int>(nodes.size());
  int roots = 0, depth = 0;
  std::vector<int> size(nodes.size(), 0);
  for (int rank = 0; rank < n; ++rank) {
    const TreeNode& node = nodes[static_cast<size_t>(rank)];
    EXPECT_LE(node.children.size(), 2u);
    EXPECT_TRUE(std::is_sorted(node.children.begin(), node.children.end()));
    for (int child : node.children) EXPECT_EQ(nodes[static_cast<size_t>(child)].parent, rank);
    if (node.parent < 0) ++roots;
    int steps = 0;
    for (int at = rank; at >= 0 && steps <= n; at = nodes[static_cast<size_t>(at)].parent) {
      ++size[static_cast<size_t>(at)];
      ++steps;
    }
    EXPECT_LE(steps, n) << "a cycle";
    depth = std::max(depth, steps - 1);
  }
  EXPECT_EQ(roots, 1);
  for (size_t rank = 0; rank < nodes.size(); ++rank) EXPECT_EQ(nodes[rank].size, size[rank]);
  size_t children = 0;
  for (const TreeNode& node : nodes) children += node.children.size();
  EXPECT_EQ(children + 1, nodes.size());
  return depth;
}

TEST(DoubleTree, IsTwoTreesAndNoRankIsInsideBoth) {
  for (int n = 1; n <= 130; ++n) {
    std::vector<TreeNode> trees[2];
    for (int tree = 0; tree < 2; ++tree) {
      for (int rank = 0; rank < n; ++rank) trees[tree].push_back(DoubleTreeNode(n, tree, rank));
      EXPECT_EQ(CheckTree(trees[tree]), FloorLog2(n)) << n << " ranks, tree " << tree;
    }
    for (size_t rank = 0; rank < trees[0].size(); ++rank) {
      EXPECT_TRUE(trees[0][rank].children.empty() || trees[1][rank].children.empty())
          << n << " ranks, rank " << rank;
    }
  }
}

TEST(RootedTree, IsATreeOfLeastDepthBelowItsRoot) {
  for (int n = 1; n <= 70; ++n) {
    for (int root = 0; root < n; ++root) {
      std::vector<TreeNode> nodes;
      for (int rank = 0; rank < n; ++rank) nodes.push_back(RootedTreeNode(n, root, rank));
      EXPECT_EQ(nodes[static_cast<size_t>(root)].parent, -1);
      EXPECT_EQ(CheckTree(nodes), FloorLog2(n)) << n << " ranks, root " << root;
    }
  }
}

}  // namespace
}  // namespace inccl
