// SPDX-License-Identifier: Apache-2.0
//
// The rails of a rank: the ports that it uses, each with its queues and this rank's inboxes and
// outboxes (lane 0 of its connections). A connection belongs to one rail.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_RAILS_H_
#define INCCL_TRANSPORT_VERBS_VERBS_RAILS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_lanes.h"
#include "transport/verbs/verbs_wire.h"

namespace inccl::verbs {

// The completion queue and the shared receive queue of one rank, which all of its queue pairs use.
// A receive work request has no memory: it only lets a write with immediate data complete here.
class Queues {
 public:
  // `device` outlives the queues. `sends`: of all queue pairs together.
  static Result<std::unique_ptr<Queues>> Create(const Device* device, uint32_t sends,
                                                uint32_t receives);
  ~Queues();
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  ibv_cq* completions() const { return cq_.get(); }
  ibv_srq* receives() const { return srq_.get(); }

  // Posts receives for so many more messages that peers may send before this rank polls. They stay
  // posted: Consumed replaces them. A peer therefore never finds the queue empty.
  Status Reserve(uint32_t messages);
  // A message has arrived and taken a receive.
  Status Consumed();
  // The completions that are there now, at most as many as an array holds.
  Result<std::span<const ibv_wc>> Poll();

  // The rank needs the completion of a send: the next sleep ends with any completion, not only with
  // a message of a peer.
  void AwaitSends() { await_sends_ = true; }

  // As the methods of WakeupSource.
  int fd() const { return channel_->fd; }
  void Arm();
  bool Ready();
  void Disarm(bool readable);

 private:
  static constexpr int kPollAtOnce = 32;
  static constexpr uint32_t kRepostAtOnce = 16;

  Queues(const Device* device, Channel channel, CompletionQueue cq, SharedReceives srq,
         uint32_t room);
  Status Post(uint32_t count);

  const Device* const device_;
  Channel channel_;
  CompletionQueue cq_;
  SharedReceives srq_;
  uint32_t room_;          // receives that the queue still has place for
  uint32_t consumed_ = 0;  // receives to be posted again
  std::array<ibv_recv_wr, kRepostAtOnce> requests_{};  // a chain
  std::array<ibv_wc, kPollAtOnce> polled_{};
  bool more_ = false;  // the last Poll filled the array
  bool await_sends_ = false;
  bool armed_for_sends_ = false;
  bool arm_failed_ = false;
  unsigned int events_ = 0;  // not acknowledged yet
};

class Rails {
 public:
  // Opens a queue pair's worth of everything for `nranks` ranks.
  static Result<std::unique_ptr<Rails>> Open(int nranks, const VerbsPortOptions& ports);

  size_t size() const { return rails_.size(); }
  const Device& device(size_t rail) const { return *rails_[rail].device; }
  Queues* queues(size_t rail) const { return rails_[rail].queues.get(); }
  std::vector<const Device*> devices() const;
  // Work requests under way on one queue pair.
  uint32_t depth(size_t rail) const { return rails_[rail].depth; }
  Slots InboxOf(size_t rail, int peer) const { return Part(rails_[rail].inboxes, peer); }
  Slots OutboxOf(size_t rail, int peer) const { return Part(rails_[rail].outboxes, peer); }
  RailAddress AddressOf(size_t rail) const;

  // As the methods of WakeupSource, for all queues.
  int fd() const { return epoll_.valid() ? epoll_.get() : rails_.front().queues->fd(); }
  void Arm();
  bool Ready();
  void Disarm(bool readable);

 private:
  struct Rail {
    std::unique_ptr<Device> device;  // outlives what refers to it
    std::unique_ptr<Queues> queues;
    RegisteredMemory inboxes, outboxes;  // kInboxBytes for each rank
    uint32_t depth = 0;
  };
  static Slots Part(const RegisteredMemory& memory, int peer);
  static Result<Rail> OpenOne(int nranks, std::unique_ptr<Device> device);

  std::vector<Rail> rails_;
  UniqueFd epoll_;  // of all completion channels, if there are several
};

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_RAILS_H_
