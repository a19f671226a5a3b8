// SPDX-License-Identifier: Apache-2.0
//
// Chooses the algorithm of a call: a pure function of the call, the hosts of the ranks and the
// agreed configuration, so all ranks choose the same.
#ifndef INCCL_TUNING_TUNER_H_
#define INCCL_TUNING_TUNER_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "collectives/schedule.h"
#include "tuning/cost_model.h"
#include "tuning/segmentation.h"

namespace inccl {

// What inccl-tune has measured, for the tuner: the fastest algorithms on a machine by collective,
// ranks and size, and the constants of the cost model (cost_model.h). A text file of lines
//
//   COLLECTIVE RANKS plain|compressed BYTES|max ALGORITHM
//   cost NAME VALUE
//
// The first means "calls of up to BYTES bytes of one vector on that many ranks use ALGORITHM". The
// lines of one collective, number of ranks and kind form a group, in ascending order of BYTES. The
// second sets a constant; the others keep their defaults. A # at the start of a line or after a
// blank begins a comment.
struct TunerRow {
  static constexpr uint64_t kAnyBytes = UINT64_MAX;  // "max"

  Collective collective = Collective::kAllReduce;
  int nranks = 2;
  bool compressed = false;
  uint64_t max_bytes = kAnyBytes;
  Algorithm algorithm = Algorithm::kRing;

  bool operator==(const TunerRow&) const = default;
};

// Returns the line of a row, without the newline.
std::string FormatRow(const TunerRow& row);
std::string FormatCost(const CostField& field, const CostConstants& costs);

class TunerTable {
 public:
  // An empty table: Find returns nothing, and the constants are the defaults.
  TunerTable() = default;

  // Returns kInvalidArgument with file, line and reason if a line is malformed.
  static Result<TunerTable> Parse(std::string_view text, const std::string& file);
  // Also returns kInvalidArgument if the file cannot be read.
  static Result<TunerTable> Load(const std::string& path);

  // Returns the fastest algorithm for such a call, or nothing if it was not measured. A number of
  // ranks that was not measured uses the next smaller one that was.
  std::optional<Algorithm> Find(Collective collective, int nranks, bool compressed,
                                uint64_t bytes) const;

  bool empty() const { return rows_.empty() && costs_ == CostConstants(); }
  const std::vector<TunerRow>& rows() const { return rows_; }
  const CostConstants& costs() const { return costs_; }
  // Sets network_byte_ps to the time that TCP takes for a byte on an Ethernet of this rate, and
  // network_latency_ns to half a long round trip, unless the file has set them. 0: the rate is not
  // known. Round trips below kLongRoundTripUs leave the default. A network_latency_ns of the file
  // stands for all links, so for site_latency_ns as well if that is not there.
  void SetLink(uint32_t mbps, uint32_t round_trip_us);
  // Equal tables have equal digests, an empty one 0. Ranks compare it.
  uint64_t Digest() const;

 private:
  std::vector<TunerRow> rows_;  // sorted by collective, kind, ranks, bytes
  CostConstants costs_;
  // These constants are those of the file.
  bool rate_given_ = false, latency_given_ = false, site_latency_given_ = false;
};

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
  bool shortens = false;  // ShorteningPays
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
