// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/transport.h"

namespace inccl::verbs {
namespace {

constexpr Time kLostAfter = kSecond;
constexpr Time kProbeAfter = kSecond;

// A request to send whose memory the device could not read. Other errors are the peer's or the
// network's, or follow an earlier one; soft RoCE reports a port that is down as
// IBV_WC_LOC_QP_OP_ERR.
bool IsOfMemory(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return true;
    default: return false;
  }
}

std::string MemoryAt(const std::byte* data, uint32_t bytes, bool of_gpu) {
  return fmt::format("{} bytes at {}{}", bytes, fmt::ptr(data), of_gpu ? " of a GPU" : "");
}

LaneSpec InboxSpec(int producer, int consumer) {
  return {.producer = producer,
          .consumers = {consumer},
          .slot_bytes = kInboxStride - sizeof(FrameHeader),
          .depth = kInboxDepth};
}

}  // namespace

Peer::Peer(int rank, int peer, const Rails* rails, size_t rail, const CallerMemory* memory)
    : rank_(rank),
      peer_(peer),
      rail_(rail),
      device_(&rails->device(rail)),
      queues_(rails->queues(rail)),
      memory_(memory),
      depth_(rails->depth(rail)) {
  auto grants_in = std::make_unique<RecvEnd>();
  grants_in->spec = InboxSpec(peer, rank);
  grants_in->slots = rails->InboxOf(rail, peer);
  grants_in->headers.resize(kInboxDepth);
  recv_ends_.push_back(std::move(grants_in));
  auto grants_out = std::make_unique<SendEnd>();
  grants_out->spec = InboxSpec(rank, peer);
  grants_out->slots = rails->OutboxOf(rail, peer);
  grants_out->remote_stride = kInboxStride;
  grants_out->allowed = kInboxDepth;
  grants_out->under_way.resize(kInboxDepth);
  send_ends_.push_back(std::move(grants_out));
  queue_.resize(kInboxDepth);
}

Result<SendEnd*> Peer::OpenSend(const LaneSpec& spec) {
  Result<Slots> slots = Slots::Create(*device_, spec, Writer::kThisRank);
  if (!slots.ok()) return slots.status();
  // The consumer sends at most one credit for each slice.
  if (Status status = queues_->Reserve(spec.depth); !status.ok()) return status;
  auto end = std::make_unique<SendEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
  end->under_way.resize(spec.depth);
  SendEnd* const opened = end.get();
  send_ends_.push_back(std::move(end));
  std::rotate(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(front_), queue_.end());
  front_ = 0;
  queue_.resize(queue_.size() + spec.depth);
  const auto number = number_of_.find(spec.Key());
  if (number == number_of_.end()) {
    ungranted_send_.emplace(spec.Key(), opened);
    return opened;
  }
  const std::string wrong = Join(number->second, opened);
  if (wrong.empty()) return opened;
  return InternalError(fmt::format("{} sent {}", name_, wrong));
}

Result<RecvEnd*> Peer::OpenRecv(const LaneSpec& spec) {
  if (recv_ends_.size() > kMostLanes) {
    return SystemError(
        fmt::format("{}: {}: more than {} lanes", name_, Describe(spec), kMostLanes));
  }
  Result<Slots> slots = Slots::Create(*device_, spec, Writer::kPeers);
  if (!slots.ok()) return slots.status();
  if (Status status = queues_->Reserve(spec.depth); !status.ok()) return status;
  auto end = std::make_unique<RecvEnd>();
  end->spec = spec;
  end->slots = *std::move(slots);
  end->headers.resize(spec.depth);
  end->lane = static_cast<uint16_t>(recv_ends_.size());
  RecvEnd* const opened = end.get();
  recv_ends_.push_back(std::move(end));
  owing_.reserve(recv_ends_.size());
  ungranted_recv_.push_back(opened);
  if (Status status = SendGrants(); !status.ok()) return status;
  return opened;
}

