// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_peer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/transport.h"

namespace inccl::tcp {

Result<Slots> Slots::Create(int rank, const LaneSpec& spec) {
  constexpr size_t kPage = 4096, kLine = 64;
  Slots slots;
  const size_t frame = sizeof(FrameHeader) + spec.slot_bytes;
  const size_t unit = frame >= kPage ? kPage : kLine;
  slots.stride = (frame + unit - 1) / unit * unit;
  slots.depth = spec.depth;
  const size_t bytes = slots.stride * spec.depth;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(
        fmt::format("rank {}: {}: mmap of {} bytes", rank, Describe(spec), bytes), errno);
  }
  slots.memory = Mapping(data, bytes);
  slots.taken = std::make_unique<bool[]>(spec.depth);  // NOLINT(modernize-avoid-c-arrays)
  return slots;
}

Result<Span> TcpSendLane::TryAcquire() {
  if (!acquired_) {
    const size_t slot =
        end_->published < end_->allowed ? end_->slots.FirstFree() : end_->slots.depth;
    if (slot == end_->slots.depth) {
      if (Status status = link_->Lost(); !status.ok()) return status;
      return Span{};
    }
    slot_ = slot;
    acquired_ = true;
  }
  return Span{end_->slots.payload(slot_), end_->spec.slot_bytes};
}

Status TcpSendLane::Publish(const SliceHeader& header) {
  return PublishFrom(header, end_->slots.payload(slot_), false);
}

// An encrypted payload needs a place of its own, and a small one is copied faster than it takes a
// part of a system call.
bool TcpSendLane::SendsFrom(const std::byte* /*data*/, size_t bytes, bool on_device) const {
  constexpr size_t kLeastInPlace = 16 * 1024;
  return bytes >= kLeastInPlace && !on_device && !lanes_->encrypts();
}

Status TcpSendLane::PublishFrom(const SliceHeader& header, const std::byte* data,
                                bool /*on_device*/) {
  if (Status status = CheckPublish(end_->spec, acquired_, header); !status.ok()) return status;
  if (Status status = link_->Lost(); !status.ok()) return status;
  OutFrame* const frame = lanes_->Queue();
  frame->header = reinterpret_cast<FrameHeader*>(end_->slots.frame(slot_));
  frame->payload = data;
  frame->in_flight = &end_->slots.taken[slot_];
  *frame->in_flight = true;
  acquired_ = false;
  ++end_->published;
  *frame->header = {.kind = FrameKind::kSlice,
                    .lane = end_->lane,
                    .bytes = header.bytes,
                    .slice = header.slice,
                    .signature = header.signature,
                    .seq = end_->published};
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  lanes_->Flush();
  return Status::Ok();
}

Result<bool> TcpSendLane::Drained() {
  if (end_->allowed == end_->published + end_->spec.depth || end_->published == 0) return true;
  if (Status status = link_->Lost(); !status.ok()) return status;
  return false;
}

Result<bool> TcpRecvLane::TryPeek(Incoming* incoming) {
  if (end_->arrived == end_->released) {
    if (Status status = link_->Lost(); !status.ok()) return status;
    return false;
  }
  const size_t slot = end_->at(end_->released).slot;
  const auto* const frame = reinterpret_cast<const FrameHeader*>(end_->slots.frame(slot));
  incoming->header = {.bytes = frame->bytes, .slice = frame->slice, .signature = frame->signature};
  incoming->payload = end_->slots.payload(slot);
  incoming->target = nullptr;
  peeked_ = true;
  return true;
}

Status TcpRecvLane::Release() {
  if (!peeked_) return ReleaseError(end_->spec);
  peeked_ = false;
  RecvEnd::Slice& slice = end_->at(end_->released);
  end_->slots.taken[slice.slot] = false;
  slice = {};
  ++end_->released;
  ++counters_->credits;
  lanes_->Owe(end_);
  return Status::Ok();
}

namespace {

constexpr Time kLostAfter = kSecond;
constexpr size_t kMostGrants = size_t{1} << 20;

}  // namespace

PeerLanes::PeerLanes(int rank, const std::string& name, Protection protection, int connections)
    : rank_(rank), name_(name) {
  for (int i = 0; i < connections; ++i) {
    connections_.push_back(std::make_unique<Connection>(name, protection, this));
  }
}

