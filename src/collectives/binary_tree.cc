// SPDX-License-Identifier: Apache-2.0
#include "collectives/binary_tree.h"

#include <algorithm>
#include <bit>
#include <span>

namespace inccl {
namespace {

// In-order numbering 1..n: the height of a node is the number of its trailing zero bits, so odd
// numbers are leaves and even numbers have children. Numbers above n do not exist; their
// descendants up to n move up.
int InOrderParent(int n, int node) {
  const int root = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  if (node == root) return 0;
  do {
    const int bit = node & -node;
    node = (node ^ bit) | (bit << 1);
  } while (node > n);
  return node;
}

std::vector<int> InOrderChildren(int n, int node) {
  std::vector<int> children;
  const int bit = node & -node;
  if (bit > 1) children.push_back(node - bit / 2);
  for (int step = bit / 2; step > 0; step /= 2) {
    if (node + step <= n) {
      children.push_back(node + step);
      break;
    }
  }
  return children;
}

int InOrderSize(int n, int node) {
  const int bit = node & -node;
  return std::min(n, node + bit - 1) - (node - bit);
}

}  // namespace

TreeNode DoubleTreeNode(int nranks, int tree, int rank) {
  // Tree 0 numbers rank r as r + 1. Tree 1 must give those ranks odd numbers that have even ones in
  // tree 0: it is mirrored, or, if the mirror keeps parity, shifted by one.
  const bool mirror = nranks % 2 == 0;
  auto number = [&](int r) {
    if (tree == 0) return r + 1;
    return mirror ? nranks - r : (r + nranks - 1) % nranks + 1;
  };
  auto rank_of = [&](int i) {
    if (tree == 0) return i - 1;
    return mirror ? nranks - i : i % nranks;
  };
  TreeNode node;
  const int i = number(rank);
  const int parent = InOrderParent(nranks, i);
  node.parent = parent == 0 ? -1 : rank_of(parent);
  for (int child : InOrderChildren(nranks, i)) node.children.push_back(rank_of(child));
  std::sort(node.children.begin(), node.children.end());
  node.size = InOrderSize(nranks, i);
  return node;
}

TreeNode RootedTreeNode(int nranks, int root, int rank) {
  const int place = (rank - root + nranks) % nranks;  // heap order: children of v are 2v+1, 2v+2
  TreeNode node;
  if (place > 0) node.parent = ((place - 1) / 2 + root) % nranks;
  for (int child = 2 * place + 1; child <= 2 * place + 2 && child < nranks; ++child) {
    node.children.push_back((child + root) % nranks);
  }
  std::sort(node.children.begin(), node.children.end());
  node.size = 0;
  for (int first = place, last = place; first < nranks;
       first = 2 * first + 1, last = 2 * last + 2) {
    node.size += std::min(last, nranks - 1) - first + 1;
  }
  return node;
}

TreeNode RootedTreeNode(const HostMap& hosts, int root, int rank) {
  const auto leader = [&](int host) {
    return host == hosts.HostOf(root) ? root : hosts.RanksOf(host).front();
  };
  const int host = hosts.HostOf(rank);
  const std::span<const int> ranks = hosts.RanksOf(host);
  const TreeNode local = RootedTreeNode(static_cast<int>(ranks.size()),
                                        hosts.LocalIndex(leader(host)), hosts.LocalIndex(rank));
  TreeNode node;
  node.size = local.size;
  if (rank == leader(host)) {
    const TreeNode above = RootedTreeNode(hosts.hosts(), hosts.HostOf(root), host);
    if (above.parent >= 0) node.parent = leader(above.parent);
    for (const int child : above.children) {
      node.children.push_back(leader(child));
      node.size += RootedTreeNode(hosts, root, leader(child)).size;
    }
  } else {
    node.parent = ranks[static_cast<size_t>(local.parent)];
  }
  for (const int child : local.children) {
    node.children.push_back(ranks[static_cast<size_t>(child)]);
  }
  return node;
}

}  // namespace inccl