// Grants wait for credits of the inbox, as slices do.
Status Peer::SendGrants() {
  SendEnd* const outbox = send_ends_.front().get();
  while (!ungranted_recv_.empty() && HasSlot(*outbox)) {
    const RecvEnd& end = *ungranted_recv_.front();
    ungranted_recv_.pop_front();
    const GrantPayload at{.address = reinterpret_cast<uint64_t>(end.slots.base),
                          .key = end.slots.remote_key,
                          .stride = end.slots.stride};
    std::memcpy(outbox->slots.payload(outbox->published), &at, sizeof at);
    FrameHeader header;
    header.kind = tcp::FrameKind::kGrant;
    header.lane = end.lane;
    header.bytes = sizeof at;
    header.slice = end.spec.slot_bytes;
    header.signature = end.spec.Key();
    header.credit = end.spec.depth;
    if (Status status = Send(outbox, header); !status.ok()) return status;
  }
  return Status::Ok();
}

bool Peer::HasSlot(const SendEnd& end) {
  if (end.published >= end.allowed || !failure_.empty()) return false;
  const uint64_t request = end.under_way[end.published % end.spec.depth].request;
  if (request <= completed_) return true;
  queues_->AwaitSends();
  return false;
}

Status Peer::Send(SendEnd* end, const FrameHeader& frame, const std::byte* from) {
  const uint64_t slice = end->published++;
  FrameHeader header = frame;
  header.seq = slice + 1;
  // Only encryption, which this transport does not have, would write to the payload.
  std::byte* const payload =
      from != nullptr ? const_cast<std::byte*>(from) : end->slots.payload(slice);
  const bool unread = (header.credit_lane & kUnread) != 0;
  Status sealed =
      unread ? out_guard_->SealUnread(&header) : out_guard_->Seal(&header, {payload, header.bytes});
  if (!sealed.ok()) return sealed;
  *reinterpret_cast<FrameHeader*>(end->slots.frame(slice)) = header;
  SendEnd::Slot& slot = end->under_way[slice % end->spec.depth];
  slot.from = from;
  if (!failure_.empty()) {
    dropped_ = true;
  } else if (queued_ == 0 && HasRoom()) {
    PostSlice(end, slice);
  } else {
    slot.request = SendEnd::Slot::kQueued;
    queue_[(front_ + queued_++) % queue_.size()] = {end, slice};
    queues_->AwaitSends();
  }
  return Status::Ok();
}

bool Peer::Post(ibv_send_wr* request, ibv_wr_opcode opcode) {
  request->wr_id = posted_ + 1;
  request->opcode = opcode;
  request->send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue_pair_.get(), request, &bad);
  if (error != 0) {
    FailHere(Code::kSystemError, fmt::format("posting a request: {}", std::strerror(error)));
    return false;
  }
  ++posted_;
  return true;
}

void Peer::PostSlice(SendEnd* end, uint64_t slice) {
  const auto slot = static_cast<uint16_t>(slice % end->spec.depth);
  SendEnd::Slot& under_way = end->under_way[slot];
  std::byte* const frame = end->slots.frame(slice);
  const auto* const header = reinterpret_cast<const FrameHeader*>(frame);
  const uint32_t bytes = header->bytes;
  const std::byte* const from = bytes > 0 ? under_way.from : nullptr;
  std::array<ibv_sge, 2> pieces{};
  pieces[0] = {.addr = reinterpret_cast<uint64_t>(frame),
               .length = static_cast<uint32_t>(sizeof(FrameHeader)) + bytes,
               .lkey = end->slots.local_key};
  ibv_send_wr request{};
  request.sg_list = pieces.data();
  request.num_sge = 1;
  request.imm_data = htonl(Pack({.lane = end->lane, .value = slot}));
  request.wr.rdma.remote_addr = end->remote + uint64_t{slot} * end->remote_stride;
  request.wr.rdma.rkey = end->remote_key;
  bool posted = false;
  const bool in_place = from != nullptr && memory_->Use(from, bytes, rail_, [&](uint32_t key) {
    pieces[0].length = sizeof(FrameHeader);
    pieces[1] = {.addr = reinterpret_cast<uint64_t>(from), .length = bytes, .lkey = key};
    request.num_sge = 2;
    posted = Post(&request);
  });
  if (!in_place && (header->credit_lane & kUnread) != 0 && from != nullptr) {
    FailHere(Code::kInvalidUsage, fmt::format("{} were freed while a call was sending them",
                                              MemoryAt(from, bytes, true)));
  } else if (!in_place) {
    // The registration has ended since SendsFrom.
    if (from != nullptr) std::memcpy(end->slots.payload(slice), from, bytes);
    under_way.from = nullptr;
    posted = Post(&request);
  }
  if (!posted) {
    dropped_ = true;
    return;
  }
  under_way.request = last_slice_ = posted_;
  if (in_place) last_in_place_ = posted_;
}

