// SPDX-License-Identifier: Apache-2.0
//
// The one table of algorithms. What depends on an algorithm alone is a field of its row.
#ifndef INCCL_COLLECTIVES_ALGORITHMS_H_
#define INCCL_COLLECTIVES_ALGORITHMS_H_

#include <cstdint>
#include <iterator>
#include <string_view>

namespace inccl {

enum class Algorithm : uint8_t { kRing, kTree, kRecursiveDoubling, kDirectOneShot, kDirect, kEnd };
inline constexpr int kAlgorithms = static_cast<int>(Algorithm::kEnd);

struct AlgorithmTraits {
  Algorithm algorithm;
  const char* name;
  // The names by which INCCL_ALGO knows it: its own, and that of a family.
  std::string_view own, family;
  // Float sums of its schedules are folded in rank order (Validate's proof; the tests hold the
  // table to it).
  bool folds_in_rank_order;
  // A codec whose route is direct or ring can take it.
  bool direct, ring;
};

// In the order of what large calls prefer: direct and ring move the fewest bytes, direct in the
// fewest steps.
inline constexpr AlgorithmTraits kAlgorithmTable[] = {
    {Algorithm::kDirect, "direct", "direct_two_shot", "direct", true, true, false},
    {Algorithm::kRing, "ring", "ring", "", false, false, true},
    {Algorithm::kTree, "tree", "tree", "", false, false, false},
    {Algorithm::kRecursiveDoubling, "recursive_doubling", "recursive_doubling", "", false, false,
     false},
    {Algorithm::kDirectOneShot, "direct_one_shot", "direct_one_shot", "direct", true, true, false},
};

constexpr const AlgorithmTraits* FindTraits(Algorithm algorithm) {
  for (const AlgorithmTraits& row : kAlgorithmTable) {
    if (row.algorithm == algorithm) return &row;
  }
  return nullptr;
}
constexpr bool EveryAlgorithmHasARow() {
  for (int a = 0; a < kAlgorithms; ++a) {
    int rows = 0;
    for (const AlgorithmTraits& row : kAlgorithmTable) rows += static_cast<int>(row.algorithm) == a;
    if (rows != 1) return false;
  }
  return true;
}
static_assert(EveryAlgorithmHasARow() && std::size(kAlgorithmTable) == kAlgorithms,
              "each value of Algorithm but kEnd has one row in kAlgorithmTable");

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_ALGORITHMS_H_
