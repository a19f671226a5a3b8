// SPDX-License-Identifier: Apache-2.0
//
// What the ranks put in. Every rank has a pattern of `period` fp32 values from a data set; its send
// buffer is the pattern, repeated, in the type of the row. So every rank can compute every result,
// at every size, from the patterns of all ranks alone. The period of a generated data set is an odd
// number of superblocks, so that no chunk of a schedule looks like another.
//
// Floats take the values as they are, rounded to the type; except for products, where x becomes
// sign(x) (0.75 + 0.5 |x| / (1 + |x|)), in 0.75..1.25, so that a product of 64 stays in range.
// Integers take hashed bits of the value over their whole range, so that sums and products wrap;
// except for averages, where they are divided by n, so that none wraps.
#ifndef INCCL_PERF_SUPPORT_INPUTS_H_
#define INCCL_PERF_SUPPORT_INPUTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "perf/support/world.h"

namespace inccl::perf {

class Inputs {
 public:
  // This rank's pattern from a data set; at most `max_count` of its elements will be used. Errors:
  // those of MakeData, perhaps on some ranks only.
  static Result<std::vector<float>> MakePattern(const World& world, const std::string& data,
                                                uint64_t max_count, uint64_t seed);
  // Exchanges the patterns, equally long on all ranks.
  static Result<Inputs> Gather(World& world, const std::vector<float>& pattern);
  // From patterns[r * period, (r + 1) * period).
  Inputs(int nranks, uint64_t period, std::vector<float> patterns);

  int nranks() const { return nranks_; }
  uint64_t period() const { return period_; }
  std::span<const float> pattern(int rank) const {
    return std::span(patterns_).subspan(static_cast<size_t>(rank) * period_, period_);
  }

  // Elements [first, first + out.size()) of a rank's pattern as the floats that the float type
  // `type` holds, before any rounding to it is undone: exactly what the library gets.
  void Floats(int rank, DataType type, ReduceOp op, uint64_t first, std::span<double> out) const;
  // The same for an integer type: bits, truncated to the type.
  void Integers(int rank, DataType type, ReduceOp op, uint64_t first,
                std::span<uint64_t> out) const;

  // Fills a send buffer: element i is element (first + i) mod period of the rank's pattern.
  void Fill(int rank, DataType type, ReduceOp op, uint64_t first, uint64_t count, void* out) const;

 private:
  int nranks_;
  uint64_t period_;
  std::vector<float> patterns_;
};

// The period for a data set with `natural` elements of its own (0: a generator), if at most
// `max_count` are used by each of `nranks` ranks.
uint64_t PatternPeriod(uint64_t natural, uint64_t max_count, int nranks);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_INPUTS_H_
