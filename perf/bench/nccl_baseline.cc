// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "perf/bench/baseline.h"
#include "perf/support/agree.h"
#include "perf/support/nccl.h"

namespace inccl::perf {
namespace {

class NcclCalls final : public BaselineCalls {
 public:
  NcclCalls(const Nccl& nccl, const World& world, void* stream)
      : nccl_(nccl), rank_(world.rank()), size_(world.size()), stream_(stream) {}
  ~NcclCalls() override {
    if (comm_ != nullptr) nccl_.comm_destroy(comm_);
  }
  NcclCalls(const NcclCalls&) = delete;
  NcclCalls& operator=(const NcclCalls&) = delete;

  Status Join(const NcclUniqueId& id) {
    return nccl_.Check(nccl_.comm_init_rank(&comm_, size_, id, rank_), "ncclCommInitRank");
  }

  std::string name() const override { return "NCCL"; }
  std::string version() const override { return "nccl " + nccl_.Version(); }
  // It reduces 8-bit floats on some devices only. What is only moved goes as bytes.
  bool Can(const RowBuffers& buffers) const override {
    const RowCase& row = buffers.row();
    return !Reduces(row.operation) || !IsFloat8(row.type);
  }
  bool Checked() const override { return true; }
  Status Run(const RowBuffers& buffers, bool in_place) override {
    return Call(buffers.CallFor(in_place));
  }

 private:
  static bool IsFloat8(DataType type) {
    return type == DataType::kFloat8E4M3 || type == DataType::kFloat8E5M2;
  }
  Status Call(const BenchCall& c) const;
  Status Points(const BenchCall& c) const;
  int SendPart(const BenchCall& c, int part, int peer) const;
  int RecvPart(const BenchCall& c, int part, int peer) const;

  const Nccl nccl_;
  const int rank_, size_;
  void* const stream_;
  Nccl::Comm comm_ = nullptr;
};

Status NcclCalls::Call(const BenchCall& c) const {
  // The numbers are inccl's.
  const int type = static_cast<int>(c.type), op = static_cast<int>(c.op);
  switch (c.operation) {
    case Operation::kAllReduce:
      return nccl_.Check(nccl_.all_reduce(c.send, c.recv, c.count, type, op, comm_, stream_),
                         "ncclAllReduce");
    case Operation::kReduceScatter:
      return nccl_.Check(nccl_.reduce_scatter(c.send, c.recv, c.count, type, op, comm_, stream_),
                         "ncclReduceScatter");
    case Operation::kReduce:
      return nccl_.Check(nccl_.reduce(c.send, c.recv, c.count, type, op, c.root, comm_, stream_),
                         "ncclReduce");
    default: break;
  }
  BenchCall moved = c;
  moved.type = DataType::kUint8;
  moved.count = c.count * SizeOf(c.type);
  const int bytes = static_cast<int>(DataType::kUint8);
  switch (c.operation) {
    case Operation::kAllGather:
      return nccl_.Check(nccl_.all_gather(c.send, c.recv, moved.count, bytes, comm_, stream_),
                         "ncclAllGather");
    case Operation::kBroadcast:
      return nccl_.Check(
          nccl_.broadcast(c.send, c.recv, moved.count, bytes, c.root, comm_, stream_),
          "ncclBroadcast");
    default: return Points(moved);
  }
}

int NcclCalls::SendPart(const BenchCall& c, int part, int peer) const {
  const auto* from = static_cast<const std::byte*>(c.send) + static_cast<size_t>(part) * c.count;
  return nccl_.send(from, c.count, static_cast<int>(c.type), peer, comm_, stream_);
}

int NcclCalls::RecvPart(const BenchCall& c, int part, int peer) const {
  auto* to = static_cast<std::byte*>(c.recv) + static_cast<size_t>(part) * c.count;
  return nccl_.recv(to, c.count, static_cast<int>(c.type), peer, comm_, stream_);
}

// What NCCL had no calls for in all its versions: sends and receives in a group, as its documents
// say. In bytes.
Status NcclCalls::Points(const BenchCall& c) const {
  int error = nccl_.group_start();
  const auto put = [&](int result) {
    if (error == 0) error = result;
  };
  switch (c.operation) {
    case Operation::kAllToAll:
      for (int peer = 0; peer < size_; ++peer) {
        put(SendPart(c, peer, peer));
        put(RecvPart(c, peer, peer));
      }
      break;
    case Operation::kGather:
      put(SendPart(c, 0, c.root));
      for (int peer = 0; rank_ == c.root && peer < size_; ++peer) put(RecvPart(c, peer, peer));
      break;
    case Operation::kScatter:
      for (int peer = 0; rank_ == c.root && peer < size_; ++peer) put(SendPart(c, peer, peer));
      put(RecvPart(c, 0, c.root));
      break;
    case Operation::kSendRecv:
      put(SendPart(c, 0, NextRank(rank_, size_)));
      put(RecvPart(c, 0, PreviousRank(rank_, size_)));
      break;
    default: break;
  }
  put(nccl_.group_end());
  return nccl_.Check(error, "ncclSend, ncclRecv");
}

}  // namespace

Result<std::unique_ptr<BaselineCalls>> NcclBaseline(World& world, const Gpu& gpu,
                                                    const std::string& file) {
  Status mine;
  if (world.size() > gpu.count()) {
    mine = InvalidUsage(fmt::format("{} ranks, {} GPU{}: NCCL needs one for each rank",
                                    world.size(), gpu.count(), gpu.count() == 1 ? "" : "s"));
  }
  Nccl nccl{};
  if (mine.ok()) {
    Result<Nccl> loaded = Nccl::Load(file);
    mine = loaded.status();
    if (loaded.ok()) nccl = *loaded;
  }
  NcclUniqueId id{};
  if (mine.ok() && world.rank() == 0) {
    mine = nccl.Check(nccl.get_unique_id(&id), "ncclGetUniqueId");
  }
  if (Status s = Agree(world, mine); !s.ok()) return s;
  Status s = world.Broadcast(std::as_writable_bytes(std::span(&id, 1)));
  if (!s.ok()) return s;
  auto calls = std::make_unique<NcclCalls>(nccl, world, gpu.stream());
  s = Agree(world, calls->Join(id));
  if (!s.ok()) return s;
  return std::unique_ptr<BaselineCalls>(std::move(calls));
}

}  // namespace inccl::perf
