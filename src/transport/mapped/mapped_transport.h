// SPDX-License-Identifier: Apache-2.0
//
// A transport over arenas, the common base of loopback and shm. The ends of a lane find each other
// without messages: each side announces its end in the directory of its own arena and looks up the
// other end when it needs it. From below: the arena, the lanes over it, the transport.
//
// One thread at a time, except for wakeup_event()->Signal(). Lanes are destroyed before their
// transport.
#ifndef INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_
#define INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "transport/emulated/emulated.h"
#include "transport/mapped/wakeup.h"
#include "transport/transport.h"

namespace inccl::mapped {

// An arena, memory that one rank writes and its peers only read: its layout, and its two ends.
// Offsets count from the start of the arena; numbers are in host order.
//
//   0            ArenaHeader
//   4 KiB        directory: kDirectoryEntries entries, appended in order, never changed
//   kDataOffset  headers and slots of lanes this rank produces, credits of lanes it consumes,
//                region table
//
// A lane has `depth` headers in a row. Slice number t (from 0) uses header t % depth; it has
// arrived when the header's seq is t + 1 (modulo 2^32). The header says which slot holds the
// payload: a lane has up to `depth` slots, each anywhere in the arena.

inline constexpr uint64_t kArenaMagic = 0x414e45524143434eu;
inline constexpr uint32_t kArenaVersion = 6;
inline constexpr size_t kPage = 4096;
inline constexpr uint32_t kDirectoryEntries = 16384;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics are shared between processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "atomics are shared between processes");

struct alignas(64) ArenaHeader {
  std::atomic<uint64_t> magic;  // stored last (release), after all other fields
  uint32_t version;
  int32_t rank;
  int32_t nranks;
  uint32_t reserved;
  uint64_t bytes;  // size of the arena
  // Data below this offset (and the used part of the directory) has memory behind it. The value
  // only grows, and is stored before the entry that needs it.
  std::atomic<uint64_t> committed;
  // Directory entries in use. Sequentially consistent, like the slots' seq: see wakeup.h.
  std::atomic<uint32_t> entries;
  // Offset of the first RegionBlock, a multiple of kPage; 0: none yet.
  std::atomic<uint64_t> table;
};
static_assert(sizeof(ArenaHeader) == 64);

// The region table: the regions that a rank exports, and its answers to its peers' regions. A
// region's id is its index in the table + 1. The owner sends references to a region to a peer only
// while the peer's answer equals the region's generation. The table is a chain of blocks; a rank
// appends one when it needs it for a region of its own or for an answer.
inline constexpr uint32_t kBlockRegions = 32;
inline constexpr uint32_t kRegionBlocks = 33;
inline constexpr uint32_t kRegions = kBlockRegions * kRegionBlocks;  // at most
enum class RegionKind : uint32_t { kReadable = 1, kWritable = 2, kDevice = 3 };
struct RegionEntry {
  // Identifies this export; rises with every export. The owner stores 0 first, then the fields
  // below, then the new value.
  std::atomic<uint64_t> generation;
  std::atomic<uint64_t> bytes;
  std::atomic<uint32_t> kind;  // RegionKind: a file to read, a file to write, or device memory
  uint32_t reserved_half;
  std::atomic<uint64_t> device, inode;  // of the file that the owner sends to its peers
  uint64_t reserved[3];
  std::atomic<uint64_t> handle[12];  // Region::handle
  uint64_t reserved_too[4];
};
static_assert(sizeof(RegionEntry) == 192);
struct RegionAnswers {
  std::atomic<uint64_t> mapped[kBlockRegions];  // generation that this rank has mapped; 0: none
};
struct alignas(64) RegionBlock {
  // In the first block: number of changes of `regions` and `next` in all blocks.
  std::atomic<uint32_t> changes;
  uint32_t reserved;
  std::atomic<uint64_t> next;  // offset of the next block, a multiple of kPage; 0: none yet
  alignas(64) RegionEntry regions[kBlockRegions];
  RegionAnswers answers[1];  // one per rank
};
constexpr size_t RegionBlockBytes(int nranks) {
  return sizeof(RegionBlock) + static_cast<size_t>(nranks - 1) * sizeof(RegionAnswers);
}

