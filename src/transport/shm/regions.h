// SPDX-License-Identifier: Apache-2.0
//
// Memory of callers that peers reach without a copy. The owner puts a region on its board (in its
// arena), where its peers find it when they next look; each maps the file, or opens the memory of a
// device, and writes the region's serial among its answers, which only then makes the owner use it.
// So no message and no waiting is needed, and whoever cannot reach a region is served through
// slots.
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
#include "transport/transport.h"

namespace inccl::shm {

// This rank's regions.
class OwnRegions {
 public:
  explicit OwnRegions(mapped::Arena* arena) : arena_(arena) {}
  uint32_t Offer(const Region& region);
  void Withdraw(uint32_t id);
  uint64_t serial(uint32_t id) const { return offers_[id - 1].serial; }

 private:
  struct Offered {
    uint64_t serial = 0;
    uint64_t used = 0;
  };

  mapped::Arena* arena_;
  std::array<Offered, mapped::kRegions> offers_;
  uint64_t uses_ = 0;
  uint64_t refused_ = 0;  // a serial that cannot be offered
};

// One peer's, and its answers to this rank's.
class PeerRegions final : public mapped::SharedRegions {
 public:
  // All outlive this.
  PeerRegions(int rank, int peer, const OwnRegions* own, mapped::Arena* arena,
              const mapped::ArenaView* view)
      : rank_(rank), peer_(peer), own_(own), arena_(arena), view_(view) {}

  // Maps what is new on the peer's board. One load where nothing is. kInternalError naming the peer
  // if it has replaced a region that slices peeked at here still refer to: an owner does that only
  // after all of them have been released. That region stays mapped.
  Status Update();
  // Transport::SetRegionOpener.
  void SetOpener(RegionOpener* opener);
  bool Reaches(uint32_t region) const override;
  bool Counts(uint32_t region) const override;
  bool IsOfHost(uint32_t region) const override;
  std::byte* At(const RegionRef& place, size_t bytes) const override;
  void Hold(uint32_t region) override { ++mapped_[region - 1].users; }
  void Drop(uint32_t region) override { --mapped_[region - 1].users; }

 private:
  struct Mapped {
    uint64_t serial = 0;  // seen last, whether it could be mapped or not
    Mapping file;
    Span opened;         // memory of a device
    uint32_t users = 0;  // references of slices that are peeked at

    Span memory() const {
      return opened.data != nullptr ? opened : Span{file.data(), file.bytes()};
    }
  };
  Status Look(uint32_t index);
  bool Reach(const mapped::RegionEntry& entry, uint64_t serial, Mapped* mapped);
  void Forget(Mapped* mapped);

  const int rank_, peer_;
  const OwnRegions* own_;
  mapped::Arena* arena_;
  const mapped::ArenaView* view_;
  RegionOpener* opener_ = nullptr;
  const mapped::RegionBoard* board_ = nullptr;  // the peer's
  uint32_t changes_ = 0;
  std::array<Mapped, mapped::kRegions> mapped_;
};

}  // namespace inccl::shm

#endif  // INCCL_TRANSPORT_SHM_REGIONS_H_
