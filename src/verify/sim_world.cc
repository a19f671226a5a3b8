// SPDX-License-Identifier: Apache-2.0
#include "verify/sim_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "transport/transport.h"

namespace inccl::sim {

PoisonedBuffer::PoisonedBuffer(size_t bytes)
    : bytes_(bytes), storage_(new std::byte[bytes + 64]), data_(storage_.get()) {
  const auto misaligned = reinterpret_cast<uintptr_t>(data_) % 64;
  if (misaligned != 0) data_ += 64 - misaligned;
  Poison();
}

void PoisonedBuffer::Poison() { std::memset(data_, static_cast<int>(kPoison), bytes_); }

SimLane::SimLane(const LaneSpec& lane_spec) : spec(lane_spec) {
  for (const int rank : spec.consumers) {
    Consumer consumer;
    consumer.rank = rank;
    consumer.headers.resize(spec.depth);
    consumer.slice_stamps.resize(spec.depth);
    consumer.credit_stamps.resize(spec.depth);
    consumers.push_back(std::move(consumer));
  }
}

SimLane::Consumer* SimLane::Find(int rank) {
  for (Consumer& consumer : consumers) {
    if (consumer.rank == rank) return &consumer;
  }
  return nullptr;
}

void SimLane::NeedSlots(Consumer* consumer) {
  while (consumer->slots.size() < spec.depth) consumer->slots.emplace_back(spec.slot_bytes);
}

uint64_t SimLane::LeastCredited() const {
  uint64_t least = published;
  for (const Consumer& consumer : consumers) least = std::min(least, consumer.credited);
  return least;
}

SimRegions::SimRegions(int nranks, Later later)
    : later_(std::move(later)),
      places_(static_cast<size_t>(nranks)),
      known_(places_.size() * places_.size() * kPlaces),
      offenders_(places_.size(), -1) {}

Result<MemoryHandle> SimRegions::Register(int owner, std::span<const std::byte> memory,
                                          const Registration& how) {
  Places& places = places_[static_cast<size_t>(owner)];
  const auto kept = std::count_if(places.begin(), places.end(),
                                  [](const Place& place) { return place.keepers > 0; });
  auto place = std::find_if(places.begin(), places.end(), [memory](const Place& each) {
    return each.generation != 0 && memory.data() >= each.memory.data() &&
           memory.data() + memory.size() <= each.memory.data() + each.memory.size();
  });
  const bool is_new = place == places.end();
  if (how.keep && kept == kMostKept && (is_new || place->keepers == 0)) {
    return SystemError("the simulator has no place for this memory");
  }
  if (is_new) {
    place = places.begin() + FindPlace(places, how.keep);
    *place = {.memory = memory, .answers = {}};
  }
  place->used = ++uses_;
  if (how.keep) ++place->keepers;
  const auto index = static_cast<uint32_t>(place - places.begin());
  const bool writable = how.access == Access::kReadWrite;
  if (is_new || (writable && !place->writable)) {
    place->writable = writable;
    Post(owner, index);
  }
  return MemoryHandle{.region = index + 1,
                      .on_device = how.on_device,
                      .writable = writable,
                      .offset = static_cast<uint64_t>(memory.data() - place->memory.data()),
                      .begin = memory.data(),
                      .end = memory.data() + memory.size(),
                      .memory = place->generation};
}

// A free place, or that of the region used longest ago among those that are not kept.
uint32_t SimRegions::FindPlace(const Places& places, bool keep) {
  const auto found = std::count_if(places.begin(), places.end(), [](const Place& place) {
    return place.generation != 0 && place.keepers == 0;
  });
  uint32_t best = kPlaces;
  for (uint32_t i = 0; i < kPlaces; ++i) {
    const Place& place = places[i];
    if (place.keepers > 0) continue;
    if (place.generation == 0 && (keep || found < kMostFound)) return i;
    if (place.generation != 0 && (best == kPlaces || place.used < places[best].used)) best = i;
  }
  return best;
}

void SimRegions::Deregister(int owner, const MemoryHandle& memory) {
  Place& place = places_[static_cast<size_t>(owner)][memory.region - 1];
  if (place.keepers > 0) --place.keepers;
}

void SimRegions::Post(int owner, uint32_t index) {
  Place& place = places_[static_cast<size_t>(owner)][index];
  place.generation = ++generations_;
  place.answers.assign(places_.size(), 0);
  const Knowledge news = {place.generation, const_cast<std::byte*>(place.memory.data()),
                          place.memory.size(), place.writable, 0};
  for (int peer = 0; peer < static_cast<int>(places_.size()); ++peer) {
    if (peer == owner) continue;
    later_(owner, [this, owner, index, peer, news] { Learn(owner, index, peer, news); });
  }
}

void SimRegions::Learn(int owner, uint32_t index, int peer, const Knowledge& news) {
  Knowledge& known = Known(owner, index + 1, peer);
  if (news.generation < known.generation) return;  // overtaken by a newer export
  if (known.users > 0) {
    offenders_[static_cast<size_t>(peer)] = owner;
    return;
  }
  known = news;
  later_(peer, [this, owner, index, peer, generation = news.generation] {
    uint64_t& answer =
        places_[static_cast<size_t>(owner)][index].answers[static_cast<size_t>(peer)];
    answer = std::max(answer, generation);
  });
}

void SimRegions::RevokeAccess(int owner, const MemoryHandle& memory) {
  if (memory.region != 0) places_[static_cast<size_t>(owner)][memory.region - 1].generation = 0;
}

bool SimRegions::ReachableFrom(int owner, uint32_t region, int peer) const {
  if (region == 0) return false;
  const Place& place = places_[static_cast<size_t>(owner)][region - 1];
  return place.generation != 0 && place.answers[static_cast<size_t>(peer)] == place.generation;
}

bool SimRegions::Counts(int owner, uint32_t region, int peer) const {
  return places_[static_cast<size_t>(owner)][region - 1].generation ==
         Known(owner, region, peer).generation;
}

std::byte* SimRegions::At(int owner, const RemoteAddress& place, size_t bytes, bool to_write,
                          int peer) const {
  if (place.region == 0 || place.region > kPlaces) return nullptr;
  const Knowledge& known = Known(owner, place.region, peer);
  if (known.data == nullptr || (to_write && !known.writable)) return nullptr;
  if (place.offset > known.bytes || bytes > known.bytes - place.offset) return nullptr;
  return known.data + place.offset;
}

}  // namespace inccl::sim

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

