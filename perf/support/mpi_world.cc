// SPDX-License-Identifier: Apache-2.0
#include "perf/support/mpi_world.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>

#include "perf/support/output.h"
#include "perf/support/shared_barrier.h"

namespace inccl::perf {
namespace {

constexpr size_t kMaxMessage = 1u << 24;  // bytes at a time, far below what an int counts

Status FromMpi(int result, const char* what) {
  if (result == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  return SystemError(fmt::format("{}: {}", what, text.data()));
}

class MpiWorld : public World {
 public:
  MpiWorld() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    ShareBarrier();
  }
  ~MpiWorld() override {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    if (host_ != MPI_COMM_NULL) MPI_Comm_free(&host_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Barrier() override {
    if (barrier_ == nullptr) return FromMpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    barrier_->Wait(static_cast<uint32_t>(size_));  // never aborted: mpirun ends what fails
    return {};
  }

  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::vector<std::byte> received(std::min(mine.size(), kMaxMessage) *
                                    static_cast<size_t>(size_));
    for (size_t at = 0; at < mine.size(); at += kMaxMessage) {
      const size_t now = std::min(kMaxMessage, mine.size() - at);
      const int count = static_cast<int>(now);
      Status s = FromMpi(MPI_Allgather(mine.data() + at, count, MPI_BYTE, received.data(), count,
                                       MPI_BYTE, MPI_COMM_WORLD),
                         "MPI_Allgather");
      if (!s.ok()) return s;
      for (size_t rank = 0; rank < static_cast<size_t>(size_); ++rank) {
        std::memcpy(all.data() + rank * mine.size() + at, received.data() + rank * now, now);
      }
    }
    return {};
  }

  Status Broadcast(std::span<std::byte> bytes) override {
    return FromMpi(
        MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD),
        "MPI_Bcast");
  }

 private:
  // One page that all ranks share, if they are on one host.
  void ShareBarrier() {
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host_) !=
        MPI_SUCCESS) {
      return;
    }
    int ranks_here = 0;
    MPI_Comm_size(host_, &ranks_here);
    if (ranks_here != size_) return;
    void* mine = nullptr;
    const MPI_Aint bytes = rank_ == 0 ? static_cast<MPI_Aint>(sizeof(SharedBarrier)) + 64 : 0;
    if (MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, host_, &mine, &window_) != MPI_SUCCESS) {
      return;
    }
    MPI_Aint size = 0;
    int unit = 0;
    void* base = nullptr;
    MPI_Win_shared_query(window_, 0, &size, &unit, &base);
    // Aligned relative to the page, which is the same in every process.
    const auto address = reinterpret_cast<uintptr_t>(base);
    void* aligned = static_cast<std::byte*>(base) + (64 - address % 64) % 64;
    if (rank_ == 0) new (aligned) SharedBarrier();
    MPI_Barrier(MPI_COMM_WORLD);
    barrier_ = static_cast<SharedBarrier*>(aligned);
  }

  int rank_ = 0, size_ = 1;
  MPI_Comm host_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  SharedBarrier* barrier_ = nullptr;
};

std::optional<MPI_Datatype> MpiTypeOf(DataType type) {
  switch (type) {
    case DataType::kInt8: return MPI_INT8_T;
    case DataType::kUint8: return MPI_UINT8_T;
    case DataType::kInt32: return MPI_INT32_T;
    case DataType::kUint32: return MPI_UINT32_T;
    case DataType::kInt64: return MPI_INT64_T;
    case DataType::kUint64: return MPI_UINT64_T;
    case DataType::kFloat32: return MPI_FLOAT;
    case DataType::kFloat64: return MPI_DOUBLE;
    default: return std::nullopt;
  }
}

std::optional<MPI_Op> MpiOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kProd: return MPI_PROD;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kMin: return MPI_MIN;
    case ReduceOp::kAvg:
    case ReduceOp::kPreMulSum: break;
  }
  return std::nullopt;
}

