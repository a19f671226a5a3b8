// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm runs a call: a pure function of the call, the number of ranks and the agreed
// configuration, so that all ranks choose alike.
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
#include "compress/codec.h"
#include "tuning/tuner_table.h"

namespace inccl {

// The algorithms a user admits, in NCCL's grammar: "ring", "ring,tree", "^tree",
// "ring;allreduce:direct;broadcast:^ring". Names: ring, tree, recursive_doubling, direct (both
// shots), direct_one_shot, direct_two_shot. A list without a collective holds for all; a call for
// which none of it exists is an error (Choose). An empty list admits everything.
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
  const std::string& text() const { return text_; }  // as parsed

 private:
  friend class FilterParser;
  using Set = std::bitset<kAlgorithms>;
  std::array<Set, kCollectiveKinds> allowed_;
  std::string text_;
};

// Whether float sums of this schedule are folded in rank order (Validate's proof; the tests hold
// this table to it).
bool FoldsInRankOrder(Collective collective, Algorithm algorithm);

struct TunerCall {
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;  // of one vector, uncompressed
  int nranks = 1;
  bool compressed = false;
  bool reproducible = false;
  Route route{};  // of the codec
  // A codec was asked for that leaves calls this small alone: sums in rank order, if that is
  // admitted.
  bool below_min_bytes = false;
};

// Why an algorithm was chosen.
enum class TunerRule : uint8_t {
  kTable,        // measured as the fastest
  kOnlyOne,      // nothing else is admitted
  kOneStep,      // small, few ranks
  kLogarithmic,  // small, many ranks
  kInOrder,      // the first admitted in the order of what large calls prefer
};

struct Choice {
  Algorithm algorithm = Algorithm::kRing;
  bool side_one_shot = false;
  TunerRule rule = TunerRule::kInOrder;
};

// kInvalidArgument if nothing is left that filter, codec and `reproducible` admit. Where more than
// one is, `table` goes first, if it has an opinion that is among them.
Result<Choice> Choose(const TunerCall& call, const AlgorithmFilter& filter,
                      const TunerTable& table = {});

// What Choose has chosen for `call` and why, in words.
std::string Explain(const TunerCall& call, const Choice& choice);

}  // namespace inccl

#endif  // INCCL_TUNING_TUNER_H_
