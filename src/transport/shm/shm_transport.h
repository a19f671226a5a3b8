// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one host: a rank's arena is a sealed memory file that its peers map read-only, its
// wakeup_event a second one that they map writable; into its inbox they put the files of their
// regions. The descriptors travel over an authenticated unix socket, which is the business of other
// code. Works between processes and between threads.
#ifndef INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "memory/memfd.h"
#include "transport/mapped/mapped_transport.h"
#include "transport/shm/region_inbox.h"
#include "transport/shm/regions.h"

namespace inccl {

struct ShmOptions {
  // Address space of one rank's slots, the same on all ranks; memory is taken as lanes open.
  size_t arena_bytes = size_t{1} << 30;
  // Bytes of slots that are taken, and mapped in all ranks, beforehand: lanes that fit them open
  // fast.
  size_t commit_ahead = 0;
  // Peers may need a right to write before their devices read; they map for reading all the same.
  bool for_device = false;
};

class ShmTransport final : public mapped::MappedTransport {
 public:
  // kInvalidArgument: rank, nranks or options; kSystemError: no memory, descriptors or file size.
  static Result<std::unique_ptr<ShmTransport>> Create(int rank, int nranks,
                                                      const ShmOptions& options = {});

  // Arena, wakeup_event and inbox of files, to be passed to every peer in this order. They stay
  // this object's.
  std::vector<int> fds_to_share() const {
    return {arena_fd_.get(), wakeup_.fd.get(), inbox_.for_peers()};
  }
  // Checks what `peer` shared, maps arena and wakeup_event and closes them. Once per peer and
  // before lanes with it are opened. kInternalError naming the peer if they are not a rank's of
  // this shape.
  Status Attach(int peer, UniqueFd arena, UniqueFd wakeup_event, UniqueFd inbox);

  uint32_t ExportRegion(const Region& region) override { return own_regions_.ExportRegion(region); }
  void InvalidateRegion(uint32_t region) override { own_regions_.InvalidateRegion(region); }
  void SetRegionImporter(RegionImporter* opener) override {
    for (const auto& regions : peer_regions_) regions->SetOpener(opener);
  }
  Result<int> Progress(Time now) override;
  void SlotMemory(std::vector<Span>* spans) const override { AppendSlotMemory(spans); }

 private:
  ShmTransport(int rank, int nranks, std::unique_ptr<mapped::Arena> arena, UniqueFd arena_fd,
               shm::Memfd wakeup, shm::RegionInbox inbox, const ShmOptions& options);

  const ShmOptions options_;
  UniqueFd arena_fd_;
  shm::Memfd wakeup_;
  std::vector<Mapping> mappings_;  // of peers
  shm::RegionInbox inbox_;
  shm::OwnRegions own_regions_;
  std::vector<std::unique_ptr<shm::PeerRegions>> peer_regions_;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SHM_SHM_TRANSPORT_H_
