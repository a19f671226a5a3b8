// SPDX-License-Identifier: Apache-2.0
//
// What a call would do, from the functions that decide it in the library: nothing is run.
#ifndef INCCL_TOOLS_INFO_EXPLAIN_H_
#define INCCL_TOOLS_INFO_EXPLAIN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "collectives/program.h"
#include "compress/codec.h"
#include "init/options.h"
#include "topology/host_map.h"
#include "tuning/tuner.h"

namespace inccl::tools {

struct ExplainRequest {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t bytes = 0;  // of one vector: the call's count times the element
  int nranks = 2;
  int root = 0;
  bool compressed = false;  // a compressed call, with the configuration's codec
  HostMap hosts;            // of the ranks; without ranks: one host
};

// What one rank sends, once per receiver, and the memory it needs.
struct RankTraffic {
  uint64_t slices = 0;
  uint64_t raw_bytes = 0;        // of data slices, in the caller's type
  uint64_t across_bytes = 0;     // those of them that go to other hosts
  uint64_t side_bytes = 0;       // of the agreement of compressed calls
  uint64_t uncounted_bytes = 0;  // beside what the codec's bits count
  uint64_t most_bytes = 0;  // upper bound of the payload, agreement included; exact if uncompressed
  uint64_t memory_bytes = 0;  // slots it shares and scratch of its own
};

struct Explanation {
  uint64_t count = 0;
  std::shared_ptr<const Codec> codec;  // null: uncompressed
  std::string uncompressed_because;    // if compression was asked for
  bool below_min_bytes = false;        // that is why
  std::optional<Choice> choice;        // nullopt: one rank, which only copies
  std::string why;
  bool agreement = false;  // a phase that agrees on scales goes before the data
  uint64_t windows = 0, window_elements = 0;
  uint32_t slice_elements = 0, group = 0;
  SlotOptions slots;
  int steps = 0;           // messages on the longest chain of one window
  double codec_bits = 0;   // per element and phase, in the codec's reference algorithm
  bool reference = false;  // the algorithm chosen is that reference
  std::vector<RankTraffic> ranks;

  // What the payload of a rank will be about; nullopt if only the upper bound is known.
  std::optional<uint64_t> ExpectedBytes(const RankTraffic& rank, DataType type) const;
};

// kInvalidArgument naming what does not fit.
Result<Explanation> Explain(const ExplainRequest& request, const CommOptions& options);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_INFO_EXPLAIN_H_
