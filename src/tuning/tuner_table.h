// SPDX-License-Identifier: Apache-2.0
//
// What inccl-tune has measured on a machine, for the tuner: which algorithm is the fastest, by
// collective, ranks and size. A text file of lines
//
//   COLLECTIVE RANKS plain|compressed BYTES|max ALGORITHM
//
// "calls of up to BYTES bytes of one vector on that many ranks take ALGORITHM". The lines of one
// collective, number of ranks and kind stand together in ascending order of BYTES. A # at the start
// of a line or after a blank begins a comment.
#ifndef INCCL_TUNING_TUNER_TABLE_H_
#define INCCL_TUNING_TUNER_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "collectives/schedule.h"

namespace inccl {

struct TunerRow {
  static constexpr uint64_t kAnyBytes = UINT64_MAX;  // "max"

  Collective collective = Collective::kAllReduce;
  int nranks = 2;
  bool compressed = false;
  uint64_t max_bytes = kAnyBytes;
  Algorithm algorithm = Algorithm::kRing;

  bool operator==(const TunerRow&) const = default;
};

// The line of a row, without its end.
std::string FormatRow(const TunerRow& row);

class TunerTable {
 public:
  // No opinion about anything.
  TunerTable() = default;

  // kInvalidArgument naming file, line and what is wrong with it.
  static Result<TunerTable> Parse(std::string_view text, const std::string& file);
  // Also kInvalidArgument naming the file if it cannot be read.
  static Result<TunerTable> Load(const std::string& path);

  // What was the fastest for such a call; nothing if that has not been measured. For a number of
  // ranks that has not been measured the next smaller one that has been counts.
  std::optional<Algorithm> Find(Collective collective, int nranks, bool compressed,
                                uint64_t bytes) const;

  bool empty() const { return rows_.empty(); }
  const std::vector<TunerRow>& rows() const { return rows_; }
  // Equal tables have equal digests; 0 of an empty one. Ranks compare it.
  uint64_t Digest() const;

 private:
  std::vector<TunerRow> rows_;  // sorted by collective, kind, ranks, bytes
};

}  // namespace inccl

#endif  // INCCL_TUNING_TUNER_TABLE_H_
