// SPDX-License-Identifier: Apache-2.0
//
// The table of algorithms. Everything that depends on an algorithm alone is a field of its row.
#ifndef INCCL_COLLECTIVES_ALGORITHMS_H_
#define INCCL_COLLECTIVES_ALGORITHMS_H_

#include <cstdint>
#include <iterator>
#include <string_view>

namespace inccl {

enum class Algorithm : uint8_t {
  kRing,
  kTree,
  kRecursiveDoubling,
  kOneShot,
  kTwoShot,
  kHierarchical,
  kEnd
};
inline constexpr int kAlgorithms = static_cast<int>(Algorithm::kEnd);

struct AlgorithmTraits {
  Algorithm algorithm = Algorithm::kEnd;
  const char* name = "unknown";
  // The names in INCCL_ALGO: the algorithm's own, and that of its family.
  std::string_view own = "", family = "";
  // Its schedules fold float sums in rank order (Validate proves it; the tests compare this table
  // with the proof).
  bool folds_in_rank_order = false;
  // A codec whose route has groups can use it.
  bool direct = false;
  // Every consumer of a part reads it at the producer, and the producer does not read it again. So
  // inputs and results in registered buffers need no copy, and slots may be written with
  // non-temporal stores.
  bool zero_copy = false;
  // Ranks of a group can add up contributions for other groups.
  bool groups = false;
  // One rank alone adds up each part's total and sends the result to the others.
  bool one_owner = false;
  // It has schedules only for ranks on several hosts, of which one has several ranks, or on several
  // sites.
  bool several_hosts = false;
};

// In the order of preference for large calls on one host: direct and ring move the fewest bytes,
// direct in the fewest steps.
inline constexpr AlgorithmTraits kAlgorithmTable[] = {
    {.algorithm = Algorithm::kTwoShot,
     .name = "direct",
     .own = "direct_two_shot",
     .family = "direct",
     .folds_in_rank_order = true,
     .direct = true,
     .zero_copy = true,
     .groups = true,
     .one_owner = true},
    {.algorithm = Algorithm::kRing, .name = "ring", .own = "ring", .one_owner = true},
    {.algorithm = Algorithm::kTree, .name = "tree", .own = "tree", .one_owner = true},
    {.algorithm = Algorithm::kRecursiveDoubling,
     .name = "recursive_doubling",
     .own = "recursive_doubling"},
    {.algorithm = Algorithm::kOneShot,
     .name = "direct_one_shot",
     .own = "direct_one_shot",
     .family = "direct",
     .folds_in_rank_order = true,
     .direct = true},
    {.algorithm = Algorithm::kHierarchical,
     .name = "hierarchical",
     .own = "hierarchical",
     .zero_copy = true,
     .one_owner = true,
     .several_hosts = true},
};

inline constexpr AlgorithmTraits kNoTraits = {};

// Returns the row of an algorithm; for any other value a row with all fields false.
constexpr const AlgorithmTraits& TraitsOf(Algorithm algorithm) {
  for (const AlgorithmTraits& row : kAlgorithmTable) {
    if (row.algorithm == algorithm) return row;
  }
  return kNoTraits;
}
constexpr const char* Name(Algorithm algorithm) { return TraitsOf(algorithm).name; }

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
