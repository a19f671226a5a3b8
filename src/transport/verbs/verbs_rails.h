// SPDX-License-Identifier: Apache-2.0
//
// The rails of a rank: the ports that it uses, each with its queues and this rank's inboxes and
// outboxes (lane 0 of its connections). A connection belongs to one rail.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_RAILS_H_
#define INCCL_TRANSPORT_VERBS_VERBS_RAILS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_lanes.h"
#include "transport/verbs/verbs_queues.h"
#include "transport/verbs/verbs_wire.h"

namespace inccl::verbs {

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
