// SPDX-License-Identifier: Apache-2.0
//
// Ways to take a sum over ranks: a codec of the library over one of its algorithms or a reducer,
// driven through the public C API with the ranks as threads of this process, or a reference ring.
#ifndef INCCL_PERF_ACCURACY_WAY_H_
#define INCCL_PERF_ACCURACY_WAY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "inccl/ccl.h"
#include "perf/accuracy/measure.h"

namespace inccl::tools {

struct Way {
  enum class Kind { kCodec, kReducer, kBf16Ring, kMxfp8Ring };
  Kind kind = Kind::kCodec;
  std::string name;    // the specification, or the ring's name
  std::string algo;    // "-" for the reference rings
  std::string series;  // of which line of a plot this is a point
};

Way Bf16Reference();
Way Mxfp8Reference();
// A specification with a '|' is a reducer's. `algo` empty: the one that the specification's bits
// are about, or that such codecs are used with.
Way CodecWay(const std::string& spec, const std::string& algo);

// kInvalidArgument with the library's words if it does not know the codec, the reducer or an
// option.
Status Available(const Way& way);

struct Sum {
  std::vector<float> result;
  double bits = 0;  // payload bits per element and phase, averaged over the ranks
};

// The ranks of one way. Not thread-safe. Only one at a time should be created: the algorithm is
// chosen by the environment.
class Ranks {
 public:
  static Result<std::unique_ptr<Ranks>> Create(const Way& way, int nranks);
  ~Ranks();
  // Sums from now on feed back errors of vectors of `count` elements. A reducer does what its own
  // specification says.
  Status UseResiduals(size_t count);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // The sum of `inputs`, one per rank. Step 0 is the number of sums taken so far. An error if ranks
  // have different results or the library did not compress; kInvalidArgument if it refuses the call
  // (a codec that does not run over this algorithm).
  Result<Sum> Take(const Vectors& inputs, uint64_t step);

 private:
  explicit Ranks(const Way& way) : way_(way) {}
  Status MakeStates(size_t count);
  Status CheckRanks(const Vectors& outputs,
                    const std::vector<ccl_compression_stats_t>& stats) const;

  Way way_;
  ccl_codec_t codec_ = nullptr;
  ccl_reducer_t reducer_ = nullptr;
  std::vector<ccl_comm_t> comms_;
  std::vector<ccl_residual_t> residuals_;    // by rank, or none
  std::vector<ccl_reducer_state_t> states_;  // of the reducer, by rank; of a vector
};

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_WAY_H_
