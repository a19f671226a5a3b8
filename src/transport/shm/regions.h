// SPDX-License-Identifier: Apache-2.0
//
// Zero copy: memory of callers that peers access without a copy. The owner sends the region's file
// to its peers (region_inbox.h) and posts the region in the region table of its arena. Each peer
// finds it there in its next Progress, maps the file or opens the device memory, and answers with
// the entry's generation; only then does the owner send references to that peer. No rank waits, and
// a peer that cannot import a region gets its data through slots.
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

// The regions that this rank exports.
class OwnRegions {
 public:
  OwnRegions(int rank, mapped::Arena* arena) : rank_(rank), arena_(arena) {}
  // Adds one peer's end of its RegionInbox; called once per peer, before the first file is
  // exported.
  void AddPeer(UniqueFd inbox) { inboxes_.push_back(std::move(inbox)); }
  uint32_t ExportRegion(const Region& region);
  void InvalidateRegion(uint32_t id);
  // The generation in the table; 0: invalidated.
  uint64_t generation(uint32_t id) const { return exports_[id - 1].posted; }

 private:
  struct Exported {
    uint64_t generation = 0;  // Region::generation
    uint64_t posted = 0;      // generation in the table
    uint64_t used = 0;
    bool writable = false;
    std::vector<int> unsent;  // inboxes that were full
  };
  uint32_t IdOf(const Exported& offered) const {
    return static_cast<uint32_t>(&offered - exports_.data()) + 1;
  }
  // Posts the region in the entry of `offered`, replacing its region; false if that fails.
  bool Post(const Region& region, Exported* offered);
  // Sends the file to the inboxes in offered->unsent; true if at least one took it.
  bool Send(int file, Exported* offered);

  const int rank_;
  mapped::Arena* arena_;
  std::vector<UniqueFd> inboxes_;
  std::array<Exported, mapped::kRegions> exports_;
  uint64_t uses_ = 0, posts_ = 0;
  uint64_t refused_ = 0;  // Region::generation of a region that cannot be exported
};

// The regions that one peer exports, and its answers to this rank's regions.
class PeerRegions final : public mapped::SharedRegions {
 public:
  // All arguments outlive this object. `inbox` is this rank's; nullptr if peers export no files.
  PeerRegions(int rank, int peer, const OwnRegions* own, mapped::Arena* arena,
              const mapped::ArenaView* view, RegionInbox* inbox = nullptr)
      : rank_(rank), peer_(peer), own_(own), arena_(arena), view_(view), inbox_(inbox) {}

  // Imports new entries of the peer's table; one load if there are none. Returns kInternalError,
  // naming the peer, if it has replaced a region to which peeked slices still refer: an owner must
  // wait until they are released. The old region stays mapped.
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
    uint64_t generation = 0;  // last one seen, whether or not it could be imported
    Mapping file;
    bool writable = false;
    Span opened;         // device memory
    uint32_t users = 0;  // references of peeked slices

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
