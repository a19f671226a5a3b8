// SPDX-License-Identifier: Apache-2.0
//
// What arrives from a peer.
#include <fmt/format.h>

#include <cstring>

#include "transport/lane_check.h"
#include "transport/verbs/verbs_peer.h"

namespace inccl::verbs {
namespace {

constexpr size_t kMostSlots = UINT16_MAX;

}  // namespace

Status Peer::OnMessage(uint32_t immediate, uint32_t bytes) {
  ++messages_;
  if (Status status = queues_->Consumed(); !status.ok()) return status;
  const Immediate message = Unpack(immediate);
  if (message.credit && message.lane == kTrialLane) {
    trial_arrived_ = true;
    return Status::Ok();
  }
  const std::string wrong = message.credit ? CreditArrived(message) : SliceArrived(message, bytes);
  if (wrong.empty()) return Status::Ok();
  return InternalError(fmt::format("{} sent {}", name_, wrong));
}

std::string Peer::SliceArrived(const Immediate& immediate, uint32_t bytes) {
  if (immediate.lane >= recv_ends_.size()) {
    return fmt::format("a slice of lane number {}, of {}", immediate.lane, recv_ends_.size() - 1);
  }
  RecvEnd* const end = recv_ends_[immediate.lane].get();
  const bool grant = immediate.lane == 0;
  if (end->arrived - end->released >= end->spec.depth) {
    return fmt::format("a slice of {} without credit", Describe(end->spec));
  }
  const uint64_t slot = end->arrived % end->spec.depth;
  if (immediate.value != slot) {
    return fmt::format("a slice in slot {} of {} instead of {}", immediate.value,
                       Describe(end->spec), slot);
  }
  FrameHeader& header = end->headers[slot];
  std::memcpy(&header, end->slots.frame(end->arrived), sizeof header);
  if (header.bytes > end->spec.slot_bytes || bytes != sizeof header + header.bytes) {
    return fmt::format("a slice of {} bytes in {} on {}", header.bytes, bytes, Describe(end->spec));
  }
  std::byte* const payload = end->slots.payload(end->arrived);
  if (!((header.credit_lane & kUnread) != 0
            ? in_guard_->CheckUnread(header)
            : in_guard_->CheckHeader(header) &&
                  in_guard_->CheckPayload(header, {payload, header.bytes}))) {
    return fmt::format("a damaged or forged slice on {}", Describe(end->spec));
  }
  const auto kind = grant ? tcp::FrameKind::kGrant : tcp::FrameKind::kSlice;
  if (header.kind != kind || header.version != tcp::kFrameVersion || header.reserved != 0 ||
      header.credit_lane > (grant ? 0 : kIsInput | kUnread) || header.seq != end->arrived + 1 ||
      (!grant && header.lane != end->lane)) {
    return fmt::format("frame number {} of kind {} for lane {} instead of number {} on {}",
                       header.seq, static_cast<int>(header.kind), header.lane, end->arrived + 1,
                       Describe(end->spec));
  }
  ++end->arrived;
  if (!grant) return "";
  std::string wrong = TakeGrant(header, payload);
  ++end->released;
  Owe(end);
  return wrong;
}

std::string Peer::TakeGrant(const FrameHeader& header, const std::byte* payload) {
  const size_t number = grants_.size() + 1;
  Grant grant{.at = {},
              .slot_bytes = header.slice,
              .depth = static_cast<uint32_t>(header.credit),
              .end = nullptr};
  if (header.lane != number || number > kMostLanes || header.bytes != sizeof grant.at) {
    return fmt::format("grant number {} of {} bytes instead of {}", header.lane, header.bytes,
                       number);
  }
  if (header.credit == 0 || header.credit > kMostSlots) {
    return fmt::format("a grant of {} slots", header.credit);
  }
  std::memcpy(&grant.at, payload, sizeof grant.at);
  if (!number_of_.emplace(header.signature, number).second) {
    return fmt::format("two grants of lane {:x}", header.signature);
  }
  grants_.push_back(grant);
  const auto waiting = ungranted_send_.find(header.signature);
  if (waiting == ungranted_send_.end()) return "";
  SendEnd* const end = waiting->second;
  ungranted_send_.erase(waiting);
  return Join(number, end);
}

std::string Peer::Join(size_t number, SendEnd* end) {
  Grant& grant = grants_[number - 1];
  if (grant.slot_bytes != end->spec.slot_bytes || grant.depth != end->spec.depth ||
      grant.at.stride < sizeof(FrameHeader) + grant.slot_bytes) {
    return fmt::format("a grant of {} slots of {} bytes, {} apart, for {}", grant.depth,
                       grant.slot_bytes, grant.at.stride, Describe(end->spec));
  }
  grant.end = end;
  end->lane = static_cast<uint16_t>(number);
  end->remote = grant.at.address;
  end->remote_key = grant.at.key;
  end->remote_stride = grant.at.stride;
  end->allowed = grant.depth;
  return "";
}

std::string Peer::CreditArrived(const Immediate& immediate) {
  const size_t number = immediate.lane;
  SendEnd* const end = number == 0               ? send_ends_.front().get()
                       : number > grants_.size() ? nullptr
                                                 : grants_[number - 1].end;
  if (end == nullptr) {
    return fmt::format("a credit of lane number {}, of {}", number, grants_.size());
  }
  const auto more = static_cast<uint16_t>(immediate.value - static_cast<uint16_t>(end->allowed));
  if (more == 0 || end->allowed + more > end->published + end->spec.depth) {
    return fmt::format("a credit of {} slices after {}, of {} published, for {}", more,
                       end->allowed, end->published, Describe(end->spec));
  }
  end->allowed += more;
  return "";
}

}  // namespace inccl::verbs
