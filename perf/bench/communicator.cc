// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/communicator.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "perf/support/agree.h"

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

Result<ccl_comm_t> Communicator::Join(World& world, const ccl_config_t& config, Meeting meeting) {
  ccl_comm_t comm = nullptr;
  if (meeting == Meeting::kByEnvironment) {
    const ccl_result_t result = ccl_comm_init_env(&comm, &config);
    if (result != CCL_SUCCESS) return Describe(result, "ccl_comm_init_env", nullptr);
    return comm;
  }
  const Result<ccl_unique_id_t> id = ShareUniqueId(world);
  if (!id.ok()) return id.status();
  const ccl_result_t result =
      ccl_comm_init_rank_config(&comm, world.size(), *id, world.rank(), &config);
  if (result != CCL_SUCCESS) return Describe(result, "ccl_comm_init_rank_config", nullptr);
  return comm;
}

// Rank 0 makes all of them and hands each rank its own.
Result<ccl_comm_t> Communicator::TakeOwn(World& world, const Gpu* gpu) {
  std::vector<ccl_comm_t> comms(static_cast<size_t>(world.size()));
  Status made;
  if (world.rank() == 0) {
    std::vector<int> devices(comms.size());
    for (size_t i = 0; gpu != nullptr && i < devices.size(); ++i) {
      devices[i] = static_cast<int>(i) % gpu->count();
    }
    const ccl_result_t result =
        ccl_comm_init_all(comms.data(), world.size(), gpu == nullptr ? nullptr : devices.data());
    if (result != CCL_SUCCESS) made = Describe(result, "ccl_comm_init_all", nullptr);
  }
  if (Status s = Agree(world, made); !s.ok()) return s;
  Status s = world.Broadcast(std::as_writable_bytes(std::span(comms)));
  if (!s.ok()) return s;
  return comms[static_cast<size_t>(world.rank())];
}

Result<Communicator> Communicator::Create(World& world, const BenchOptions& options,
                                          Meeting meeting, const Gpu* gpu) {
  ccl_config_t config = CCL_CONFIG_INIT;
  if (!options.algorithm.empty()) config.algorithm = options.algorithm.c_str();
  config.channels = options.channels;
  config.reproducible = options.reproducible ? 1 : 0;
  config.op_timeout_ms = options.timeout_s * 1000;
  Communicator communicator;
  communicator.rank_ = world.rank();
  communicator.size_ = world.size();
  communicator.vectors_ = static_cast<uint64_t>(options.vectors);
  if (gpu != nullptr) communicator.stream_ = static_cast<ccl_stream_t>(gpu->stream());
  Result<ccl_comm_t> comm =
      meeting == Meeting::kInProcess ? TakeOwn(world, gpu) : Join(world, config, meeting);
  if (!comm.ok()) return comm.status();
  communicator.comm_.reset(*comm);
  int rank = -1, size = -1;
  if (Status s = communicator.From(ccl_comm_user_rank(*comm, &rank), "ccl_comm_user_rank");
      !s.ok()) {
    return s;
  }
  if (Status s = communicator.From(ccl_comm_count(*comm, &size), "ccl_comm_count"); !s.ok())
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
      return From(ccl_allreduce(c.send, c.recv, c.count, type, op, comm, stream_), "ccl_allreduce");
    case Operation::kReduceScatter:
      return From(ccl_reduce_scatter(c.send, c.recv, c.count, type, op, comm, stream_),
                  "ccl_reduce_scatter");
    case Operation::kAllGather:
      return From(ccl_allgather(c.send, c.recv, c.count, type, comm, stream_), "ccl_allgather");
    case Operation::kBroadcast:
      return From(ccl_broadcast(c.send, c.recv, c.count, type, c.root, comm, stream_),
                  "ccl_broadcast");
    case Operation::kReduce:
      return From(ccl_reduce(c.send, c.recv, c.count, type, op, c.root, comm, stream_),
                  "ccl_reduce");
    case Operation::kAllToAll:
      return From(ccl_alltoall(c.send, c.recv, c.count, type, comm, stream_), "ccl_alltoall");
    case Operation::kGather:
      return From(ccl_gather(c.send, c.recv, c.count, type, c.root, comm, stream_), "ccl_gather");
    case Operation::kScatter:
      return From(ccl_scatter(c.send, c.recv, c.count, type, c.root, comm, stream_), "ccl_scatter");
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
      From(ccl_send(c.send, c.count, type, NextRank(rank_, size_), comm, stream_), "ccl_send");
  Status received =
      From(ccl_recv(c.recv, c.count, type, PreviousRank(rank_, size_), comm, stream_), "ccl_recv");
  const Status ended = From(ccl_group_end(), "ccl_group_end");  // whatever came before
  if (!sent.ok()) return sent;
  return received.ok() ? ended : received;
}

Status Communicator::RunFused(const BenchCall& c, const ccl_compression_t& compression) const {
  std::vector<ccl_vector_t> vectors(vectors_);
  const size_t element = SizeOf(c.type);
  for (uint64_t i = 0; i < vectors_; ++i) {
    const uint64_t first = c.count * i / vectors_;
    vectors[i] = {static_cast<const std::byte*>(c.send) + first * element,
                  static_cast<std::byte*>(c.recv) + first * element,
                  c.count * (i + 1) / vectors_ - first, nullptr};
  }
  return From(ccl_allreduce_fused(vectors.data(), vectors.size(), Native(c.type), Native(c.op),
                                  &compression, comm_.get(), stream_),
              "ccl_allreduce_fused");
}

Status Communicator::RunCompressed(const BenchCall& c, const BenchCodec& codec,
                                   ccl_compression_stats_t* stats) const {
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  compression.codec = codec.handle();
  compression.seed = kCodecSeed;
  compression.step = kCodecStep;
  compression.stats = stats;
  if (fused()) return RunFused(c, compression);
  ccl_comm_t comm = comm_.get();
  const ccl_datatype_t type = Native(c.type);
  const ccl_redop_t op = Native(c.op);
  switch (c.operation) {
    case Operation::kAllReduce:
      return From(
          ccl_allreduce_compressed(c.send, c.recv, c.count, type, op, &compression, comm, stream_),
          "ccl_allreduce_compressed");
    case Operation::kReduceScatter:
      return From(ccl_reduce_scatter_compressed(c.send, c.recv, c.count, type, op, &compression,
                                                comm, stream_),
                  "ccl_reduce_scatter_compressed");
    case Operation::kAllGather:
      return From(
          ccl_allgather_compressed(c.send, c.recv, c.count, type, &compression, comm, stream_),
          "ccl_allgather_compressed");
    default: return InternalError(fmt::format("there is no compressed {}", Name(c.operation)));
  }
}

Status Communicator::AsyncError() const {
  if (stream_ == nullptr) return {};
  ccl_result_t error = CCL_SUCCESS;
  Status s = From(ccl_comm_get_async_error(comm_.get(), &error), "ccl_comm_get_async_error");
  return s.ok() ? From(error, "a call on the stream") : s;
}

}  // namespace inccl::perf
