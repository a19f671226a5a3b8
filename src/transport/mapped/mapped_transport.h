// SPDX-License-Identifier: Apache-2.0
//
// A transport over arenas, the common base of loopback and shm. The ends of a lane find each other
// without messages: each side announces its end in the directory of its own arena and looks up the
// other end when it needs it.
//
// One thread at a time, except for wakeup_event()->Signal(). Lanes are destroyed before their
// transport.
#ifndef INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_
#define INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_

#include <memory>
#include <unordered_set>
#include <vector>

#include "transport/mapped/arena.h"
#include "transport/mapped/lanes.h"
#include "transport/mapped/wakeup.h"
#include "transport/transport.h"

namespace inccl::mapped {

class MappedTransport : public Transport {
 public:
  // `name` is a string constant. `wakeup` outlives the transport. A lane
  // makes `slots_at_opening` of its slots when it opens, and the others when slices need them.
  MappedTransport(const char* name, int rank, int nranks, std::unique_ptr<Arena> arena,
                  WakeupArea* wakeup, FutexScope scope, uint32_t max_slot_bytes,
                  uint32_t slots_at_opening);

  Caps caps() const override {
    return {.name = name_,
            .timed = false,
            .slot_memory = arena_->data_bytes(),
            .shared_slots = true,
            .deep_lanes = true};  // between hosts it has none
  }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.multicast = true, .read_in_place = true, .max_slot_bytes = max_slot_bytes_};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time) override { return 0; }
  WakeupEvent* wakeup_event() override { return &wakeup_event_; }
  void Quiesce(Time) override {}  // peers access only the arena
  uint64_t memory_bytes() const override { return arena_->memory_bytes(); }
  TransportCounters counters() const override { return counters_; }

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }

 protected:
  // Transport::SlotMemory for a transport that has its own mapping of every arena.
  void AppendSlotMemory(std::vector<Span>* spans) const;
  bool HasPeer(int peer) const { return views_[static_cast<size_t>(peer)] != nullptr; }
  // Called once per peer. `wakeup` and the memory that `view` reads outlive the transport.
  void SetPeer(int peer, std::unique_ptr<ArenaView> view, WakeupArea* wakeup,
               SharedRegions* regions = nullptr, int event_fd = -1);
  // Called before lanes are opened: no rank sleeps on an eventfd.
  void ForgetEventFds() { event_fds_.assign(event_fds_.size(), -1); }
  Arena* arena() const { return arena_.get(); }

 private:
  Result<Peer> FindPeer(const LaneSpec& spec, int peer) const;

  const char* name_;
  int rank_;
  int nranks_;
  uint32_t max_slot_bytes_;
  uint32_t slots_at_opening_;
  std::unique_ptr<Arena> arena_;
  FutexScope scope_;
  FutexWakeupEvent wakeup_event_;
  TransportCounters counters_;
  std::vector<std::unique_ptr<ArenaView>> views_;  // by rank; own and unknown ones are nullptr
  std::vector<WakeupArea*> wakeups_;
  std::vector<int> event_fds_;
  std::vector<SharedRegions*> regions_;
  std::unordered_set<uint64_t> opened_send_;  // keys
  std::unordered_set<uint64_t> opened_recv_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_
