// SPDX-License-Identifier: Apache-2.0
//
// Zero copy: memory of callers that peers access without a copy. The owner sends the region's file
// to its peers (regions.h) and posts the region in the region table of its arena. Each peer
// finds it there in its next Progress, maps the file or opens the device memory, and answers with
// the entry's generation; only then does the owner send references to that peer. No rank waits, and
// a peer that cannot import a region gets its data through slots.
#ifndef INCCL_TRANSPORT_SHM_REGIONS_H_
#define INCCL_TRANSPORT_SHM_REGIONS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/mapped/mapped_transport.h"
#include "transport/transport.h"

namespace inccl::shm {

// Delivers the files of regions to the peers that may map them. Each rank has one socket; its peers
// receive the other end over their authenticated connections and send descriptors into it. The
// receiver uses a message only to find the file of a region, and checks the file itself.

// Identifies a region: the owner, and the region's id and generation in the owner's table.
struct RegionLabel {
  int rank = -1;
  uint32_t region = 0;
  uint64_t generation = 0;
};

enum class Sent : uint8_t { kYes, kLater, kNever };
// Sends `file` into the peers' end of a RegionInbox. kLater: the inbox is full; kNever: it fails.
Sent SendRegionFile(int inbox, const RegionLabel& label, int file);

class RegionInbox {
 public:
  static Result<RegionInbox> Create(int nranks);

  // The end that all peers get. This object keeps ownership.
  int for_peers() const { return for_peers_.get(); }
  // Returns the file that arrived with exactly this label, once; else an invalid descriptor. Drops
  // malformed messages and files of older generations.
  UniqueFd Take(const RegionLabel& label);

 private:
  explicit RegionInbox(int nranks) : nranks_(nranks) {}
  // Reads one message. Returns false if there is none.
  bool Receive();

  int nranks_;
  UniqueFd own_, for_peers_;
  struct File {
    uint64_t generation = 0;
    UniqueFd fd;
  };
  std::map<std::pair<int, uint32_t>, File> waiting_;  // the last file by rank and region
};

// Region::handle as the table has it.
using HandleWords = std::array<uint64_t, std::extent_v<decltype(mapped::RegionEntry::handle)>>;
static_assert(sizeof(HandleWords) == Region::kHandleBytes);

// The regions that this rank exports. They lie in memory of ccl_mem_alloc or ccl_mem_alloc_device;
// a region contains the whole allocation. Calls find regions in their buffers, and the application
// keeps regions (Registration::keep). A region that is found replaces another found one: the one
// that was used longest ago.
class PeerRegions;

class OwnRegions final : public Exports {
 public:
  static constexpr uint32_t kMostFound = 32;
  static constexpr uint32_t kMostKept = mapped::kRegions - kMostFound;

  // `inbox`: of this rank, which outlives this object as the arena does. Without one it exports no
  // files, that is device memory only.
  OwnRegions(int rank, mapped::Arena* arena, RegionInbox* inbox)
      : rank_(rank), arena_(arena), inbox_(inbox) {}
  ~OwnRegions() override;
  // Called once per peer, before the first region is exported, with the peer's end of its
  // RegionInbox. Returns what the peer exports.
  PeerRegions* AddPeer(int peer, const mapped::ArenaView* view, UniqueFd inbox = {});
  // PeerRegions::Update of every peer.
  Status Update();
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override;
  void Deregister(const MemoryHandle& memory) override;
  Status CanRegister(const void* data, size_t bytes, bool on_device) const override;
  Status RevokeAccess(const MemoryHandle& memory) override;
  void SetImporter(RegionImporter* importer) override;
  // Exports a region and returns its id.
  Result<uint32_t> Export(const Region& region, bool keep);
  // The generation in the table; 0: invalidated.
  uint64_t generation(uint32_t id) const {
    return id <= exports_.size() ? exports_[id - 1].posted : 0;
  }

 private:
  struct Exported {
    uint64_t generation = 0;  // Region::generation; 0: a free place
    uint64_t posted = 0;      // generation in the table
    uint64_t used = 0;
    uint32_t keepers = 0;  // registrations with `keep`
    bool writable = false;
    bool on_device = false;
    const std::byte* data = nullptr;
    std::vector<int> unsent;  // inboxes that were full
  };
  uint32_t IdOf(const Exported& offered) const {
    return static_cast<uint32_t>(&offered - exports_.data()) + 1;
  }
  // An index in exports_ for a new region: a free one, or that of a region to replace.
  uint32_t FindPlace(bool keep);
  // True if another region can be kept. If there are too many, ends the registrations of memory
  // that has been freed.
  bool HasRoomToKeep();
  void Keep(Exported* exported);
  // Posts the region in the entry of `offered`, replacing its region. If it fails or throws, the
  // entry is unchanged.
  Status Post(const Region& region, Exported* offered);
  void Invalidate(uint64_t generation);
  // Sends the file to the inboxes in offered->unsent; true if at least one took it.
  bool Send(int file, Exported* offered);

  const int rank_;
  mapped::Arena* arena_;
  RegionInbox* const inbox_;
  std::vector<UniqueFd> inboxes_;  // of peers
  std::vector<std::unique_ptr<PeerRegions>> peers_;
  std::vector<Exported> exports_;
  std::unordered_map<uint64_t, uint32_t> by_generation_;  // Region::generation: index in exports_
  uint32_t found_ = 0, kept_ = 0;                         // regions in exports_ of either kind
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
  // Exports::SetImporter.
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
  // Finds blocks that the peer has appended to its table.
  Status FindBlocks();
  Status Look(uint32_t index);
  bool Reach(uint32_t index, uint64_t generation, Mapped* mapped);
  void Forget(Mapped* mapped);

  const int rank_, peer_;
  const OwnRegions* own_;
  mapped::Arena* arena_;
  const mapped::ArenaView* view_;
  RegionInbox* const inbox_;
  RegionImporter* opener_ = nullptr;
  const mapped::RegionEntry& Entry(uint32_t index) const {
    return blocks_[index / mapped::kBlockRegions]->regions[index % mapped::kBlockRegions];
  }
  // This rank's answer to a region of the peer; nullptr if there is no memory for it.
  std::atomic<uint64_t>* Answer(uint32_t index);

  std::vector<const mapped::RegionBlock*> blocks_;  // of the peer's table
  uint32_t changes_ = 0;
  std::vector<Mapped> mapped_;  // by index; one for each entry of blocks_
};

}  // namespace inccl::shm

#endif  // INCCL_TRANSPORT_SHM_REGIONS_H_
