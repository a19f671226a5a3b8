// SPDX-License-Identifier: Apache-2.0
#include "collectives/send_recv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fault_point.h"
#include "compress/kernels/stream.h"

namespace inccl {
namespace {

// Message number (16 bits), type (8), count (40).
uint64_t Signature(uint64_t message, DataType type, uint64_t count) {
  return (message & 0xffff) << 48 | uint64_t{static_cast<uint8_t>(type)} << 40 | count;
}

std::string TypeName(uint64_t number) {
  return number < kDataTypes ? Name(static_cast<DataType>(number))
                             : fmt::format("unknown type {}", number);
}

// Below this a copy with non-temporal stores costs more than it saves.
constexpr uint64_t kLeastNonTemporal = 4096;

bool IsSend(const Call& call) { return call.kind == CallKind::kSend; }

void Copy(std::byte* to, const std::byte* from, uint64_t bytes, bool non_temporal) {
  if (non_temporal && bytes >= kLeastNonTemporal) {
    StreamCopy(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

SendRecvRequest::SendRecvRequest(int rank, int nranks, const SlotOptions& slots)
    : rank_(rank), nranks_(nranks), slots_(slots) {}

Status SendRecvRequest::Start(const std::vector<Call>& calls, const Copies& copies,
                              LaneTable* lanes) {
  copies_ = copies;
  directions_.resize(static_cast<size_t>(nranks_) * 2);
  active_.clear();
  unfinished_ = 0;
  if (Status status = CopyToSelf(calls); !status.ok()) return status;
  for (const Call& call : calls) {
    if (call.peer == rank_) continue;
    Direction& direction = At(IsSend(call), call.peer);
    LaneSpec spec{.lane_class = LaneClass::kSendRecv,
                  .channel = 0,
                  .producer = IsSend(call) ? rank_ : call.peer,
                  .consumers = {IsSend(call) ? call.peer : rank_},
                  .slot_bytes = slots_.data_bytes};
    spec.depth = lanes->DepthOf(spec, slots_);
    if (IsSend(call) && direction.send == nullptr) {
      Result<SendLane*> lane = lanes->Send(spec);
      if (!lane.ok()) return lane.status();
      direction.send = *lane;
    } else if (!IsSend(call) && direction.recv == nullptr) {
      Result<RecvLane*> lane = lanes->Recv(spec);
      if (!lane.ok()) return lane.status();
      direction.recv = *lane;
    }
    if (direction.next == direction.queue.size()) {
      direction.queue.clear();
      direction.next = 0;
      active_.push_back(static_cast<size_t>(&direction - directions_.data()));
    }
    direction.queue.push_back({.call = call, .bytes = call.count * SizeOf(call.type)});
    ++unfinished_;
  }
  return Status::Ok();
}

Status SendRecvRequest::CopyToSelf(const std::vector<Call>& calls) const {
  std::vector<const Call*> sends, recvs;
  for (const Call& call : calls) {
    if (call.peer == rank_) (IsSend(call) ? sends : recvs).push_back(&call);
  }
  if (sends.size() != recvs.size()) {
    return InvalidUsage(
        fmt::format("rank {}/{}: {} sends to itself and {} receives from itself in one group",
                    rank_, nranks_, sends.size(), recvs.size()));
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    const Call &send = *sends[i], &recv = *recvs[i];
    if (send.count != recv.count || send.type != recv.type) {
      return InvalidUsage(fmt::format("rank {}/{}: sends {} {} to itself where it receives {} {}",
                                      rank_, nranks_, send.count, Name(send.type), recv.count,
                                      Name(recv.type)));
    }
    if (send.count > 0) std::memmove(recv.recv, send.send, send.count * SizeOf(send.type));
  }
  return Status::Ok();
}

Result<bool> SendRecvRequest::SendSlice(int peer, Direction* direction) {
  (void)peer;
  Message& message = direction->queue[direction->next];
  Result<Span> slot = direction->send->TryAcquire();
  if (!slot.ok()) return slot.status();
  if (slot->data == nullptr) return false;
  const auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(message.bytes - message.moved, slots_.data_bytes));
  const auto* const from = static_cast<const std::byte*>(message.call.send) + message.moved;
  const bool in_place = direction->send->SendsFrom(from, bytes, false);
  if (!in_place) Copy(slot->data, from, bytes, copies_.slots);
  FAULT_POINT("send_recv.before_publish");
  const SliceHeader header{
      .bytes = bytes,
      .slice = direction->slice,
      .signature = Signature(direction->messages, message.call.type, message.call.count)};
  Status status = in_place ? direction->send->PublishFrom(header, from, false)
                           : direction->send->Publish(header);
  if (!status.ok()) return status;
  message.moved += bytes;
  return true;
}

Status SendRecvRequest::Mismatch(int peer, const Message& message, uint64_t index,
                                 uint64_t theirs) const {
  return InvalidUsage(
      fmt::format("rank {}/{} receives {} {} as message {} from rank {}, which sends {} {} as "
                  "message {}",
                  rank_, nranks_, message.call.count, Name(message.call.type), index & 0xffff, peer,
                  theirs & kMostSendRecvElements, TypeName(theirs >> 40 & 0xff), theirs >> 48));
}

Result<bool> SendRecvRequest::RecvSlice(int peer, Direction* direction) {
  Message& message = direction->queue[direction->next];
  RecvLane::Incoming incoming;
  Result<bool> there = direction->recv->TryPeek(&incoming);
  if (!there.ok() || !*there) return there;
  const uint64_t expected = Signature(direction->messages, message.call.type, message.call.count);
  if (incoming.header.signature != expected) {
    return Mismatch(peer, message, direction->messages, incoming.header.signature);
  }
  const uint64_t bytes = std::min<uint64_t>(message.bytes - message.moved, slots_.data_bytes);
  if (incoming.header.slice != direction->slice || incoming.header.bytes != bytes) {
    return InternalError(fmt::format(
        "rank {}/{}: expected slice {} of {} bytes from rank {}, got slice {} of {} bytes", rank_,
        nranks_, direction->slice, bytes, peer, incoming.header.slice, incoming.header.bytes));
  }
  Copy(static_cast<std::byte*>(message.call.recv) + message.moved, incoming.payload, bytes,
       message.bytes >= copies_.results);
  message.moved += bytes;
  FAULT_POINT("send_recv.before_release");
  if (Status status = direction->recv->Release(); !status.ok()) return status;
  return true;
}

Result<int> SendRecvRequest::Advance(int budget) {
  int ran = 0;
  // One slice of each in round-robin order, so that no peer starves another.
  bool any = true;
  while (any && ran < budget) {
    any = false;
    for (size_t i = 0; i < active_.size();) {
      Direction& direction = directions_[active_[i]];
      const int peer = static_cast<int>(active_[i] / 2);
      Result<bool> moved =
          (active_[i] & 1) != 0 ? SendSlice(peer, &direction) : RecvSlice(peer, &direction);
      if (!moved.ok()) return moved.status();
      if (!*moved) {
        ++i;
        continue;
      }
      any = true;
      ++ran;
      ++direction.slice;
      const Message& message = direction.queue[direction.next];
      if (message.moved < message.bytes) {
        ++i;
        continue;
      }
      direction.slice = 0;
      ++direction.messages;
      --unfinished_;
      if (++direction.next < direction.queue.size()) {
        ++i;
      } else {
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  return ran;
}

Blocked SendRecvRequest::blocked_on() const {
  if (active_.empty()) return {};
  const size_t at = active_.front();
  return {.on = (at & 1) != 0 ? Blocked::On::kCredit : Blocked::On::kSlice,
          .peer = static_cast<int>(at / 2)};
}

void SendRecvRequest::AppendAwaited(std::vector<int>* peers) const {
  for (const size_t at : active_) peers->push_back(static_cast<int>(at / 2));
}

std::string SendRecvRequest::Describe(const std::vector<Call>& calls) {
  if (calls.empty()) return "no sends or receives";
  const auto sends =
      std::count_if(calls.begin(), calls.end(), [](const Call& c) { return IsSend(c); });
  const Call& first = calls.front();
  std::string text = fmt::format("{}(count={}, {}, peer={})", IsSend(first) ? "send" : "recv",
                                 first.count, Name(first.type), first.peer);
  if (calls.size() > 1) {
    text += fmt::format(" and others, {} sends and {} receives in all", sends,
                        static_cast<std::ptrdiff_t>(calls.size()) - sends);
  }
  return text;
}

}  // namespace inccl