enum class EntryKind : uint32_t { kHeaders = 1, kCredit = 2 };

struct DirectoryEntry {
  uint64_t key;  // LaneSpec::Key()
  uint32_t kind;
  int32_t consumer;  // kCredit: the consumer's rank; kHeaders: -1
  uint64_t offset;
  uint32_t slot_bytes;
  uint32_t depth;
  uint64_t reserved[4];
};
static_assert(sizeof(DirectoryEntry) == 64);

// seq orders the other fields. They are relaxed atomics only so that a defective peer that rewrites
// them does not cause undefined behaviour here.
struct alignas(64) SlotHeader {
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> bytes;
  std::atomic<uint32_t> slice;
  uint32_t reserved;
  std::atomic<uint64_t> signature;
  std::atomic<int64_t> time;  // of StampedSendLane::PublishStamped
  // Where the payload is: offset in a region or, in region 0, in the arena.
  std::atomic<uint32_t> source_region, target_region;
  std::atomic<uint64_t> source_offset, target_offset;
  std::atomic<uint64_t> delivered;
};
static_assert(sizeof(SlotHeader) == 64);

// Followed by one stamp per slot for link emulation: when the release of the slot's last slice left
// the consumer. The consumer writes a stamp before `released`, the producer reads it after
// `released`, and the consumer does not write it again before the slot is published again.
struct CreditBlock {
  std::atomic<uint64_t> released;  // slices released by this consumer
  std::atomic<int64_t> stamps[1];  // depth of them
};

inline constexpr size_t kDirectoryOffset = kPage;
inline constexpr size_t kDataOffset =
    kDirectoryOffset + size_t{kDirectoryEntries} * sizeof(DirectoryEntry);

constexpr size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// What a slot takes: whole cache lines, or whole pages if large.
constexpr size_t SlotStride(uint32_t slot_bytes) {
  const size_t lines = RoundUp(slot_bytes, 64);
  return RoundUp(lines, lines >= kPage ? kPage : 64);
}
constexpr size_t SlotsBytes(uint32_t slot_bytes, uint32_t depth) {
  return SlotStride(slot_bytes) * depth;
}
// Slots of whole pages begin at pages.
constexpr size_t SlotAlignment(size_t stride) { return stride % kPage == 0 ? kPage : 64; }
constexpr size_t HeadersBytes(uint32_t depth) { return sizeof(SlotHeader) * depth; }
// All that a producer needs for a lane: its headers, and its slots behind them.
constexpr size_t LaneBytes(uint32_t slot_bytes, uint32_t depth) {
  return RoundUp(HeadersBytes(depth), SlotAlignment(SlotStride(slot_bytes))) +
         SlotsBytes(slot_bytes, depth);
}
constexpr size_t CreditBytes(uint32_t depth) { return RoundUp(8 + size_t{8} * depth, 64); }

// The two ends of an arena: the owner allocates memory and announces it in a directory;
// peers look it up.

// The memory of an arena: fully reserved address space that gets pages as the arena grows.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // Backs [offset, offset + bytes), both multiples of kPage, with zeroed memory. A kSystemError
  // names the needed size and the limit.
  virtual Status Commit(size_t offset, size_t bytes) = 0;
};

// The owner's end; one thread at a time. It never frees memory: lanes live as long as their
// transport.
class Arena {
 public:
  // Writes the header. `memory` has at least kDataOffset + kPage bytes.
  static Result<std::unique_ptr<Arena>> Create(std::unique_ptr<ArenaMemory> memory, int rank,
                                               int nranks);

  // Commits `bytes` of data and one page of the directory ahead of use. If memory is missing,
  // Allocate and Announce try again later and report the error.
  void CommitAhead(size_t bytes);
  // Returns the offset of zeroed memory. `alignment` is a power of two up to kPage.
  Result<uint64_t> Allocate(size_t bytes, size_t alignment);
  // A block of the region table, below kRegionBlocks. Allocates those that are missing up to it;
  // fails if there is no memory.
  Result<RegionBlock*> Regions(uint32_t block);
  // Makes the entry visible to peers.
  Status Announce(const DirectoryEntry& entry);

