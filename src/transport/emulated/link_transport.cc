// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated/link_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace inccl {
namespace emulated {

LinkTransport::LinkTransport(std::unique_ptr<Transport> inner, const LinkOptions& options)
    : clock_(options.clock != nullptr ? options.clock : &SystemClock()),
      latency_(std::llround(options.latency_us * static_cast<double>(kMicrosecond))),
      now_(clock_->Now()),
      egress_(options.gbps, now_),
      ingress_(options.gbps, now_),
      inner_(std::move(inner)) {}

Caps LinkTransport::caps() const {
  Caps caps = inner_->caps();
  caps.shared_slots = false;
  caps.name = "emulated link";
  return caps;
}

LaneCaps LinkTransport::CapsFor(int producer, std::span<const int> consumers) const {
  LaneCaps caps = inner_->CapsFor(producer, consumers);
  caps.multicast = false;
  return caps;
}

template <typename LinkLane, typename Stamped, typename Lane>
Result<std::unique_ptr<Lane>> LinkTransport::Open(OpenFn<Lane> open, const LaneSpec& spec) {
  if (spec.consumers.size() > 1) {
    return InvalidArgument("a lane with several consumers over an emulated link: no multicast");
  }
  Result<std::unique_ptr<Lane>> lane = (*inner_.*open)(spec);
  if (!lane.ok()) return lane;
  Stamped* const stamped = (*lane)->stamped();
  if (stamped == nullptr) {
    return InvalidArgument(
        fmt::format("no link can be emulated over transport {}: its lanes carry no stamps",
                    inner_->caps().name));
  }
  static_cast<void>(lane->release());
  std::unique_ptr<Stamped> owned(stamped);
  return std::unique_ptr<Lane>(new LinkLane(this, std::move(owned)));
}

Result<std::unique_ptr<SendLane>> LinkTransport::OpenSend(const LaneSpec& spec) {
  return Open<LinkSendLane, StampedSendLane>(&Transport::OpenSend, spec);
}

Result<std::unique_ptr<RecvLane>> LinkTransport::OpenRecv(const LaneSpec& spec) {
  return Open<LinkRecvLane, StampedRecvLane>(&Transport::OpenRecv, spec);
}

// Passes all arrived slices through the ingress port, in order of arrival. A slice is published
// before it arrives, so all slices that arrive by now_ are known and can be ordered.
Result<int> LinkTransport::Progress(Time now) {
  Result<int> events = inner_->Progress(now);
  if (!events.ok()) return events;
  now_ = std::max({now_, now, clock_->Now()});
  int admitted = 0;
  while (true) {
    LinkRecvLane* first = nullptr;
    for (LinkRecvLane* lane : recv_) {
      if (Status status = lane->Look(); !status.ok()) return status;
      if (!lane->waiting() || lane->arrival() > now_) continue;
      if (first == nullptr || lane->arrival() < first->arrival()) first = lane;
    }
    if (first == nullptr) return *events + admitted;
    first->Admit(ingress_.Admit(first->arrival(), first->wire_bytes()));
    ++admitted;
  }
}

Time LinkTransport::NextEvent() const {
  Time next = kNever;
  for (const LinkRecvLane* lane : recv_) {
    const Time time = lane->NextVisible();
    if (time > now_) next = std::min(next, time);
  }
  for (const LinkSendLane* lane : send_) {
    if (lane->blocked_until() > now_) next = std::min(next, lane->blocked_until());
  }
  return next;
}

}  // namespace emulated

std::unique_ptr<Transport> EmulateLink(std::unique_ptr<Transport> inner,
                                       const LinkOptions& options) {
  return std::make_unique<emulated::LinkTransport>(std::move(inner), options);
}

Time NextEvent(const Transport& transport) {
  const emulated::LinkTransport* const link = transport.link();
  return link == nullptr ? kNever : link->NextEvent();
}

}  // namespace inccl
