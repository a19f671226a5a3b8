// SPDX-License-Identifier: Apache-2.0
//
// Symbolic values of the validator: which contributions have been folded, in which order, and after
// which step they were rounded. Equal expressions have equal numbers (hash-consing), so comparing
// results is comparing ints.
#ifndef INCCL_COLLECTIVES_FOLD_EXPRESSIONS_H_
#define INCCL_COLLECTIVES_FOLD_EXPRESSIONS_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace inccl {

class FoldExpressions {
 public:
  explicit FoldExpressions(int nranks);

  // The contribution of rank r.
  int Leaf(int rank) const { return rank; }
  // The fold of several values in this order; the fold of one value is that value.
  int Fold(std::span<const int> parts);

  int contributions(int expression) const { return node(expression).contributions; }
  bool Contains(int expression, int rank) const;
  // A rank that the expression contains more than once; -1 if there is none.
  int Repeated(int expression) const { return node(expression).repeated; }
  // Ranks 0, 1, ..., n-1 one after the other: ((0 + 1) + 2) + ...
  bool InRankOrder(int expression) const { return node(expression).prefix == nranks_; }
  bool Complete(int expression) const { return node(expression).distinct == nranks_; }
  // "0", "(0 + 1 + 2)", "((0 + 1) + (2 + 3))": parentheses are steps.
  std::string Text(int expression) const;

 private:
  struct Node {
    std::vector<int> parts;       // empty: a leaf
    std::vector<uint64_t> ranks;  // set
    int contributions = 1;        // with multiplicity; 2^20 means many
    int distinct = 1;
    int prefix = 0;  // k > 0: exactly ((0 + 1) + ...) + k-1
    int repeated = -1;
  };
  const Node& node(int expression) const { return nodes_[static_cast<size_t>(expression)]; }
  Node MakeFold(std::span<const int> parts) const;

  int nranks_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, std::vector<int>> by_hash_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_FOLD_EXPRESSIONS_H_