Result<SendEnd*> PeerLanes::OpenSend(const LaneSpec& spec) {
  Result<Slots> slots = Slots::Create(rank_, spec);
  if (!slots.ok()) return slots.status();
  auto end = std::make_unique<SendEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
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

Result<RecvEnd*> PeerLanes::OpenRecv(const LaneSpec& spec) {
  Result<Slots> slots = Slots::Create(rank_, spec);
  if (!slots.ok()) return slots.status();
  auto end = std::make_unique<RecvEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
  end->slices.resize(spec.depth);
  end->lane = static_cast<uint32_t>(recv_ends_.size() + 1);
  RecvEnd* const opened = end.get();
  recv_ends_.push_back(std::move(end));
  FrameHeader grant;
  grant.kind = FrameKind::kGrant;
  grant.lane = opened->lane;
  grant.slice = spec.slot_bytes;
  grant.signature = spec.Key();
  grant.seq = spec.depth;
  // Grants stay in order on one connection.
  if (Status status = connections_.front()->Send(grant); !status.ok()) return status;
  return opened;
}

// The lane of a slice, if this rank has a free slot for it and it is the next one or, with several
// connections, a later one.
RecvEnd* PeerLanes::Due(const FrameHeader& header, std::string* wrong) const {
  const size_t number = header.lane;
  if (number == 0 || number > recv_ends_.size()) {
    *wrong = fmt::format("a slice of lane number {}, of {}", number, recv_ends_.size());
    return nullptr;
  }
  RecvEnd* const end = recv_ends_[number - 1].get();
  if (ordered() ? header.seq != end->arrived + 1 : header.seq <= end->arrived) {
    *wrong = fmt::format("slice number {} of {} instead of {}", header.seq, Describe(end->spec),
                         end->arrived + 1);
  } else if (header.seq - end->released > end->spec.depth) {
    *wrong = fmt::format("a slice of {} without credit", Describe(end->spec));
  } else if (header.bytes > end->spec.slot_bytes) {
    *wrong = fmt::format("a slice of {} bytes on {}", header.bytes, Describe(end->spec));
  } else {
    return end;
  }
  return nullptr;
}

RecvEnd::Slice* PeerLanes::Take(RecvEnd* end, uint64_t slice) {
  RecvEnd::Slice& taken = end->at(slice);
  taken.slot = static_cast<uint16_t>(end->slots.FirstFree());
  end->slots.taken[taken.slot] = true;
  return &taken;
}

std::byte* PeerLanes::PlaceOf(const FrameHeader& header, std::string* wrong) {
  RecvEnd* const end = Due(header, wrong);
  if (end == nullptr) return nullptr;
  if (end->at(header.seq - 1).slot != RecvEnd::kNoSlot) {
    *wrong = fmt::format("slice number {} of {} twice", header.seq, Describe(end->spec));
    return nullptr;
  }
  return end->slots.payload(Take(end, header.seq - 1)->slot);
}

std::string PeerLanes::Arrived(const FrameHeader& header) {
  if (header.kind == FrameKind::kGrant) return TakeGrant(header);
  if (header.credit_lane != 0) {
    if (std::string wrong = TakeCredit(header); !wrong.empty()) return wrong;
  }
  if (header.kind != FrameKind::kSlice) return "";
  std::string wrong;
  RecvEnd* const end = Due(header, &wrong);
  if (end == nullptr) return wrong;
  RecvEnd::Slice* slice = &end->at(header.seq - 1);
  const bool is_new = slice->slot == RecvEnd::kNoSlot;
  if (is_new != (header.bytes == 0) || slice->complete) {
    return fmt::format("slice number {} of {} twice", header.seq, Describe(end->spec));
  }
  if (is_new) slice = Take(end, header.seq - 1);
  *reinterpret_cast<FrameHeader*>(end->slots.frame(slice->slot)) = header;
  slice->complete = true;
  while (end->arrived - end->released < end->spec.depth && end->at(end->arrived).complete) {
    ++end->arrived;
  }
  return "";
}

std::string PeerLanes::TakeGrant(const FrameHeader& header) {
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

std::string PeerLanes::Join(size_t number, SendEnd* end) {
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

std::string PeerLanes::TakeCredit(const FrameHeader& header) {
  const size_t number = header.credit_lane;
  SendEnd* const end = number > grants_.size() ? nullptr : grants_[number - 1].end;
  if (end == nullptr) {
    return fmt::format("a credit of lane number {}, of {}", number, grants_.size());
  }
  if ((ordered() && header.credit <= end->allowed) ||
      header.credit > end->published + end->spec.depth) {
    return fmt::format("a credit of {} slices after {}, of {} published, for {}", header.credit,
                       end->allowed, end->published, Describe(end->spec));
  }
  end->allowed = std::max(end->allowed, header.credit);
  return "";
}

void PeerLanes::Owe(RecvEnd* end) {
  if (end->owes) return;
  end->owes = true;
  owing_.push_back(end);
}

uint64_t PeerLanes::Announce(size_t index) {
  RecvEnd* const end = owing_[index];
  owing_[index] = owing_.back();
  owing_.pop_back();
  end->announced = end->released;
  end->owes = false;
  return end->released + end->spec.depth;
}

// A credit rides on a slice from the moment in which a connection takes it.
bool PeerLanes::NextFrame(OutFrame* frame) {
  if (queue_.empty()) return false;
  *frame = queue_.at(0);
  queue_.Pop();
  if (!owing_.empty()) {
    frame->header->credit_lane = owing_.front()->lane;
    frame->header->credit = Announce(0);
  }
  return true;
}

void PeerLanes::Flush() {
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (!connection->failure().empty()) {  // the lanes report the loss of the peer
      DropQueue();
    } else if (connection->writable() && (connection->unsent() || !queue_.empty())) {
      connection->Flush();
    }
  }
}

Status PeerLanes::SendCredits(bool all) {
  for (size_t i = owing_.size(); i-- > 0;) {
    const RecvEnd* const end = owing_[i];
    if (!all && !OwesMuch(*end)) continue;
    FrameHeader credit;
    credit.credit_lane = end->lane;
    credit.credit = Announce(i);
    // What waits in the queue would delay it.
    const auto free = std::find_if(connections_.begin(), connections_.end(),
                                   [](const auto& connection) { return connection->writable(); });
    Connection* const by = (free == connections_.end() ? connections_.front() : *free).get();
    if (Status status = by->Send(credit); !status.ok()) return status;
  }
  return Status::Ok();
}

bool PeerLanes::awaited() const {
  return !(send_ends_.empty() && recv_ends_.empty()) &&
         std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
           return !connection->made() && connection->failure().empty();
         });
}