void Peer::PostCredit(RecvEnd* end) {
  ibv_send_wr request{};
  const auto allowed = static_cast<uint16_t>(end->released + end->spec.depth);
  request.imm_data = htonl(Pack({.credit = true, .lane = end->lane, .value = allowed}));
  if (!Post(&request)) return;
  end->announced = end->released;
  end->owes = false;
}

void Peer::Owe(RecvEnd* end) {
  if (OwesMuch(*end) && !end->owes && queued_ == 0 && HasRoom()) return PostCredit(end);
  if (end->owes) return;
  end->owes = true;
  owing_.push_back(end);
}

void Peer::PostCredits(bool all) {
  for (size_t i = owing_.size(); i-- > 0;) {
    if (!all && !OwesMuch(*owing_[i])) continue;
    if (!HasRoom()) return queues_->AwaitSends();
    PostCredit(owing_[i]);
    owing_[i] = owing_.back();
    owing_.pop_back();
  }
}

// A write of no bytes and without immediate data: only the devices take note of it.
void Peer::ProbeIfQuiet(Time now, bool waiting) {
  const uint64_t seen = completed_ + messages_;
  if (seen != seen_ || !waiting) {
    seen_ = seen;
    quiet_since_ = now;
  } else if (now - quiet_since_ >= kProbeAfter && posted_ == completed_) {
    ibv_send_wr request{};
    Post(&request, IBV_WR_RDMA_WRITE);
  }
}

Status Peer::Progress(Time now, bool all) {
  if (!failure_.empty()) {
    if (failed_at_ == 0) failed_at_ = now;
    if (!here_.ok()) {
      lost_ = true;
    } else if (!lost_ && now - failed_at_ > kLostAfter) {
      lost_ = true;
      failure_ += PortTrouble();  // the device may learn of it after the request has failed
    }
    // The call whose slices these are may need nothing else of this peer.
    return lost_ && dropped_ ? Lost() : Status::Ok();
  }
  while (queued_ > 0 && HasRoom()) {
    const Queued next = queue_[front_];
    front_ = (front_ + 1) % queue_.size();
    --queued_;
    PostSlice(next.end, next.slice);
  }
  if (queued_ > 0 || (all && completed_ < last_in_place_)) queues_->AwaitSends();
  if (!owing_.empty()) PostCredits(all);
  ProbeIfQuiet(now, all);
  return ungranted_recv_.empty() ? Status::Ok() : SendGrants();
}

bool Peer::unsent() const {
  if (!failure_.empty()) return dropped_;  // until Progress reports the loss
  return reads_caller_memory() || !ungranted_recv_.empty() ||
         std::any_of(owing_.begin(), owing_.end(), [](const RecvEnd* e) { return OwesMuch(*e); });
}

void Peer::Fail(std::string why) {
  if (!failure_.empty()) return;
  dropped_ = queued_ > 0 || completed_ < last_slice_;
  failure_ = std::move(why);
}

void Peer::FailHere(Code code, const std::string& why) {
  if (!failure_.empty()) return;
  Fail(why);
  here_ = Status(code, fmt::format("rank {}: verbs: {}: {}", rank_, device_->name(), why));
}

