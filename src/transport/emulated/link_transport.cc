// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated/link_transport.h"

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
  caps.multicast = false;
  caps.name = "emulated link";
  return caps;
}

Result<std::unique_ptr<SendLane>> LinkTransport::OpenSend(const LaneSpec& spec) {
  if (spec.consumers.size() > 1) {
    return InvalidArgument("a lane with several consumers over an emulated link: no multicast");
  }
  Result<std::unique_ptr<SendLane>> lane = inner_->OpenSend(spec);
  if (!lane.ok()) return lane;
  return std::unique_ptr<SendLane>(new LinkSendLane(this, std::move(*lane)));
}

Result<std::unique_ptr<RecvLane>> LinkTransport::OpenRecv(const LaneSpec& spec) {
  if (spec.consumers.size() > 1) {
    return InvalidArgument("a lane with several consumers over an emulated link: no multicast");
  }
  Result<std::unique_ptr<RecvLane>> lane = inner_->OpenRecv(spec);
  if (!lane.ok()) return lane;
  return std::unique_ptr<RecvLane>(new LinkRecvLane(this, std::move(*lane)));
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
  Time next = inner_->NextEvent();
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

}  // namespace inccl
