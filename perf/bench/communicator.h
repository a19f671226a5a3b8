// SPDX-License-Identifier: Apache-2.0
//
// The library under test behind owners and Status: its public C API only. Not thread-safe.
#ifndef INCCL_PERF_BENCH_COMMUNICATOR_H_
#define INCCL_PERF_BENCH_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/types.h"
#include "inccl/ccl.h"
#include "perf/support/cause.h"
#include "perf/support/gpu.h"
#include "perf/support/operation.h"
#include "perf/support/options.h"
#include "perf/support/world.h"

namespace inccl::perf {

// A codec of the command line. "none" has a handle too, for the statistics of uncompressed calls.
class BenchCodec {
 public:
  static Result<BenchCodec> Create(const std::string& spec);
  const std::string& given() const { return given_; }          // as typed
  const std::string& canonical() const { return canonical_; }  // every key
  bool none() const { return given_ == "none"; }
  ccl_codec_t handle() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(ccl_codec_t codec) const { ccl_codec_destroy(codec); }
  };
  std::string given_, canonical_;
  std::unique_ptr<ccl_codec, Destroy> handle_;
};

// One call, as the C API takes it.
struct BenchCall {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  uint64_t count = 0;
  const void* send = nullptr;
  void* recv = nullptr;
};

// How the ranks meet: by a unique id that rank 0 hands around, by what the launcher has put into
// the environment, or made all at once, by rank 0, in the process that all are threads of.
enum class Meeting : uint8_t { kById, kByEnvironment, kInProcess };

class Communicator {
 public:
  // Joins all ranks of `world`, rank by rank the same. gpu: the rank's, whose stream takes the
  // calls, which then return when they are on it; nullptr: calls are waited for.
  static Result<Communicator> Create(World& world, const BenchOptions& options, Meeting meeting,
                                     const Gpu* gpu);

  // Whether all-reduces are RunCompressed whatever the codec.
  bool fused() const { return vectors_ > 1; }

  // The plain call.
  Status Run(const BenchCall& call) const;

  // The compressed call (HasCompressed), with seed 0 and step 1 always: so every call on the same
  // data has the same result. stats may be null.
  Status RunCompressed(const BenchCall& call, const BenchCodec& codec,
                       ccl_compression_stats_t* stats) const;

  // Of an error that another rank's end may have caused: WithCause of perf/support/cause.h.
  Status Explained(const Status& status) const { return WithCause(status, comm_.get()); }

  // Of calls that have returned before they ended.
  Status AsyncError() const;

 private:
  struct Destroy {
    void operator()(ccl_comm_t comm) const { ccl_comm_destroy(comm); }
  };
  Status From(ccl_result_t result, const char* what) const;
  Status Shift(const BenchCall& call) const;
  Status RunFused(const BenchCall& call, const ccl_compression_t& compression) const;
  static Result<ccl_comm_t> Join(World& world, const ccl_config_t& config, Meeting meeting);
  static Result<ccl_comm_t> TakeOwn(World& world, const Gpu* gpu);

  int rank_ = 0, size_ = 1;
  uint64_t vectors_ = 1;  // of an all-reduce
  ccl_stream_t stream_ = nullptr;
  std::unique_ptr<ccl_comm, Destroy> comm_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_COMMUNICATOR_H_
