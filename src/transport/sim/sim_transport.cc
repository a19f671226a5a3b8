// SPDX-License-Identifier: Apache-2.0
#include "transport/sim/sim_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/lane_check.h"

namespace inccl {

Result<std::unique_ptr<SendLane>> SimTransport::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, world_->nranks(), *this);
  if (!status.ok()) return status;
  sim::SimLane* lane = world_->Lane(spec);
  if (!lane->slots.empty()) {
    return InvalidUsage(fmt::format("rank {}: {} is opened twice", rank_, Describe(spec)));
  }
  while (lane->slots.size() < spec.depth) lane->slots.emplace_back(spec.slot_bytes);
  world_->state(rank_).memory_bytes += uint64_t{spec.slot_bytes} * spec.depth;
  return std::unique_ptr<SendLane>(new SimSendLane(world_, lane));
}

Result<std::unique_ptr<RecvLane>> SimTransport::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, world_->nranks(), *this);
  if (!status.ok()) return status;
  sim::SimLane* lane = world_->Lane(spec);
  sim::SimLane::Consumer* self = lane->Find(rank_);
  if (self->opened) {
    return InvalidUsage(fmt::format("rank {}: {} is opened twice", rank_, Describe(spec)));
  }
  self->opened = true;
  return std::unique_ptr<RecvLane>(new SimRecvLane(world_, lane, self));
}

Result<int> SimTransport::Progress(Time) {
  const SimWorld::Rank& self = world_->state(rank_);
  if (self.crashed) return 0;
  if (const int offender = world_->regions_.offender(rank_); offender >= 0) {
    return InternalError(
        fmt::format("rank {}/{}: peer rank {} replaced a region to which slices that this rank has "
                    "not released refer",
                    rank_, world_->nranks(), offender));
  }
  if (self.noticed < 0) return 0;
  return RemoteError(fmt::format("rank {}/{}: peer rank {} has crashed (simulated)", rank_,
                                 world_->nranks(), self.noticed));
}

Result<Span> SimSendLane::TryAcquire() {
  if (!acquired_) {
    const bool credit = lane_->published - lane_->LeastCredited() < lane_->spec.depth;
    if (!credit || world_->crashed(lane_->spec.producer)) return Span{};
    acquired_ = true;
  }
  return Span{lane_->slots[index()].data(), lane_->spec.slot_bytes};
}

Status SimSendLane::Publish(const SliceHeader& header, Time departure, const std::byte* payload) {
  Status status = CheckPublish(lane_->spec, acquired_, header);
  if (!status.ok()) return status;
  acquired_ = false;
  sim::PoisonedBuffer& slot = lane_->slots[index()];
  const bool crashed = world_->crashed(lane_->spec.producer);
  for (sim::SimLane::Consumer& consumer : lane_->consumers) {
    if (crashed) break;
    lane_->NeedSlots(&consumer);
    if (header.source.region == 0 && payload == nullptr) {
      std::memcpy(consumer.slots[index()].data(), slot.data(), header.bytes);
    }
    consumer.headers[index()] = header;
    consumer.slice_stamps[index()] = departure;
    if (payload == nullptr) {
      world_->Deliver(lane_->spec.producer, &consumer);
    } else {
      world_->DeliverFrom(lane_->spec.producer, &consumer, payload, consumer.slots[index()].data(),
                          header.bytes);
    }
  }
  world_->sent_from_caller_ += payload != nullptr;
  slot.Poison();
  world_->references_ += header.source.region != 0;
  world_->targets_ += header.target.region != 0;
  world_->deliveries_ += static_cast<uint64_t>(std::popcount(header.delivered));
  ++lane_->published;
  TransportCounters& counters = world_->state(lane_->spec.producer).counters;
  ++counters.slices;
  counters.payload_bytes += header.bytes;
  return Status::Ok();
}

Time SimSendLane::CreditDeparture() const {
  Time latest = 0;
  for (const sim::SimLane::Consumer& consumer : lane_->consumers) {
    latest = std::max(latest, consumer.credit_stamps[index()]);
  }
  return latest;
}

Result<bool> SimRecvLane::TryPeek(Incoming* incoming) {
  if (self_->visible == self_->released || world_->crashed(self_->rank)) return false;
  incoming->header = self_->headers[index()];
  if (Status status = Locate(incoming); !status.ok()) return status;
  if (!peeked_) {
    for (const RemoteAddress& place : {incoming->header.source, incoming->header.target}) {
      if (place.region == 0) continue;
      world_->regions_.Hold(lane_->spec.producer, place.region, self_->rank);
    }
  }
  peeked_ = true;
  return true;
}

Status SimRecvLane::Locate(Incoming* incoming) {
  const SliceHeader& header = incoming->header;
  const auto find = [&](const RemoteAddress& place, bool to_write) {
    return world_->regions_.At(lane_->spec.producer, place, header.bytes, to_write, self_->rank);
  };
  incoming->payload = self_->slots[index()].data();
  incoming->target = nullptr;
  if (header.source.region != 0) incoming->payload = find(header.source, false);
  if (header.target.region != 0) incoming->target = find(header.target, true);
  if (incoming->payload != nullptr && (header.target.region == 0 || incoming->target != nullptr)) {
    return Status::Ok();
  }
  return InternalError(fmt::format("{}: peer rank {} names a region that is not known here",
                                   Describe(lane_->spec), lane_->spec.producer));
}

void SimRecvLane::DropRegions() {
  if (!peeked_) return;
  const SliceHeader& header = self_->headers[index()];
  for (const RemoteAddress& place : {header.source, header.target}) {
    if (place.region != 0) {
      world_->regions_.Drop(lane_->spec.producer, place.region, self_->rank);
    }
  }
}

bool SimSendLane::ReachableFrom(uint32_t region) const {
  const int owner = lane_->spec.producer;
  return std::all_of(lane_->spec.consumers.begin(), lane_->spec.consumers.end(),
                     [&](int peer) { return world_->regions_.ReachableFrom(owner, region, peer); });
}

Result<bool> SimRecvLane::PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) {
  if (self_->visible - self_->released <= ahead || world_->crashed(self_->rank)) return false;
  const size_t slot = (self_->released + ahead) % lane_->spec.depth;
  *header = self_->headers[slot];
  *departure = self_->slice_stamps[slot];
  return true;
}

Status SimRecvLane::ReleaseStamped(Time departure) {
  if (!peeked_) return ReleaseError(lane_->spec);
  const uint32_t source = self_->headers[index()].source.region;
  if (source != 0 && !world_->regions_.Counts(lane_->spec.producer, source, self_->rank)) {
    return RemoteError(fmt::format("{}: peer rank {} has failed and revoked access to its buffer",
                                   Describe(lane_->spec), lane_->spec.producer));
  }
  DropRegions();
  peeked_ = false;
  self_->slots[index()].Poison();
  self_->credit_stamps[index()] = departure;
  ++self_->released;
  ++world_->state(self_->rank).counters.credits;
  if (!world_->crashed(self_->rank)) world_->ReturnCredit(self_);
  return Status::Ok();
}

}  // namespace inccl