// The calls that give the ranks parts of what the root has, or the root all parts. In place the
// root's own part lies in the whole; that of another rank lies in a buffer of its own.
Status RunRooted(const MpiCall& call, int rank, int count, MPI_Datatype type) {
  const bool root_in_place = call.in_place && rank == call.root;
  const size_t offset = static_cast<size_t>(rank) * static_cast<size_t>(count);
  std::byte* own = static_cast<std::byte*>(call.recv) + offset;
  if (call.operation == Operation::kGather) {
    const void* send = root_in_place ? MPI_IN_PLACE : call.in_place ? own : call.send;
    return FromMpi(MPI_Gather(send, count, type, call.recv, count, type, call.root, MPI_COMM_WORLD),
                   "MPI_Gather");
  }
  const void* send = call.in_place ? call.recv : call.send;
  void* recv = root_in_place ? MPI_IN_PLACE : call.in_place ? own : call.recv;
  return FromMpi(MPI_Scatter(send, count, type, recv, count, type, call.root, MPI_COMM_WORLD),
                 "MPI_Scatter");
}

int RunUnderMpi(const std::string& program, int* argc, char*** argv,
                const std::function<int(World&)>& body) {
  if (MPI_Init(argc, argv) != MPI_SUCCESS) {
    PrintError("{}: MPI_Init failed\n", program);
    return kExitFailed;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int code;
  {
    MpiWorld world;
    code = body(world);
    if (EndsTheRun(code)) {
      std::fflush(nullptr);
      MPI_Abort(MPI_COMM_WORLD, code);
    }
  }
  std::fflush(nullptr);
  MPI_Finalize();
  return code;
}

bool MpiCan(const MpiCall& call) {
  // What is only moved has a type of its size; what is reduced must be known.
  const bool type = !Reduces(call.operation) || MpiTypeOf(call.type).has_value();
  const bool op = !Reduces(call.operation) || MpiOpOf(call.op).has_value();
  return type && op && call.count <= INT_MAX / SizeOf(call.type);
}

Status RunMpi(const MpiCall& call) {
  const bool moves = !Reduces(call.operation);
  const auto count = static_cast<int>(call.count * (moves ? SizeOf(call.type) : 1));
  const MPI_Datatype type = moves ? MPI_BYTE : *MpiTypeOf(call.type);
  const MPI_Op op = moves ? MPI_OP_NULL : *MpiOpOf(call.op);
  const void* send = call.in_place ? MPI_IN_PLACE : call.send;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  switch (call.operation) {
    case Operation::kAllReduce:
      return FromMpi(MPI_Allreduce(send, call.recv, count, type, op, MPI_COMM_WORLD),
                     "MPI_Allreduce");
    case Operation::kReduceScatter:
      return FromMpi(MPI_Reduce_scatter_block(send, call.recv, count, type, op, MPI_COMM_WORLD),
                     "MPI_Reduce_scatter_block");
    case Operation::kAllGather:
      return FromMpi(MPI_Allgather(send, count, type, call.recv, count, type, MPI_COMM_WORLD),
                     "MPI_Allgather");
    case Operation::kBroadcast:
      // MPI has one buffer: out of place the root copies first.
      if (!call.in_place && rank == call.root && count > 0) {
        std::memcpy(call.recv, call.send, static_cast<size_t>(count));
      }
      return FromMpi(MPI_Bcast(call.recv, count, type, call.root, MPI_COMM_WORLD), "MPI_Bcast");
    case Operation::kReduce:
      if (call.in_place && rank != call.root) {
        return FromMpi(MPI_Reduce(call.recv, nullptr, count, type, op, call.root, MPI_COMM_WORLD),
                       "MPI_Reduce");
      }
      return FromMpi(MPI_Reduce(send, call.recv, count, type, op, call.root, MPI_COMM_WORLD),
                     "MPI_Reduce");
    case Operation::kAllToAll:
      return FromMpi(MPI_Alltoall(send, count, type, call.recv, count, type, MPI_COMM_WORLD),
                     "MPI_Alltoall");
    case Operation::kGather:
    case Operation::kScatter: return RunRooted(call, rank, count, type);
    case Operation::kSendRecv: {
      int size = 1;
      MPI_Comm_size(MPI_COMM_WORLD, &size);
      return FromMpi(
          MPI_Sendrecv(send, count, type, NextRank(rank, size), 0, call.recv, count, type,
                       PreviousRank(rank, size), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
          "MPI_Sendrecv");
    }
  }
  return InternalError("unknown operation");
}

}  // namespace
}  // namespace inccl::perf

extern "C" __attribute__((visibility("default"))) const inccl::perf::MpiModule inccl_mpi_module = {
    inccl::perf::RunUnderMpi, inccl::perf::MpiCan, inccl::perf::RunMpi};
