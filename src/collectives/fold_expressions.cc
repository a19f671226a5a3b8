// SPDX-License-Identifier: Apache-2.0
#include "collectives/fold_expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace inccl {
namespace {

constexpr int kBits = 64;
constexpr int kMany = 1 << 20;  // limit of counting with multiplicity

uint64_t HashOf(std::span<const int> parts) {
  uint64_t hash = parts.size();
  for (int part : parts) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

FoldExpressions::FoldExpressions(int nranks) : nranks_(nranks) {
  const size_t words = static_cast<size_t>((nranks + kBits - 1) / kBits);
  for (int rank = 0; rank < nranks; ++rank) {
    Node leaf;
    leaf.ranks.resize(words);
    leaf.ranks[static_cast<size_t>(rank / kBits)] = uint64_t{1} << (rank % kBits);
    leaf.prefix = rank == 0 ? 1 : 0;
    nodes_.push_back(std::move(leaf));
  }
}

int FoldExpressions::Fold(std::span<const int> parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<int>& candidates = by_hash_[HashOf(parts)];
  for (int candidate : candidates) {
    if (std::equal(parts.begin(), parts.end(), node(candidate).parts.begin(),
                   node(candidate).parts.end())) {
      return candidate;
    }
  }
  const int made = static_cast<int>(nodes_.size());
  nodes_.push_back(MakeFold(parts));
  candidates.push_back(made);
  return made;
}

FoldExpressions::Node FoldExpressions::MakeFold(std::span<const int> parts) const {
  Node fold = node(parts[0]);
  fold.parts.assign(parts.begin(), parts.end());
  for (size_t i = 1; i < parts.size(); ++i) {
    const Node& part = node(parts[i]);
    fold.contributions = std::min(fold.contributions + part.contributions, kMany);
    if (fold.repeated < 0) fold.repeated = part.repeated;
    for (size_t word = 0; word < fold.ranks.size(); ++word) {
      const uint64_t both = fold.ranks[word] & part.ranks[word];
      if (both != 0 && fold.repeated < 0) {
        fold.repeated = static_cast<int>(word) * kBits + std::countr_zero(both);
      }
      fold.ranks[word] |= part.ranks[word];
    }
    const bool next = part.parts.empty() && fold.prefix > 0 && parts[i] == fold.prefix;
    fold.prefix = next ? fold.prefix + 1 : 0;
  }
  fold.distinct = 0;
  for (uint64_t word : fold.ranks) fold.distinct += std::popcount(word);
  return fold;
}

bool FoldExpressions::Contains(int expression, int rank) const {
  const uint64_t word = node(expression).ranks[static_cast<size_t>(rank / kBits)];
  return (word >> (rank % kBits) & 1) != 0;
}

std::string FoldExpressions::Text(int expression) const {
  constexpr int kLongest = 1024;  // contributions; in an invalid schedule they may double in every
                                  // step
  const Node& self = node(expression);
  if (self.parts.empty()) return fmt::format("{}", expression);
  if (self.contributions > kLongest) return fmt::format("(more than {} terms)", kLongest);
  std::string text = "(";
  for (size_t i = 0; i < self.parts.size(); ++i) {
    if (i > 0) text += " + ";
    text += Text(self.parts[i]);
  }
  return text + ")";
}

}  // namespace inccl
