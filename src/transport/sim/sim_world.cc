// SPDX-License-Identifier: Apache-2.0
#include "transport/sim/sim_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "transport/sim/sim_transport.h"

namespace inccl {

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
