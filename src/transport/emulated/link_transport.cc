// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated/link_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "transport/transport.h"

namespace inccl::emulated {
namespace {

constexpr size_t kIntervals = 256;  // more than the gaps within the duration of one slice

}  // namespace

PortClock::PortClock(double gbps, Time epoch)
    : units_per_byte_(8.0 / gbps * kUnits), epoch_(epoch) {}

int64_t PortClock::Cost(uint64_t bytes) const {
  return std::llround(static_cast<double>(bytes) * units_per_byte_);
}

Time EgressPort::Reserve(Time now, uint64_t bytes) {
  free_ = std::max(free_, clock_.FromTime(now)) + clock_.Cost(bytes);
  return clock_.ToTime(free_);
}

Time EgressPort::ReserveFirst(Time now, uint64_t bytes) {
  free_ = std::max(free_, clock_.FromTime(now)) + clock_.Cost(bytes);
  return clock_.ToTime(clock_.FromTime(now) + clock_.Cost(bytes));
}

IngressPort::IngressPort(double gbps, Time epoch) : clock_(gbps, epoch) {
  busy_.reserve(kIntervals + 1);
}

int64_t IngressPort::Finish(int64_t begin, int64_t cost) const {
  auto next = std::partition_point(busy_.begin(), busy_.end(),
                                   [&](const Interval& interval) { return interval.end <= begin; });
  int64_t at = begin;
  for (; next != busy_.end() && next->begin - at < cost; ++next) {
    cost -= std::max<int64_t>(0, next->begin - at);
    at = next->end;
  }
  return at + cost;
}

Time IngressPort::Earliest(Time arrival, uint64_t bytes) const {
  const int64_t cost = clock_.Cost(bytes);
  return std::max(arrival, clock_.ToTime(Finish(clock_.FromTime(arrival) - cost, cost)));
}

Time IngressPort::Admit(Time arrival, uint64_t bytes) {
  const int64_t cost = clock_.Cost(bytes);
  Interval taken{clock_.FromTime(arrival) - cost, 0};
  taken.end = Finish(taken.begin, cost);
  const Time through = std::max(arrival, clock_.ToTime(taken.end));
  // The slice fills all gaps from its first byte to its end, so this merges all intervals it
  // touches.
  const auto first =
      std::partition_point(busy_.begin(), busy_.end(),
                           [&](const Interval& interval) { return interval.end < taken.begin; });
  auto last = first;
  for (; last != busy_.end() && last->begin <= taken.end; ++last) {
    taken.begin = std::min(taken.begin, last->begin);
    taken.end = std::max(taken.end, last->end);
  }
  busy_.insert(busy_.erase(first, last), taken);
  if (busy_.size() > kIntervals) busy_.erase(busy_.begin());
  return through;
}

LinkSendLane::LinkSendLane(LinkTransport* link, std::unique_ptr<StampedSendLane> inner)
    : link_(link), inner_(std::move(inner)) {
  link_->send_.push_back(this);
}

LinkSendLane::~LinkSendLane() { std::erase(link_->send_, this); }

Result<Span> LinkSendLane::TryAcquire() {
  Result<Span> slot = inner_->TryAcquire();
  if (acquired_ || !slot.ok()) return slot;
  blocked_until_ = 0;
  if (slot->data == nullptr) return slot;
  const Time departure = inner_->CreditDeparture();
  const Time usable = departure == 0 ? 0 : departure + link_->latency_;
  if (usable > link_->now_) {
    blocked_until_ = usable;
    return Span{};
  }
  acquired_ = true;
  return slot;
}

Status LinkSendLane::Publish(const SliceHeader& header) {
  if (Status status = CheckPublish(spec(), acquired_, header); !status.ok()) return status;
  acquired_ = false;
  return inner_->PublishStamped(
      header, link_->egress_.Reserve(link_->clock_->Now(), uint64_t{kHeaderBytes} + header.bytes));
}

LinkRecvLane::LinkRecvLane(LinkTransport* link, std::unique_ptr<StampedRecvLane> inner)
    : link_(link), inner_(std::move(inner)), visible_(spec().depth) {
  link_->recv_.push_back(this);
}

LinkRecvLane::~LinkRecvLane() { std::erase(link_->recv_, this); }

Result<bool> LinkRecvLane::TryPeek(Incoming* incoming) {
  if (admitted_ == 0 || visible_[head_] > link_->now_) return false;
  Result<bool> there = inner_->TryPeek(incoming);
  peeked_ = there.ok() && *there;
  return there;
}

Status LinkRecvLane::Release() {
  if (!peeked_) return ReleaseError(spec());
  peeked_ = false;
  if (++head_ == visible_.size()) head_ = 0;
  --admitted_;
  return inner_->ReleaseStamped(link_->egress_.ReserveFirst(link_->clock_->Now(), kCreditBytes));
}

Status LinkRecvLane::Look() {
  if (waiting_ || admitted_ == visible_.size()) return Status::Ok();
  SliceHeader header;
  Time departure = 0;
  Result<bool> there = inner_->PeekAhead(admitted_, &header, &departure);
  if (!there.ok()) return there.status();
  if (!*there) return Status::Ok();
  waiting_ = true;
  arrival_ = departure + link_->latency_;
  wire_bytes_ = uint64_t{kHeaderBytes} + header.bytes;
  return Status::Ok();
}

void LinkRecvLane::Admit(Time visible) {
  visible_[(head_ + admitted_) % visible_.size()] = visible;
  ++admitted_;
  waiting_ = false;
}

Time LinkRecvLane::NextVisible() const {
  if (admitted_ > 0) return visible_[head_];
  return waiting_ ? link_->ingress_.Earliest(arrival_, wire_bytes_) : 0;
}

}  // namespace inccl::emulated

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
  auto* const stamped = dynamic_cast<Stamped*>(lane->get());
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
  const auto* const link = dynamic_cast<const emulated::LinkTransport*>(&transport);
  return link == nullptr ? kNever : link->NextEvent();
}

}  // namespace inccl