void Peer::FailToSend(uint64_t request, const std::string& why) {
  for (const std::unique_ptr<SendEnd>& end : send_ends_) {
    for (size_t i = 0; i < end->under_way.size(); ++i) {
      const SendEnd::Slot& slot = end->under_way[i];
      if (slot.request != request) continue;
      const std::byte* const frame = end->slots.frame(i);
      const auto& header = *reinterpret_cast<const FrameHeader*>(frame);
      const bool of_gpu = (header.credit_lane & kUnread) != 0;
      if (slot.from == nullptr || header.bytes == 0) {
        return FailHere(Code::kSystemError, fmt::format("it cannot send the slot at {} of {}: {}",
                                                        fmt::ptr(frame), Describe(end->spec), why));
      }
      const std::string what = MemoryAt(slot.from, header.bytes, of_gpu);
      const std::string registration = memory_->RegistrationOf(slot.from, header.bytes);
      if (registration.empty()) {
        return FailHere(Code::kInvalidUsage,
                        fmt::format("{} were freed or deregistered while a call was sending them: "
                                    "{}",
                                    what, why));
      }
      return FailHere(Code::kSystemError,
                      fmt::format("it cannot read {}, of memory registered from {}, which a call "
                                  "sends in place: {}",
                                  what, registration, why));
    }
  }
  FailHere(Code::kSystemError, why);
}

std::string Peer::PortTrouble() const {
  const std::string port = device_->PortTrouble();
  return port.empty() ? "" : "; " + port;
}

// Receives have the request 0.
void Peer::OnFailure(uint64_t request, ibv_wc_status status) {
  std::string why = (device_->ibv().ibv_wc_status_str)(status);
  if (request != 0 && IsOfMemory(status)) return FailToSend(request, why);
  if (status == IBV_WC_RETRY_EXC_ERR) {
    why += " (its process or host has gone, or the network between the devices is interrupted)";
  }
  Fail(std::move(why));
}

Status Peer::Lost() const {
  if (!lost_) return Status::Ok();
  if (!here_.ok()) return here_;
  return RemoteError(fmt::format("{} is lost: {}", name_, failure_));
}

// What arrives from a peer.

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

// How a queue pair is made, connected and closed.

namespace {

constexpr uint8_t kRetries = 6;  // soft RoCE takes 7 for infinitely many
// A receive is posted before a peer may send, so no peer finds none. If one does, it shall be an
// error after a while; 7 would mean for ever.
constexpr uint8_t kNotReadyRetries = 6;
constexpr uint8_t kNotReadyTimer = 20;  // 10 ms
constexpr uint8_t kHopLimit = 255;
// Failures so short that a string of them needs no memory: there may be none at the end.
constexpr const char *kClosed = "closed", *kCallFailed = "a failed call";

}  // namespace

