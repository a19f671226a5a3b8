// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/communicator.h"

#include <fmt/format.h>

#include <array>

namespace inccl::perf {
namespace {

constexpr uint64_t kCodecSeed = 0;
constexpr uint64_t kCodecStep = 1;

// The numbers of base/types.h are those of the C API.
ccl_datatype_t Native(DataType type) { return static_cast<ccl_datatype_t>(type); }
ccl_redop_t Native(ReduceOp op) { return static_cast<ccl_redop_t>(op); }

Status Describe(ccl_result_t result, const std::string& what, ccl_comm_t comm) {
  return {static_cast<Code>(result),
          fmt::format("{}: {}: {}", what, ccl_get_error_string(result), ccl_get_last_error(comm))};
}

}  // namespace

Result<BenchCodec> BenchCodec::Create(const std::string& spec) {
  BenchCodec codec;
  codec.given_ = spec;
  ccl_codec_t handle = nullptr;
  ccl_result_t result = ccl_codec_create(&handle, spec.c_str());
  if (result != CCL_SUCCESS) return Describe(result, "--codec " + spec, nullptr);
  codec.handle_.reset(handle);
  std::array<char, 1024> canonical{};
  result = ccl_codec_spec(handle, canonical.data(), canonical.size());
  if (result != CCL_SUCCESS) return Describe(result, "ccl_codec_spec of " + spec, nullptr);
  codec.canonical_ = canonical.data();
  return codec;
}

Result<Communicator> Communicator::Create(World& world, const BenchOptions& options, bool by_id) {
  ccl_config_t config = CCL_CONFIG_INIT;
  if (!options.algorithm.empty()) config.algorithm = options.algorithm.c_str();
  config.channels = options.channels;
  config.reproducible = options.reproducible ? 1 : 0;
  config.op_timeout_ms = options.timeout_s * 1000;
  Communicator communicator;
  communicator.rank_ = world.rank();
  communicator.size_ = world.size();
  ccl_comm_t comm = nullptr;
  ccl_result_t result;
  if (by_id) {
    ccl_unique_id_t id{};
    if (world.rank() == 0) {
      result = ccl_get_unique_id(&id);
      if (result != CCL_SUCCESS) return Describe(result, "ccl_get_unique_id", nullptr);
    }
    Status s = world.Broadcast(std::as_writable_bytes(std::span(&id, 1)));
    if (!s.ok()) return s;
    result = ccl_comm_init_rank_config(&comm, world.size(), id, world.rank(), &config);
    if (result != CCL_SUCCESS) return Describe(result, "ccl_comm_init_rank_config", nullptr);
  } else {
    result = ccl_comm_init_env(&comm, &config);
    if (result != CCL_SUCCESS) return Describe(result, "ccl_comm_init_env", nullptr);
  }
  communicator.comm_.reset(comm);
  int rank = -1, size = -1;
  if (Status s = communicator.From(ccl_comm_user_rank(comm, &rank), "ccl_comm_user_rank");
      !s.ok()) {
    return s;
  }
  if (Status s = communicator.From(ccl_comm_count(comm, &size), "ccl_comm_count"); !s.ok())
    return s;
  if (rank != world.rank() || size != world.size()) {
    return InvalidUsage(fmt::format("the library is rank {} of {}, the launcher says {} of {}",
                                    rank, size, world.rank(), world.size()));
  }
  return communicator;
}

Status Communicator::From(ccl_result_t result, const char* what) const {
  if (result == CCL_SUCCESS) return {};
  return Describe(result, what, comm_.get());
}

Status Communicator::Run(const BenchCall& c) const {
  ccl_comm_t comm = comm_.get();
  const ccl_datatype_t type = Native(c.type);
  const ccl_redop_t op = Native(c.op);
  switch (c.operation) {
    case Operation::kAllReduce:
      return From(ccl_allreduce(c.send, c.recv, c.count, type, op, comm, nullptr), "ccl_allreduce");
    case Operation::kReduceScatter:
      return From(ccl_reduce_scatter(c.send, c.recv, c.count, type, op, comm, nullptr),
                  "ccl_reduce_scatter");
    case Operation::kAllGather:
      return From(ccl_allgather(c.send, c.recv, c.count, type, comm, nullptr), "ccl_allgather");
    case Operation::kBroadcast:
      return From(ccl_broadcast(c.send, c.recv, c.count, type, c.root, comm, nullptr),
                  "ccl_broadcast");
    case Operation::kReduce:
      return From(ccl_reduce(c.send, c.recv, c.count, type, op, c.root, comm, nullptr),
                  "ccl_reduce");
    case Operation::kAllToAll:
      return From(ccl_alltoall(c.send, c.recv, c.count, type, comm, nullptr), "ccl_alltoall");
    case Operation::kGather:
      return From(ccl_gather(c.send, c.recv, c.count, type, c.root, comm, nullptr), "ccl_gather");
    case Operation::kScatter:
      return From(ccl_scatter(c.send, c.recv, c.count, type, c.root, comm, nullptr), "ccl_scatter");
    case Operation::kSendRecv: return Shift(c);
  }
  return InternalError("unknown operation");
}

// To the next rank, from the one before, at the same time.
Status Communicator::Shift(const BenchCall& c) const {
  ccl_comm_t comm = comm_.get();
  const ccl_datatype_t type = Native(c.type);
  if (Status s = From(ccl_group_start(), "ccl_group_start"); !s.ok()) return s;
  Status sent =
      From(ccl_send(c.send, c.count, type, NextRank(rank_, size_), comm, nullptr), "ccl_send");
  Status received =
      From(ccl_recv(c.recv, c.count, type, PreviousRank(rank_, size_), comm, nullptr), "ccl_recv");
  const Status ended = From(ccl_group_end(), "ccl_group_end");  // whatever came before
  if (!sent.ok()) return sent;
  return received.ok() ? ended : received;
}

Status Communicator::RunCompressed(const BenchCall& c, const BenchCodec& codec,
                                   ccl_compression_stats_t* stats) const {
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  compression.codec = codec.handle();
  compression.seed = kCodecSeed;
  compression.step = kCodecStep;
  compression.stats = stats;
  ccl_comm_t comm = comm_.get();
  const ccl_datatype_t type = Native(c.type);
  const ccl_redop_t op = Native(c.op);
  switch (c.operation) {
    case Operation::kAllReduce:
      return From(
          ccl_allreduce_compressed(c.send, c.recv, c.count, type, op, &compression, comm, nullptr),
          "ccl_allreduce_compressed");
    case Operation::kReduceScatter:
      return From(ccl_reduce_scatter_compressed(c.send, c.recv, c.count, type, op, &compression,
                                                comm, nullptr),
                  "ccl_reduce_scatter_compressed");
    case Operation::kAllGather:
      return From(
          ccl_allgather_compressed(c.send, c.recv, c.count, type, &compression, comm, nullptr),
          "ccl_allgather_compressed");
    default: return InternalError(fmt::format("there is no compressed {}", Name(c.operation)));
  }
}

}  // namespace inccl::perf
