// SPDX-License-Identifier: Apache-2.0
//
// The transport between processes (or threads) of one host. A rank's arena is a sealed memory file
// that its peers map read-only; its wakeup event is a second file that they map writable, and an
// eventfd for ranks that also sleep on other descriptors; its inbox receives the files of their
// regions. The caller passes the descriptors to the peers over an authenticated unix socket.
#ifndef INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "memory/memfd.h"
#include "transport/mapped/mapped_transport.h"
#include "transport/shm/regions.h"
#include "transport/transport_factory.h"

namespace inccl {

struct ShmOptions {
  // Address space of one rank's slots, equal on all ranks; memory is committed as slots are made.
  size_t arena_bytes = size_t{1} << 30;
  // Bytes of slots to commit, and to map in all ranks, at creation. The first slots that calls need
  // come from there.
  size_t commit_ahead = 0;
  // Slots that a lane makes when it opens. It makes another one when a slice finds all of them in
  // use, which costs the pages of a slot then.
  uint32_t slots_at_opening = 0;
  // Lanes make all slots when they open, because a device registers slots before calls use
  // them. Does not seal the arena against writable mappings, because some devices register only
  // writable memory. Peers still map it read-only.
  bool for_device = false;
};

class ShmTransport final : public mapped::MappedTransport {
 public:
  // Returns kInvalidArgument for a wrong rank, nranks or option, and kSystemError if memory,
  // descriptors or file size are exhausted.
  static Result<std::unique_ptr<ShmTransport>> Create(int rank, int nranks,
                                                      const ShmOptions& options = {});

  // caps() of what Create makes with these options.
  static Caps CapsOf(const ShmOptions& options);

  // Arena, wakeup event, inbox and eventfd, which the caller passes to every peer in this order.
  // This object keeps ownership.
  std::vector<int> fds_to_share() const {
    return {arena_fd_.get(), wakeup_.fd.get(), inbox_.for_peers(), event_fd_.get()};
  }
  // Checks and maps what `peer` has shared; called once per peer, before lanes with it are opened.
  // Returns kInternalError, naming the peer, if the files do not belong to such a rank.
  Status Attach(int peer, UniqueFd arena, UniqueFd wakeup_event, UniqueFd inbox, UniqueFd event_fd);
  // Called on all ranks or on none, after Attach: all ranks sleep on wakeup_event(), so the
  // eventfds are closed.
  void CloseEventFds();

  Exports* exports() override { return &own_regions_; }
  // Exports a region that belongs to no allocator, and returns its id. For tests.
  Result<uint32_t> ExportRegion(const Region& region, bool keep = false) {
    return own_regions_.Export(region, keep);
  }
  Result<int> Progress(Time now) override;
  WakeupSource* wakeup_source() override { return &wakeup_source_; }
  void SlotMemory(std::vector<Span>* spans) const override { AppendSlotMemory(spans); }

 private:
  ShmTransport(int rank, int nranks, std::unique_ptr<mapped::Arena> arena, UniqueFd arena_fd,
               shm::Memfd wakeup, shm::RegionInbox inbox, UniqueFd event_fd,
               const ShmOptions& options);

  const ShmOptions options_;
  UniqueFd arena_fd_;
  shm::Memfd wakeup_;
  UniqueFd event_fd_;
  mapped::EventFdWakeupSource wakeup_source_;
  std::vector<Mapping> mappings_;         // of peers
  std::vector<UniqueFd> peer_event_fds_;  // their lanes use them
  shm::RegionInbox inbox_;
  shm::OwnRegions own_regions_;
};

// Errors are those of ShmTransport::Create.
Result<std::unique_ptr<TransportFactory>> MakeShmFactory(int rank, int nranks,
                                                         const ShmOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_