SimWorld::SimWorld(int nranks, uint64_t seed, const SimOptions& options)
    : nranks_(nranks),
      options_(options),
      rng_(seed),
      ranks_(static_cast<size_t>(nranks)),
      regions_(nranks, [this](int rank, std::function<void()> event) {
        Schedule(rank, std::move(event));
      }) {}

SimWorld::~SimWorld() = default;

Transport* SimWorld::transport(int rank) {
  std::unique_ptr<Transport>& transport = state(rank).transport;
  if (transport == nullptr) transport = NewTransport(rank);
  return transport.get();
}

std::unique_ptr<Transport> SimWorld::NewTransport(int rank) {
  return std::make_unique<SimTransport>(this, rank);
}

Time SimWorld::RandomDelay() {
  const double low = static_cast<double>(options_.min_delay);
  const double high = static_cast<double>(std::max(options_.max_delay, options_.min_delay));
  return std::max<Time>(1, static_cast<Time>(low * std::pow(high / low, rng_.Uniform())));
}

void SimWorld::At(Time time, int rank, std::function<void()> run) {
  events_.push(Event{time, rng_.Next(), rank, std::move(run)});
}

void SimWorld::Schedule(int rank, std::function<void()> event) {
  At(now() + RandomDelay(), rank, std::move(event));
}

bool SimWorld::Step() {
  while (!events_.empty()) {
    // top() is const, but the event may be moved out, as it is popped at once.
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    if (crashed(event.rank)) continue;
    clock_.now = std::max(clock_.now, event.time);
    event.run();
    return true;
  }
  return false;
}

void SimWorld::AdvanceTo(Time time) {
  while (next_event() <= time) Step();
  clock_.now = std::max(clock_.now, time);
}

void SimWorld::Crash(int rank) {
  if (crashed(rank)) return;
  state(rank).crashed = true;
  const auto spread =
      static_cast<uint64_t>(std::max<Time>(1, options_.max_detection - options_.min_detection + 1));
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == rank) continue;
    const Time delay = options_.min_detection + static_cast<Time>(rng_.Below(spread));
    At(now() + delay, peer, [this, peer, rank] {
      if (state(peer).noticed < 0) state(peer).noticed = rank;
    });
  }
}

sim::SimLane* SimWorld::Lane(const LaneSpec& spec) {
  std::unique_ptr<sim::SimLane>& lane = lanes_[spec.Key()];
  if (lane == nullptr) lane = std::make_unique<sim::SimLane>(spec);
  return lane.get();
}

void SimWorld::Deliver(int producer, sim::SimLane::Consumer* consumer) {
  consumer->last_visible = std::max(consumer->last_visible + 1, now() + RandomDelay());
  At(consumer->last_visible, producer, [consumer] { consumer->visible += !consumer->cut; });
}

void SimWorld::DeliverFrom(int producer, sim::SimLane::Consumer* consumer, const std::byte* payload,
                           std::byte* slot, size_t bytes) {
  ++state(producer).unsent;
  consumer->last_visible = std::max(consumer->last_visible + 1, now() + RandomDelay());
  At(consumer->last_visible, producer, [this, producer, consumer, payload, slot, bytes] {
    consumer->cut = consumer->cut || state(producer).dropped;
    if (consumer->cut) return;
    --state(producer).unsent;
    std::memcpy(slot, payload, bytes);
    ++consumer->visible;
  });
}

void SimWorld::ReturnCredit(sim::SimLane::Consumer* consumer) {
  consumer->last_credited = std::max(consumer->last_credited + 1, now() + RandomDelay());
  At(consumer->last_credited, consumer->rank, [consumer] { ++consumer->credited; });
}

}  // namespace inccl
