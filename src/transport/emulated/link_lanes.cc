// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated/link_transport.h"
#include "transport/lane_check.h"

namespace inccl::emulated {

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
