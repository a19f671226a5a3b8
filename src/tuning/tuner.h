// SPDX-License-Identifier: Apache-2.0
//
// Chooses the algorithm of a call: a pure function of the call, the hosts of the ranks and the
// agreed configuration, so all ranks choose the same.
#ifndef INCCL_TUNING_TUNER_H_
#define INCCL_TUNING_TUNER_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"
#include "collectives/schedule.h"
#include "tuning/cost_model.h"
#include "tuning/tuner_table.h"

namespace inccl {

// "ring, tree, ...": the names of algorithms and of their families in INCCL_ALGO.
std::string AlgorithmNames();

// The algorithms that a user admits, in NCCL's grammar: "ring", "ring,tree", "^tree",
// "ring;allreduce:direct;broadcast:^ring". Names: AlgorithmNames(). A list without a collective
// applies to all. A call whose collective has none of the listed algorithms is an error (Choose).
// An empty list admits everything.
class AlgorithmFilter {
 public:
  AlgorithmFilter();
  static Result<AlgorithmFilter> Parse(std::string_view text);
  bool Admits(Collective collective, Algorithm algorithm) const {
    return allowed_[static_cast<size_t>(collective)][static_cast<size_t>(algorithm)];
  }
  bool AdmitsAny(Collective collective) const {
    return allowed_[static_cast<size_t>(collective)].any();
  }
  const std::string& text() const { return text_; }  // in lower case, without blanks

 private:
  friend class FilterParser;
  using Set = std::bitset<kAlgorithms>;
  std::array<Set, kCollectiveKinds> allowed_;
  std::string text_;
};

// Whether this schedule folds float sums in rank order (Validate proves it; the tests compare this
// table with the proof).
bool FoldsInRankOrder(Collective collective, Algorithm algorithm);

// The rule by which an algorithm was chosen.
enum class TunerRule : uint8_t {
  kTable,        // the fastest in the measured table
  kOnlyOne,      // the only one admitted
  kOneStep,      // small call, few ranks
  kLogarithmic,  // small call, many ranks
  kModel,        // several hosts: the least estimate
  kInOrder,      // the first admitted one in the order for large calls
};

struct Choice {
  Algorithm algorithm = Algorithm::kRing;
  bool side_one_shot = false;
  TunerRule rule = TunerRule::kInOrder;
  // kModel: of the algorithms that were compared; 0: not compared.
  std::array<uint64_t, kAlgorithms> estimates_ns{};
};

// Returns kInvalidArgument if filter, hosts, codec, `reproducible` and slots admit no algorithm. If
// they admit several for ranks on one host, an entry of `table` for the call decides, provided it
// is among them; for ranks on several hosts the cost model does, with the constants of `table`.
Result<Choice> Choose(const TunerCall& call, const AlgorithmFilter& filter,
                      const TunerTable& table = {});

// Explains in words what Choose has chosen for `call` and why.
std::string Explain(const TunerCall& call, const Choice& choice);

}  // namespace inccl

#endif  // INCCL_TUNING_TUNER_H_
