// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transport/lane_check.h"

namespace inccl::tcp {
namespace {

constexpr Time kLostAfter = kSecond;
constexpr size_t kMostGrants = size_t{1} << 20;

}  // namespace

Result<SendEnd*> ConnectionLanes::OpenSend(const LaneSpec& spec) {
  Result<Slots> slots = Slots::Create(rank_, spec);
  if (!slots.ok()) return slots.status();
  auto end = std::make_unique<SendEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
  end->in_flight = std::make_unique<bool[]>(spec.depth);  // NOLINT(modernize-avoid-c-arrays)
  SendEnd* const opened = end.get();
  send_ends_.push_back(std::move(end));
  const auto number = number_of_.find(spec.Key());
  if (number == number_of_.end()) {
    ungranted_.emplace(spec.Key(), opened);
    return opened;
  }
  const std::string wrong = Join(number->second, opened);
  if (wrong.empty()) return opened;
  return InternalError(fmt::format("{} sent {}", name_, wrong));
}

Result<RecvEnd*> ConnectionLanes::OpenRecv(const LaneSpec& spec) {
  Result<Slots> slots = Slots::Create(rank_, spec);
  if (!slots.ok()) return slots.status();
  auto end = std::make_unique<RecvEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
  end->lane = static_cast<uint32_t>(recv_ends_.size() + 1);
  RecvEnd* const opened = end.get();
  recv_ends_.push_back(std::move(end));
  FrameHeader grant;
  grant.kind = FrameKind::kGrant;
  grant.lane = opened->lane;
  grant.slice = spec.slot_bytes;
  grant.signature = spec.Key();
  grant.seq = spec.depth;
  if (Status status = connection_.Send(grant); !status.ok()) return status;
  return opened;
}

// The lane of a slice, if the slice is the next one and this rank has a free slot for it.
RecvEnd* ConnectionLanes::Due(const FrameHeader& header, std::string* wrong) const {
  const size_t number = header.lane;
  if (number == 0 || number > recv_ends_.size()) {
    *wrong = fmt::format("a slice of lane number {}, of {}", number, recv_ends_.size());
    return nullptr;
  }
  RecvEnd* const end = recv_ends_[number - 1].get();
  if (header.seq != end->arrived + 1) {
    *wrong = fmt::format("slice number {} of {} instead of {}", header.seq, Describe(end->spec),
                         end->arrived + 1);
  } else if (end->arrived - end->released >= end->spec.depth) {
    *wrong = fmt::format("a slice of {} without credit", Describe(end->spec));
  } else if (header.bytes > end->spec.slot_bytes) {
    *wrong = fmt::format("a slice of {} bytes on {}", header.bytes, Describe(end->spec));
  } else {
    return end;
  }
  return nullptr;
}

std::byte* ConnectionLanes::PlaceOf(const FrameHeader& header, std::string* wrong) {
  const RecvEnd* const end = Due(header, wrong);
  return end == nullptr ? nullptr : end->slots.payload(end->arrived);
}

std::string ConnectionLanes::Arrived(const FrameHeader& header) {
  if (header.kind == FrameKind::kGrant) return TakeGrant(header);
  if (header.credit_lane != 0) {
    if (std::string wrong = TakeCredit(header); !wrong.empty()) return wrong;
  }
  if (header.kind != FrameKind::kSlice) return "";
  std::string wrong;
  RecvEnd* const end = Due(header, &wrong);
  if (end == nullptr) return wrong;
  *reinterpret_cast<FrameHeader*>(end->slots.frame(end->arrived)) = header;
  ++end->arrived;
  return "";
}

std::string ConnectionLanes::TakeGrant(const FrameHeader& header) {
  const size_t number = grants_.size() + 1;
  if (header.lane != number || number > kMostGrants) {
    return fmt::format("grant number {} instead of {}", header.lane, number);
  }
  if (header.seq == 0 || header.seq > UINT16_MAX) {
    return fmt::format("a grant of {} slots", header.seq);
  }
  if (!number_of_.emplace(header.signature, number).second) {
    return fmt::format("two grants of lane {:x}", header.signature);
  }
  grants_.push_back({.slot_bytes = header.slice, .depth = static_cast<uint32_t>(header.seq)});
  const auto waiting = ungranted_.find(header.signature);
  if (waiting == ungranted_.end()) return "";
  SendEnd* const end = waiting->second;
  ungranted_.erase(waiting);
  return Join(number, end);
}

std::string ConnectionLanes::Join(size_t number, SendEnd* end) {
  Grant& grant = grants_[number - 1];
  if (grant.slot_bytes != end->spec.slot_bytes || grant.depth != end->spec.depth) {
    return fmt::format("a grant of {} slots of {} bytes for {}", grant.depth, grant.slot_bytes,
                       Describe(end->spec));
  }
  grant.end = end;
  end->lane = static_cast<uint32_t>(number);
  end->allowed = grant.depth;
  return "";
}

std::string ConnectionLanes::TakeCredit(const FrameHeader& header) {
  const size_t number = header.credit_lane;
  SendEnd* const end = number > grants_.size() ? nullptr : grants_[number - 1].end;
  if (end == nullptr) {
    return fmt::format("a credit of lane number {}, of {}", number, grants_.size());
  }
  if (header.credit <= end->allowed || header.credit > end->published + end->spec.depth) {
    return fmt::format("a credit of {} slices after {}, of {} published, for {}", header.credit,
                       end->allowed, end->published, Describe(end->spec));
  }
  end->allowed = header.credit;
  return "";
}

void ConnectionLanes::Owe(RecvEnd* end) {
  if (end->owes) return;
  end->owes = true;
  owing_.push_back(end);
}

uint64_t ConnectionLanes::Announce(size_t index) {
  RecvEnd* const end = owing_[index];
  owing_[index] = owing_.back();
  owing_.pop_back();
  end->announced = end->released;
  end->owes = false;
  return end->released + end->spec.depth;
}

void ConnectionLanes::AddCredit(FrameHeader* header) {
  if (owing_.empty()) return;
  header->credit_lane = owing_.front()->lane;
  header->credit = Announce(0);
}

Status ConnectionLanes::SendCredits(bool all) {
  for (size_t i = owing_.size(); i-- > 0;) {
    const RecvEnd* const end = owing_[i];
    if (!all && !OwesMuch(*end)) continue;
    FrameHeader credit;
    credit.credit_lane = end->lane;
    credit.credit = Announce(i);
    if (Status status = connection_.Send(credit); !status.ok()) return status;
  }
  return Status::Ok();
}

bool ConnectionLanes::awaited() const {
  return !connection_.made() && connection_.failure().empty() &&
         !(send_ends_.empty() && recv_ends_.empty());
}

bool ConnectionLanes::unsent() const {
  return connection_.unsent() || awaited() ||
         (connection_.failure().empty() &&
          std::any_of(owing_.begin(), owing_.end(),
                      [](const RecvEnd* end) { return OwesMuch(*end); }));
}

void ConnectionLanes::DropUnsent() {
  if (awaited()) return connection_.Fail("a call failed");
  connection_.DropUnsent();
}

PeerLink::PeerLink(int rank, int peer, const std::string& name, Protection protection,
                   int connections)
    : peer_(peer), name_(name) {
  for (int i = 0; i < connections; ++i) {
    connections_.push_back(std::make_unique<ConnectionLanes>(rank, name, protection));
  }
}

Result<int> PeerLink::Progress(Time now) {
  int frames = 0;
  for (const std::unique_ptr<ConnectionLanes>& lanes : connections_) {
    Connection* const connection = lanes->connection();
    if (connection->writable() && connection->unsent()) connection->Flush();
    if (connection->readable()) {
      Result<int> got = connection->Receive();
      if (!got.ok()) return got;
      frames += *got;
    }
    if (failed_at_ == 0 && !connection->failure().empty()) {
      failure_ = connection->failure();
      failed_at_ = now;
    }
  }
  lost_ = lost_ || (failed_at_ != 0 && now - failed_at_ > kLostAfter);
  // The call whose slices these are may need nothing else of this peer.
  if (lost_ && dropped_slices()) return Lost();
  return frames;
}

Status PeerLink::SendCredits(bool all) {
  for (const std::unique_ptr<ConnectionLanes>& lanes : connections_) {
    if (Status status = lanes->SendCredits(all); !status.ok()) return status;
  }
  return Status::Ok();
}

bool PeerLink::dropped_slices() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& lanes) { return lanes->connection()->dropped_slices(); });
}

bool PeerLink::unsent() const {
  if (dropped_slices()) return true;  // until Progress reports the loss
  return failed_at_ == 0 && std::any_of(connections_.begin(), connections_.end(),
                                        [](const auto& lanes) { return lanes->unsent(); });
}

void PeerLink::DropUnsent() {
  for (const std::unique_ptr<ConnectionLanes>& lanes : connections_) {
    lanes->DropUnsent();
  }
}

bool PeerLink::acknowledged() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& lanes) { return lanes->connection()->Acknowledged(); });
}

bool PeerLink::readable() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& lanes) { return lanes->connection()->readable(); });
}

void PeerLink::Close() {
  for (const std::unique_ptr<ConnectionLanes>& lanes : connections_) lanes->connection()->Close();
}

Status PeerLink::Lost() const {
  if (!lost_) return Status::Ok();
  return RemoteError(fmt::format("{} is lost: {}", name_, failure_));
}

}  // namespace inccl::tcp
