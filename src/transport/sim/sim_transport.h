// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of a SimWorld, and its lanes.
#ifndef INCCL_TRANSPORT_SIM_SIM_TRANSPORT_H_
#define INCCL_TRANSPORT_SIM_SIM_TRANSPORT_H_

#include <memory>

#include "transport/emulated/stamped_lanes.h"
#include "transport/sim/sim_world.h"
#include "transport/transport.h"

namespace inccl {

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld* world, int rank) : world_(world), rank_(rank) {}
  Caps caps() const override { return {.name = "sim"}; }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.multicast = world_->options_.multicast};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override {
    return world_->regions_.Register(rank_, {static_cast<const std::byte*>(data), bytes}, how);
  }
  void Deregister(const MemoryHandle& memory) override {
    world_->regions_.Deregister(rank_, memory);
  }
  Status CanRegister(const void*, size_t, bool) const override { return Status::Ok(); }
  Status RevokeAccess(const MemoryHandle& memory) override {
    world_->regions_.RevokeAccess(rank_, memory);
    return Status::Ok();
  }
  Result<int> Progress(Time now) override;
  bool unsent() const override { return world_->state(rank_).unsent > 0; }
  void DropUnsent() override {
    world_->state(rank_).dropped = true;
    world_->state(rank_).unsent = 0;
  }
  WakeupEvent* wakeup_event() override { return nullptr; }
  void Quiesce(Time) override {}
  uint64_t memory_bytes() const override { return world_->state(rank_).memory_bytes; }
  TransportCounters counters() const override { return world_->state(rank_).counters; }

 private:
  SimWorld* world_;
  int rank_;
};

class SimSendLane final : public emulated::StampedSendLane {
 public:
  SimSendLane(SimWorld* world, sim::SimLane* lane) : world_(world), lane_(lane) {}
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override { return PublishStamped(header, 0); }
  Status PublishStamped(const SliceHeader& header, Time departure) override {
    return Publish(header, departure, nullptr);
  }
  bool SendsFrom(const std::byte* /*data*/, size_t /*bytes*/, bool on_device) const override {
    return world_->options_.sends_from_caller && !on_device;
  }
  bool marks_inputs() const override { return true; }
  Status PublishFrom(const SliceHeader& header, const std::byte* data,
                     bool /*on_device*/) override {
    return Publish(header, 0, data);
  }
  bool ReachableFrom(uint32_t region) const override;
  Result<bool> Drained() override { return lane_->LeastCredited() == lane_->published; }
  Time CreditDeparture() const override;
  const LaneSpec& spec() const override { return lane_->spec; }

 private:
  // `payload`: nullptr if it is in the slot.
  Status Publish(const SliceHeader& header, Time departure, const std::byte* payload);
  size_t index() const { return lane_->published % lane_->spec.depth; }

  SimWorld* world_;
  sim::SimLane* lane_;
  bool acquired_ = false;
};

class SimRecvLane final : public emulated::StampedRecvLane {
 public:
  SimRecvLane(SimWorld* world, sim::SimLane* lane, sim::SimLane::Consumer* self)
      : world_(world), lane_(lane), self_(self) {}
  ~SimRecvLane() override { DropRegions(); }
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override { return ReleaseStamped(0); }
  Status ReleaseStamped(Time departure) override;
  Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) override;
  const LaneSpec& spec() const override { return lane_->spec; }

 private:
  size_t index() const { return self_->released % lane_->spec.depth; }
  // Sets payload and target of the next slice from its header.
  Status Locate(Incoming* incoming);
  void DropRegions();

  SimWorld* world_;
  sim::SimLane* lane_;
  sim::SimLane::Consumer* self_;
  bool peeked_ = false;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SIM_SIM_TRANSPORT_H_
