// SPDX-License-Identifier: Apache-2.0
//
// The lane protocol over UCX messages: a slice is a header with its payload, a credit is a count.
#ifndef INCCL_TRANSPORT_UCX_UCX_LANES_H_
#define INCCL_TRANSPORT_UCX_UCX_LANES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_wire.h"
#include "transport/ucx/ucx_worker.h"

namespace inccl::ucx {

// The memory that UCX reads and writes for one end of a lane. The transport keeps it until its
// worker is destroyed.
struct LaneBuffers {
  static Result<std::shared_ptr<LaneBuffers>> Create(int rank, const LaneSpec& spec);
  std::byte* slot(uint32_t index) const { return slots.data() + index * stride; }
  // For a producer: true if the consumer has released every slice.
  bool AllReleased() const;

  Mapping slots;  // depth times {WireHeader, payload}
  size_t stride = 0;
  uint64_t published = 0, released = 0;          // slices, for a producer
  std::vector<CreditMessage> credits;            // per slot
  std::vector<Operation> slice_ops, credit_ops;  // per slot
};

struct LaneTags {
  explicit LaneTags(const LaneSpec& spec);
  uint64_t slice, credit;
};

class UcxSendLane final : public SendLane {
 public:
  // `worker` and `counters` outlive the lane.
  UcxSendLane(LaneSpec spec, std::shared_ptr<LaneBuffers> buffers, Worker* worker,
              TransportCounters* counters);

  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  void AwaitCredit(uint32_t index);
  // Counts the credits that have arrived.
  Status TakeCredits();

  LaneSpec spec_;
  LaneTags tags_;
  std::shared_ptr<LaneBuffers> buffers_;
  Worker* worker_;
  TransportCounters* counters_;
  int consumer_;
  uint32_t index_ = 0;         // published % depth
  uint32_t credit_index_ = 0;  // released % depth
  bool acquired_ = false;
};

class UcxRecvLane final : public RecvLane {
 public:
  UcxRecvLane(LaneSpec spec, std::shared_ptr<LaneBuffers> buffers, Worker* worker,
              TransportCounters* counters);

  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  void AwaitSlice(uint32_t index);
  // Checks and copies the header of the next slice; false if it has not arrived.
  Result<bool> ReadHeader(SliceHeader* header) const;

  LaneSpec spec_;
  LaneTags tags_;
  std::shared_ptr<LaneBuffers> buffers_;
  Worker* worker_;
  TransportCounters* counters_;
  uint64_t ticket_ = 0;  // number of the next slice
  uint32_t index_ = 0;   // ticket_ % depth
  bool peeked_ = false;
  Incoming incoming_;
};

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_LANES_H_
