// SPDX-License-Identifier: Apache-2.0
//
// The queue pair with one peer, and the lanes that use it. A reliable connection keeps the order of
// what it carries, so both ends count slices and frames. Every work request is signalled: its
// completion says that the peer's device has the bytes, and that this rank may change its copy.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_PEER_H_
#define INCCL_TRANSPORT_VERBS_VERBS_PEER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/verbs/verbs_lanes.h"
#include "transport/verbs/verbs_rails.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/verbs/verbs_wire.h"

namespace inccl::verbs {

class Peer {
 public:
  // All outlive the peer. `rail` is the connection's.
  Peer(int rank, int peer, const Rails* rails, size_t rail, const CallerMemory* memory);

  Status CreateQueuePair();
  uint32_t queue_pair() const { return queue_pair_->qp_num; }
  // `name` begins the errors: "rank 0: verbs: peer 1@host:pid".
  Status Connect(const RankAddress& this_rank, const RankAddress& other,
                 const VerbsOptions& options, std::string name);
  bool connected() const { return !name_.empty(); }
  // Called after Connect and before lanes are opened.
  void Protect(tcp::FrameGuard out, tcp::FrameGuard in) {
    out_guard_.emplace(std::move(out));
    in_guard_.emplace(std::move(in));
  }

  // Sends the peer one packet of the largest size, and expects one, before lanes are opened. The
  // trial is open until both have arrived or the connection has failed. EndTrial returns what is
  // wrong, or "".
  void StartTrial();
  bool trial_is_open() const {
    return failure_.empty() && !(trial_arrived_ && completed_ == posted_);
  }
  std::string EndTrial();

  Result<SendEnd*> OpenSend(const LaneSpec& spec);
  Result<RecvEnd*> OpenRecv(const LaneSpec& spec);  // grants the producer its credit

  // Whether the next slot of a lane may be filled.
  bool HasSlot(const SendEnd& end);
  // Seals and sends the frame in the next slot of a lane, with the payload of that slot or the one
  // at `from`, in memory of the caller. Numbers it.
  Status Send(SendEnd* end, const FrameHeader& frame, const std::byte* from = nullptr);
  // A slice has been released, so its producer is owed a credit.
  void Owe(RecvEnd* end);

  // A completion of this queue pair. An error is one of the peer's doing: a message that it must
  // not send.
  Status OnMessage(uint32_t immediate, uint32_t bytes);
  void OnSent(uint64_t request) { completed_ = request; }
  void OnFailure(uint64_t request, ibv_wc_status status);

  // Posts what waits for room. With `all`, because the rank waits, also the credits of less than
  // half a lane, and a probe of a quiet connection.
  Status Progress(Time now, bool all);
  int peer() const { return peer_; }
  bool unsent() const;
  // Slices that lie in memory of the caller are under way.
  bool reads_caller_memory() const { return queued_ > 0 || completed_ < last_in_place_; }
  // The peer's device has all that was posted. A connection that has failed carries nothing more.
  bool delivered() const { return !failure_.empty() || (!unsent() && completed_ == posted_); }
  // The same of slices alone.
  bool slices_delivered() const {
    return !failure_.empty() || (!unsent() && completed_ >= last_slice_);
  }
  // kRemoteError, some time after the connection failed, so that a more precise report from the
  // control connection can come first; at once where the cause lies at this end, which it names.
  Status Lost() const;
  // The device no longer touches memory for this peer, who learns of it.
  void Abort();
  // Nothing is sent or received afterwards.
  void Close();

 private:
  struct Grant {
    GrantPayload at;
    uint32_t slot_bytes = 0, depth = 0;
    SendEnd* end = nullptr;  // once this rank has opened it
  };
  struct Queued {
    SendEnd* end = nullptr;
    uint64_t slice = 0;
  };

  // Its producer may soon lack credit.
  static bool OwesMuch(const RecvEnd& end) {
    return 2 * (end.released - end.announced) >= end.spec.depth;
  }
  bool HasRoom() const { return failure_.empty() && posted_ - completed_ < depth_; }
  void PostSlice(SendEnd* end, uint64_t slice);
  void PostCredit(RecvEnd* end);
  bool Post(ibv_send_wr* request, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE_WITH_IMM);
  void PostCredits(bool all);
  // A rank that only receives learns of a broken connection by what it sends: one probe a second
  // while it waits.
  void ProbeIfQuiet(Time now, bool waiting);
  Status SendGrants();
  std::string SliceArrived(const Immediate& immediate, uint32_t bytes);
  std::string CreditArrived(const Immediate& immediate);
  std::string TakeGrant(const FrameHeader& header, const std::byte* payload);
  // Joins the grant of this number and the end that this rank has opened. Returns what is wrong.
  std::string Join(size_t number, SendEnd* end);
  void Fail(std::string why);
  // No peer and no network is to blame.
  void FailHere(Code code, const std::string& why);
  // What a device could not send that reports a fault of this end.
  void FailToSend(uint64_t request, const std::string& why);
  std::string PortTrouble() const;

  const int rank_, peer_;
  std::string name_;
  const size_t rail_;
  const Device* const device_;
  Queues* const queues_;
  const CallerMemory* const memory_;
  const uint32_t depth_;  // at most so many work requests are under way
  QueuePair queue_pair_{nullptr, nullptr};
  std::optional<tcp::FrameGuard> out_guard_, in_guard_;
  uint64_t posted_ = 0, completed_ = 0;  // work requests
  uint64_t messages_ = 0;                // that have arrived
  uint64_t last_slice_ = 0;              // the last request that carried a frame
  uint64_t last_in_place_ = 0;           // the last one with a payload in memory of the caller
  std::vector<Queued> queue_;            // a ring: frames without room yet
  size_t front_ = 0, queued_ = 0;
  std::vector<std::unique_ptr<SendEnd>> send_ends_;        // the first one carries grants
  std::vector<std::unique_ptr<RecvEnd>> recv_ends_;        // by this rank's number of the lane
  std::vector<Grant> grants_;                              // by the peer's number - 1
  std::deque<RecvEnd*> ungranted_recv_;                    // in order of their numbers
  std::unordered_map<uint64_t, size_t> number_of_;         // the peer's numbers, by lane key
  std::unordered_map<uint64_t, SendEnd*> ungranted_send_;  // by lane key
  std::vector<RecvEnd*> owing_;
  uint64_t seen_ = 0;  // completions and messages until quiet_since_
  Time quiet_since_ = 0;
  uint32_t trial_bytes_ = 0;
  bool trial_arrived_ = false;
  std::string failure_;
  Status here_;  // the failure, if its cause lies at this end
  Time failed_at_ = 0;
  bool lost_ = false;
  bool dropped_ = false;  // slices were under way when the connection failed
};

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_PEER_H_