bool PeerLanes::unsent() const {
  const bool lives = std::all_of(connections_.begin(), connections_.end(),
                                 [](const auto& each) { return each->failure().empty(); });
  return awaited() ||
         std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->unsent(); }) ||
         (lives &&
          (!queue_.empty() || std::any_of(owing_.begin(), owing_.end(),
                                          [](const RecvEnd* end) { return OwesMuch(*end); })));
}

bool PeerLanes::dropped_slices() const {
  return dropped_ ||
         std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->dropped_slices(); });
}

void PeerLanes::DropUnsent() {
  const bool all = awaited() || queue_.of_caller();
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (all) connection->Fail("a call failed");
    connection->DropUnsent();
  }
  if (all) DropQueue();
}

void PeerLanes::Close() {
  for (const std::unique_ptr<Connection>& connection : connections_) connection->Close();
  queue_.Drop();
  dropped_ = false;
}

PeerLink::PeerLink(int rank, int peer, const std::string& name, Protection protection,
                   int connections)
    : peer_(peer), name_(name), lanes_(rank, name, protection, connections) {}

Result<int> PeerLink::Progress(Time now) {
  int frames = 0;
  lanes_.Flush();
  for (const std::unique_ptr<Connection>& connection : lanes_.connections()) {
    if (connection->readable()) {
      Result<int> got = connection->Receive();
      if (!got.ok()) return got;
      frames += *got;
    }
    if (failed_at_ == 0 && !connection->failure().empty()) {
      failure_ = connection->failure();
      failed_at_ = now;
      lanes_.DropQueue();
    }
  }
  lost_ = lost_ || (failed_at_ != 0 && now - failed_at_ > kLostAfter);
  // The call whose slices these are may need nothing else of this peer.
  if (lost_ && lanes_.dropped_slices()) return Lost();
  return frames;
}

bool PeerLink::unsent() const {
  if (lanes_.dropped_slices()) return true;  // until Progress reports the loss
  return failed_at_ == 0 && lanes_.unsent();
}

bool PeerLink::acknowledged() const {
  const auto connections = lanes_.connections();
  return std::all_of(connections.begin(), connections.end(),
                     [](const auto& connection) { return connection->Acknowledged(); });
}

bool PeerLink::readable() const {
  const auto connections = lanes_.connections();
  return std::any_of(connections.begin(), connections.end(),
                     [](const auto& connection) { return connection->readable(); });
}

Status PeerLink::Lost() const {
  if (!lost_) return Status::Ok();
  return RemoteError(fmt::format("{} is lost: {}", name_, failure_));
}

}  // namespace inccl::tcp