Status Peer::CreateQueuePair() {
  const Library& ibv = device_->ibv();
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = queues_->completions();
  init.srq = queues_->receives();
  init.cap.max_send_wr = depth_;
  init.cap.max_send_sge = 2;  // the header, and a payload in the caller's memory
  init.qp_type = IBV_QPT_RC;
  queue_pair_ = QueuePair((ibv.ibv_create_qp)(device_->pd(), &init), ibv.ibv_destroy_qp);
  if (queue_pair_ == nullptr) {
    return SystemErrorErrno(
        fmt::format("{}: no queue pair for peer rank {}", device_->name(), peer_), errno);
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_->port();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      (ibv.ibv_modify_qp)(queue_pair_.get(), &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) {
    return SystemErrorErrno(fmt::format("{}: initializing a queue pair", device_->name()), error);
  }
  // Grants of the peer, its credits for this rank's grants, and a trial.
  return queues_->Reserve(2 * kInboxDepth + 1);
}

Status Peer::Connect(const RankAddress& this_rank, const RankAddress& other,
                     const VerbsOptions& options, std::string name) {
  const RailAddress& mine = this_rank.rails[rail_];
  const RailAddress& theirs = other.rails[RailOf(rank_, peer_, other.rails.size())];
  const auto failed = [&](const std::string& why) {
    return SystemError(fmt::format("{}: {}", name, why));
  };
  if (mine.ethernet != theirs.ethernet) {
    return failed(fmt::format("this rank's port {} is of {}, that of the peer of {}",
                              device_->name(), mine.ethernet ? "Ethernet" : "InfiniBand",
                              theirs.ethernet ? "Ethernet" : "InfiniBand"));
  }
  if (theirs.mtu < IBV_MTU_256 || theirs.mtu > IBV_MTU_4096) {
    return failed(fmt::format("it has sent an MTU of code {}", theirs.mtu));
  }
  const Library& ibv = device_->ibv();
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
  ready.dest_qp_num = other.queue_pairs[static_cast<size_t>(rank_)];
  ready.rq_psn = other.PacketNumberTo(rank_);
  ready.max_dest_rd_atomic = 1;
  ready.min_rnr_timer = kNotReadyTimer;
  ready.ah_attr.port_num = device_->port();
  ready.ah_attr.dlid = theirs.lid;
  ready.ah_attr.is_global = mine.ethernet || theirs.lid == 0 ? 1 : 0;
  std::memcpy(ready.ah_attr.grh.dgid.raw, theirs.gid.data(), theirs.gid.size());
  ready.ah_attr.grh.sgid_index = device_->gid_index();
  ready.ah_attr.grh.hop_limit = kHopLimit;
  ready.ah_attr.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  int error =
      (ibv.ibv_modify_qp)(queue_pair_.get(), &ready,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    ibv_qp_attr sending{};
    sending.qp_state = IBV_QPS_RTS;
    sending.sq_psn = this_rank.PacketNumberTo(peer_);
    sending.timeout = static_cast<uint8_t>(options.timeout);
    sending.retry_cnt = kRetries;
    sending.rnr_retry = kNotReadyRetries;
    sending.max_rd_atomic = 1;
    error = (ibv.ibv_modify_qp)(queue_pair_.get(), &sending,
                                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error != 0) {
    return failed(fmt::format("{} (GID {}) does not connect to GID {}: {}", device_->name(),
                              ToText(mine.gid), ToText(theirs.gid), std::strerror(error)));
  }
  SendEnd* const outbox = send_ends_.front().get();
  outbox->remote = theirs.inbox + static_cast<uint64_t>(rank_) * kInboxBytes;
  outbox->remote_key = theirs.inbox_key;
  trial_bytes_ = std::min<uint32_t>(128u << ready.path_mtu, kInboxBytes);
  name_ = std::move(name);
  return Status::Ok();
}

void Peer::StartTrial() {
  const SendEnd& outbox = *send_ends_.front();
  ibv_sge piece{.addr = reinterpret_cast<uint64_t>(outbox.slots.base),
                .length = trial_bytes_,
                .lkey = outbox.slots.local_key};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.imm_data = htonl(Pack({.credit = true, .lane = kTrialLane, .value = 0}));
  request.wr.rdma.remote_addr = outbox.remote;
  request.wr.rdma.rkey = outbox.remote_key;
  Post(&request);
}

std::string Peer::EndTrial() {
  if (!failure_.empty()) return fmt::format("{}: {}{}", device_->name(), failure_, PortTrouble());
  if (!trial_is_open()) return "";
  return fmt::format("{}: {} came in time", device_->name(),
                     trial_arrived_ ? "no acknowledgement" : "nothing of the peer");
}

void Peer::Abort() {
  if (queue_pair_ == nullptr || !connected()) return;
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  (void)(device_->ibv().ibv_modify_qp)(queue_pair_.get(), &error, IBV_QP_STATE);
  Fail(kCallFailed);
}

void Peer::Close() {
  if (queue_pair_ == nullptr) return;
  if (failure_.empty()) failure_ = kClosed;
  queue_pair_.reset();
}

}  // namespace inccl::verbs
