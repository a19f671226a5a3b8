// SPDX-License-Identifier: Apache-2.0
//
// Memory of callers that peers reach without a copy. The owner sends its peers the file
// (region_inbox.h) and puts the region on its table (in its arena), where they find it when they
// next look; each maps the file, or opens the memory of a device, and writes the entry's generation
// among its answers, which only then makes the owner use it. So nobody waits, and a peer that
// cannot reach a region is served through slots.
#ifndef INCCL_TRANSPORT_SHM_REGIONS_H_
#define INCCL_TRANSPORT_SHM_REGIONS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/mapped/arena.h"
#include "transport/mapped/lanes.h"
#include "transport/shm/region_inbox.h"
#include "transport/transport.h"

namespace inccl::shm {

// This rank's regions.
class OwnRegions {
 public:
  OwnRegions(int rank, mapped::Arena* arena) : rank_(rank), arena_(arena) {}
  // The end of that peer's RegionInbox. Once per peer, before regions that are files are offered.
  void AddPeer(UniqueFd inbox) { inboxes_.push_back(std::move(inbox)); }
  uint32_t ExportRegion(const Region& region);
  void InvalidateRegion(uint32_t id);
  // As it stands on the table; 0: withdrawn.
  uint64_t generation(uint32_t id) const { return exports_[id - 1].posted; }

 private:
  struct Exported {
    uint64_t generation = 0;  // Region::generation
    uint64_t posted = 0;      // on the table
    uint64_t used = 0;
    bool writable = false;
    std::vector<int> unsent;  // inboxes that were full
  };
  uint32_t IdOf(const Exported& offered) const {
    return static_cast<uint32_t>(&offered - exports_.data()) + 1;
  }
  // In the place of what `offered` was; false: it cannot be offered.
  bool Post(const Region& region, Exported* offered);
  // To those in offered->unsent; true: to one at least.
  bool Send(int file, Exported* offered);

  const int rank_;
  mapped::Arena* arena_;
  std::vector<UniqueFd> inboxes_;
  std::array<Exported, mapped::kRegions> exports_;
  uint64_t uses_ = 0, posts_ = 0;
  uint64_t refused_ = 0;  // a generation that cannot be offered
};

// One peer's, and its answers to this rank's.
class PeerRegions final : public mapped::SharedRegions {
 public:
  // All outlive this. `inbox`: of this rank; nullptr: none, and no regions that are files.
  PeerRegions(int rank, int peer, const OwnRegions* own, mapped::Arena* arena,
              const mapped::ArenaView* view, RegionInbox* inbox = nullptr)
      : rank_(rank), peer_(peer), own_(own), arena_(arena), view_(view), inbox_(inbox) {}

  // Maps what is new on the peer's table. One load where nothing is. kInternalError naming the peer
  // if it has replaced a region that slices peeked at here still refer to: an owner does that only
  // after all of them have been released. That region stays mapped.
  Status Update();
  // Transport::SetRegionImporter.
  void SetOpener(RegionImporter* opener);
  bool ReachableFrom(uint32_t region) const override;
  bool Counts(uint32_t region) const override;
  bool IsWritable(uint32_t region) const override;
  std::byte* At(const RemoteAddress& place, size_t bytes) const override;
  void Hold(uint32_t region) override { ++mapped_[region - 1].users; }
  void Drop(uint32_t region) override { --mapped_[region - 1].users; }

 private:
  struct Mapped {
    uint64_t generation = 0;  // seen last, whether it could be mapped or not
    Mapping file;
    bool writable = false;
    Span opened;         // memory of a device
    uint32_t users = 0;  // references of slices that are peeked at

    Span memory() const {
      return opened.data != nullptr ? opened : Span{file.data(), file.bytes()};
    }
  };
  Status Look(uint32_t index);
  bool Reach(uint32_t index, uint64_t generation, Mapped* mapped);
  void Forget(Mapped* mapped);

  const int rank_, peer_;
  const OwnRegions* own_;
  mapped::Arena* arena_;
  const mapped::ArenaView* view_;
  RegionInbox* const inbox_;
  RegionImporter* opener_ = nullptr;
  const mapped::RegionTable* table_ = nullptr;  // the peer's
  uint32_t changes_ = 0;
  std::array<Mapped, mapped::kRegions> mapped_;
};

}  // namespace inccl::shm

#endif  // INCCL_TRANSPORT_SHM_REGIONS_H_