  std::byte* At(uint64_t offset) const { return memory_->data() + offset; }
  // Total size of the data part.
  uint64_t data_bytes() const { return memory_->bytes() - kDataOffset; }
  // End offset of the committed data.
  size_t committed() const { return committed_end_; }
  uint64_t memory_bytes() const { return committed_end_ - kDataOffset + directory_end_; }
  // The largest slot that fits into an empty arena of `bytes`.
  static uint32_t MaxSlotBytes(size_t bytes);

 private:
  Arena(std::unique_ptr<ArenaMemory> memory, int rank, int nranks)
      : memory_(std::move(memory)), rank_(rank), nranks_(nranks) {}
  ArenaHeader* header() const { return reinterpret_cast<ArenaHeader*>(memory_->data()); }

  std::unique_ptr<ArenaMemory> memory_;
  int rank_, nranks_;
  std::vector<RegionBlock*> region_blocks_;
  // Bump allocation: first inside the memory committed ahead, then behind it.
  size_t ahead_used_ = kDataOffset, ahead_end_ = kDataOffset;
  size_t used_end_ = kDataOffset;
  size_t committed_end_ = kDataOffset;  // of the data
  size_t directory_end_ = 0;            // of header and directory
};

// A peer's end. It only reads, and checks every number before use.
class ArenaView {
 public:
  // Checks the header; a kInternalError names the peer and the field.
  static Result<std::unique_ptr<ArenaView>> Create(const std::byte* data, size_t bytes, int peer,
                                                   int nranks);

  const std::byte* data() const { return data_; }
  // End offset of the committed data, at least kDataOffset.
  size_t committed() const {
    const uint64_t end = header()->committed.load(std::memory_order_acquire);
    return std::clamp<uint64_t>(end, kDataOffset, bytes_);
  }
  // Whether a slot may begin at this offset and have so many bytes.
  bool HasSlot(uint64_t offset, uint32_t bytes) const {
    const size_t end = committed();  // one load: the peer may change it
    return offset % 64 == 0 && offset >= kDataOffset && offset <= end && bytes <= end - offset;
  }
  // Number of announced entries, one load. While it is unchanged, another Find finds nothing new.
  uint32_t entries() const { return header()->entries.load(std::memory_order_seq_cst); }
  // The block of the peer's region table after this one, or the first block for nullptr; nullptr if
  // there is none yet. Fails if the block does not fit the arena.
  Result<const RegionBlock*> RegionsAfter(const RegionBlock* block) const;
  // The headers of a lane or, with consumer >= 0, its credits; nullptr until the peer has announced
  // them. Fails if the entry does not fit the arena or the given shape.
  Result<const std::byte*> Find(uint64_t key, int consumer, uint32_t slot_bytes, uint32_t depth);

 private:
  ArenaView(const std::byte* data, size_t bytes, int peer, int nranks)
      : data_(data), bytes_(bytes), peer_(peer), nranks_(nranks) {}
  const ArenaHeader* header() const { return reinterpret_cast<const ArenaHeader*>(data_); }
  Status Scan();
  Status Check(const DirectoryEntry& entry) const;

  const std::byte* data_;
  size_t bytes_;
  int peer_, nranks_;
  uint32_t scanned_ = 0;
  Status error_;  // of Scan; sticky
  // By a hash of key and consumer; Find compares the whole entry.
  std::unordered_multimap<uint64_t, DirectoryEntry> entries_;
};

// The lane protocol over memory that the producer writes and the consumers read (SlotHeader,
// CreditBlock).
//
// Memory order: the producer writes payload and header, then stores seq; the consumer loads seq,
// then reads. The consumer reads, then stores its number of releases; the producer loads it, then
// writes the header and the slot again. These stores and loads are sequentially consistent: release
// and acquire order the data, and the total order makes the wakeup event safe (wakeup.h).

// The regions that this rank and one peer have imported from each other.
class SharedRegions {
 public:
  virtual ~SharedRegions() = default;
  // True if the peer has imported this rank's region.
  virtual bool ReachableFrom(uint32_t region) const = 0;
  // False if the peer has invalidated its region.
  virtual bool Counts(uint32_t region) const = 0;
  // True if this rank has mapped the peer's region and may write to it.
  virtual bool IsWritable(uint32_t region) const = 0;
  // Address within the peer's region; nullptr if the region is not mapped here or is too small.
  virtual std::byte* At(const RemoteAddress& place, size_t bytes) const = 0;
  // From Hold to Drop a slice refers to the peer's region, and the region stays mapped.
  virtual void Hold(uint32_t region) = 0;
  virtual void Drop(uint32_t region) = 0;
};

