// SPDX-License-Identifier: Apache-2.0
//
// How a queue pair is made, connected and closed.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/verbs/verbs_peer.h"

namespace inccl::verbs {
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
