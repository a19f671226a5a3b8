// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/row_check.h"

#include <vector>

namespace inccl::perf {

void RowCheck::Begin(const RowBuffers& buffers) {
  const RowCase& row = buffers.row();
  if (!Reduces(row.operation)) return;
  if (oracle_ && oracle_->type == row.type && oracle_->op == row.op) return;
  oracle_ = MakeOracle(*inputs_, row.type, row.op);
}

Accuracy RowCheck::Verify(const RowBuffers& buffers, bool in_place,
                          const ccl_compression_stats_t& stats) const {
  const RowCase& row = buffers.row();
  const uint64_t count = buffers.layout().count;
  const std::byte* result = buffers.ResultBytes(in_place).data();
  const bool lossy = !row.codec->none() && stats.compressed != 0;
  const std::optional<double> bound = lossy ? std::optional(stats.error_bound) : std::nullopt;
  // A lossless codec's sum is rounded as an uncompressed one.
  const std::optional<double> sum_bound = stats.error_bound > 0 ? bound : std::nullopt;
  switch (row.operation) {
    case Operation::kAllReduce: return VerifyReduction(*oracle_, 0, result, count, sum_bound);
    case Operation::kReduceScatter:
      return VerifyReduction(*oracle_, count * static_cast<uint64_t>(world_->rank()), result, count,
                             sum_bound);
    case Operation::kReduce:
      if (world_->rank() != row.root) return VerifyUntouched(buffers, in_place);
      return VerifyReduction(*oracle_, 0, result, count, bound);
    case Operation::kGather:
      if (world_->rank() != row.root) return VerifyUntouched(buffers, in_place);
      return VerifyCopies(buffers, result, std::nullopt);
    case Operation::kAllGather:
    case Operation::kBroadcast:
    case Operation::kAllToAll:
    case Operation::kScatter:
    case Operation::kSendRecv: return VerifyCopies(buffers, result, bound);
  }
  return Accuracy();
}

// What is received from each rank, or from one alone: the first `count` elements of its send
// buffer, or those for this rank; with `bound`, through a lossy codec.
Accuracy RowCheck::VerifyCopies(const RowBuffers& buffers, const std::byte* result,
                                std::optional<double> bound) const {
  Accuracy accuracy;
  const RowCase& row = buffers.row();
  const uint64_t count = buffers.layout().count;
  const bool from_root =
      row.operation == Operation::kBroadcast || row.operation == Operation::kScatter;
  const bool from_one = from_root || row.operation == Operation::kSendRecv;
  const int sender = from_root ? row.root : PreviousRank(world_->rank(), world_->size());
  const bool parted = row.operation == Operation::kAllToAll || row.operation == Operation::kScatter;
  const uint64_t first = parted ? count * static_cast<uint64_t>(world_->rank()) : 0;
  const size_t bytes = count * SizeOf(row.type);
  std::vector<std::byte> expected(bytes);
  for (int part = 0; part < (from_one ? 1 : world_->size()); ++part) {
    inputs_->Fill(from_one ? sender : part, row.type, row.op, first, count, expected.data());
    const std::byte* got = result + static_cast<size_t>(part) * bytes;
    accuracy.Add(bound ? VerifyLossyCopy(row.type, expected.data(), got, count, *bound)
                       : VerifyCopy(row.type, expected.data(), got, count));
  }
  return accuracy;
}

// The receive buffer of a rank that receives nothing: poison, but for the input in place.
Accuracy RowCheck::VerifyUntouched(const RowBuffers& buffers, bool in_place) {
  const std::span<const std::byte> all = buffers.WholeRecv();
  if (!in_place) return Accuracy{CountDisturbed(all), 0, 0, 0};
  const Layout& layout = buffers.layout();
  const DataType type = buffers.row().type;
  const size_t begin = layout.in_place_send * SizeOf(type), size = buffers.Input().size();
  Accuracy accuracy = VerifyCopy(type, buffers.Input().data(), all.data() + begin, layout.send);
  accuracy.wrong +=
      CountDisturbed(all.first(begin)) + CountDisturbed(all.subspan(begin).subspan(size));
  return accuracy;
}

}  // namespace inccl::perf