// What a lane needs to know about a peer. All pointers outlive the lane.
struct Peer {
  int rank = -1;
  int event_fd = -1;  // -1: the peer never sleeps on one
  ArenaView* view = nullptr;
  WakeupArea* wakeup = nullptr;
  SharedRegions* regions = nullptr;  // nullptr: none
};

class MappedSendLane final : public emulated::StampedSendLane {
 public:
  // `headers` is zeroed memory of the arena, which is this rank's. peers[i] is spec.consumers[i].
  MappedSendLane(LaneSpec spec, SlotHeader* headers, Arena* arena, const std::vector<Peer>& peers,
                 FutexScope scope, TransportCounters* counters);
  // Makes this many slots now, one after the other. Further ones are made when slices need them.
  Status MakeSlots(uint32_t slots);

  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  bool ReachableFrom(uint32_t region) const override;
  Result<bool> Drained() override;
  void AppendHolders(bool everything, std::vector<int>* ranks) const override;
  Status PublishStamped(const SliceHeader& header, Time departure) override;
  Time CreditDeparture() const override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  struct Consumer {
    Peer peer;
    const CreditBlock* credit = nullptr;  // nullptr: the peer has not opened its end yet
    uint32_t looked = UINT32_MAX;         // entries() at the last search for it
    uint64_t released = 0;                // the last value seen
  };
  // Sets *slot to the slot of the next slice, which consumers do not read any more; false if there
  // is none.
  Result<bool> TakeSlot(uint64_t* slot);
  // Makes the slots free that every consumer has released.
  Status CollectReleased();
  Status Refresh(Consumer* consumer);

  LaneSpec spec_;
  uint64_t key_;
  SlotHeader* headers_;
  Arena* arena_;
  std::vector<Consumer> consumers_;
  FutexScope scope_;
  TransportCounters* counters_;
  uint64_t ticket_ = 0;    // number of the next slice
  uint32_t index_ = 0;     // ticket_ % depth
  uint64_t released_ = 0;  // slices with lower numbers have been released by all consumers
  uint32_t made_ = 0;      // slots
  uint32_t most_;          // slots: the depth, or those for which there was memory
  // Offsets of slots in the arena. The slot that was released last is still in the caches, so it is
  // taken first.
  std::vector<uint64_t> free_;
  std::vector<uint64_t> used_;  // by ticket % depth, of the slices that are not released
  uint64_t slot_ = 0;           // acquired; 0: none
};

class MappedRecvLane final : public emulated::StampedRecvLane {
 public:
  // `credit` is zeroed memory of this rank's arena.
  MappedRecvLane(LaneSpec spec, CreditBlock* credit, const Peer& producer, FutexScope scope,
                 TransportCounters* counters);
  ~MappedRecvLane() override { DropRegions(); }

  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  Status ReleaseStamped(Time departure) override;
  Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  // True once the producer's headers are known.
  Result<bool> Wire();
  // Sets payload and target of the next slice from its header.
  Status Locate(uint64_t slot, Incoming* incoming) const;
  // Count the peeked slice as a user of the producer's regions, from the peek to its release.
  void HoldRegions();
  void DropRegions();
  // Copies header `index`, of slice `ticket`; false if the slice has not arrived. *slot: the offset
  // of its payload in the arena, if that is not in a region.
  Result<bool> ReadHeader(uint64_t ticket, uint32_t index, SliceHeader* header,
                          uint64_t* slot) const;

  LaneSpec spec_;
  uint64_t key_;
  CreditBlock* credit_;
  Peer producer_;
  FutexScope scope_;
  TransportCounters* counters_;
  const SlotHeader* headers_ = nullptr;
  uint32_t looked_ = UINT32_MAX;  // entries() of the producer at the last search for its headers
  uint64_t ticket_ = 0;           // number of the next slice
  uint32_t index_ = 0;            // ticket_ % depth
  bool peeked_ = false;
  Incoming incoming_;
};

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
