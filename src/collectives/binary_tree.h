// SPDX-License-Identifier: Apache-2.0
//
// The trees of the tree algorithms, one node at a time.
#ifndef INCCL_COLLECTIVES_BINARY_TREE_H_
#define INCCL_COLLECTIVES_BINARY_TREE_H_

#include <vector>

#include "topology/host_map.h"

namespace inccl {

struct TreeNode {
  int parent = -1;            // -1: the root
  std::vector<int> children;  // ascending, at most two, except with several hosts
  int size = 1;               // ranks in the subtree of this node, itself included
};

// Two trees over the same ranks, depth floor(log2(nranks)), such that a rank that has children in
// one has none in the other: with half of the data through each tree every rank sends and receives
// alike. Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and
// scan (2009). tree: 0 or 1.
TreeNode DoubleTreeNode(int nranks, int tree, int rank);

// One complete binary tree of least depth, floor(log2(nranks)), below `root`.
TreeNode RootedTreeNode(int nranks, int root, int rank);

// Such a tree over the hosts below that of `root`, of their leaders (`root`, else the first rank of
// the host), and such a tree over the ranks of each host below its leader. The leader's children on
// other hosts come first, so a node has up to four; within the two and two they ascend.
TreeNode RootedTreeNode(const HostMap& hosts, int root, int rank);

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_BINARY_TREE_H_
