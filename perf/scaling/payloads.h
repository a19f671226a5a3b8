// SPDX-License-Identifier: Apache-2.0
//
// Sizes of payloads and times of steps without elements: the library's own accounting of the codecs
// `none` and `hbi`, for calls of fp32.
#ifndef INCCL_PERF_SCALING_PAYLOADS_H_
#define INCCL_PERF_SCALING_PAYLOADS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/hbi/plan.h"
#include "perf/scaling/machine.h"

namespace inccl::perf {

// What a step reads and writes, by form.
struct StepShape {
  bool side = false;
  uint32_t own = 0;       // inputs: the rank's elements
  uint32_t sums = 0;      // inputs: partial sums or side information
  bool forwards = false;  // the input is a result
  uint32_t payloads = 0;  // outputs on lanes and in scratch
  bool result = false;    // some of them are results
  bool output = false;    // writes the rank's output
  uint32_t bytes = 0;     // of one such payload
};

// All superblocks of the vectors have the same energy, so a plan of `hbi` spends its whole budget.
class Payloads {
 public:
  // `spec`: "none" or "hbi:...".
  static Result<std::unique_ptr<Payloads>> Make(const std::string& spec, int nranks,
                                                uint64_t count);

  const Codec& codec() const { return *codec_; }
  // Bytes of a payload.
  uint32_t Bytes(const Format& format, const Range& range);
  // Processor time of a step on `count` elements, in nanoseconds. `large`: the vector is larger
  // than the cache.
  double Work(const StepShape& shape, uint32_t count, bool large, const Machine& machine) const;

 private:
  using Sums = std::vector<uint32_t>;  // bytes of the superblocks before each of a window
  // Windows of one length, which have one plan.
  struct Window {
    std::vector<uint8_t> points;
    std::vector<Sums> sums;  // by contributions; [0]: results
  };
  const Sums& SumsOf(uint32_t contributions, Window* window) const;

  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<hbi::Planner> planner_;  // nullptr: `none`
  uint64_t last_begin_ = 0;                // the first element of the last window
  Window whole_, last_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SCALING_PAYLOADS_H_
