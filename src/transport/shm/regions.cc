// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "memory/host_allocator.h"
#include "memory/memfd.h"
#include "transport/mapped/mapped_transport.h"

namespace inccl::shm {
namespace {

constexpr uint32_t kMagic = 0x31667269;  // "irf1"
constexpr int kMostAtOnce = 4096;        // messages per Take, so a flooding peer cannot hold it

// One message; numbers are in host order.
struct Message {
  uint32_t magic;
  int32_t rank;
  uint32_t region;
  uint32_t reserved;
  uint64_t generation;
};
static_assert(sizeof(Message) == 24);

struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Sent SendRegionFile(int inbox, const RegionLabel& label, int file) {
  Message message = {kMagic, label.rank, label.region, 0, label.generation};
  iovec part = {.iov_base = &message, .iov_len = sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  cmsghdr* const c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(c), &file, sizeof file);
  while (sendmsg(inbox, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ||
                      errno == ENOMEM || errno == ETOOMANYREFS;
    return full ? Sent::kLater : Sent::kNever;
  }
  return Sent::kYes;
}

Result<RegionInbox> RegionInbox::Create(int nranks) {
  int ends[2] = {-1, -1};
  RegionInbox inbox(nranks);
  inbox.own_ = OpenOwnFd([&] {
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0
               ? ends[0]
               : -1;
  });
  if (!inbox.own_.valid()) return SystemErrorErrno("socketpair for descriptors of regions", errno);
  inbox.for_peers_.Reset(ends[1]);
  return inbox;
}

bool RegionInbox::Receive() {
  Message message{};
  iovec part = {.iov_base = &message, .iov_len = sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(own_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EINTR;
  UniqueFd file;
  int files = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++files) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      file.Reset(fd);  // closes the previous one
    }
  }
  const bool whole = got == sizeof message && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || files != 1 || message.magic != kMagic || message.rank < 0 ||
      message.rank >= nranks_ || message.region < 1 || message.region > mapped::kRegions) {
    return true;
  }
  waiting_[{message.rank, message.region}] = {message.generation, std::move(file)};
  return true;
}

UniqueFd RegionInbox::Take(const RegionLabel& label) {
  for (int i = 0; i < kMostAtOnce && Receive(); ++i) {
  }
  const auto found = waiting_.find({label.rank, label.region});
  if (found == waiting_.end() || found->second.generation > label.generation) return UniqueFd();
  UniqueFd file;
  if (found->second.generation == label.generation) file = std::move(found->second.fd);
  waiting_.erase(found);
  return file;
}

using mapped::kBlockRegions;
using mapped::RegionBlock;
using mapped::RegionEntry;
using mapped::RegionKind;

namespace {

constexpr uintptr_t kPage = 4096;

// The whole pages of a buffer in host memory: the bytes before the first one, and their size.
struct WholePages {
  size_t head = 0, bytes = 0;
};
WholePages PagesOf(const void* data, size_t bytes) {
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(data) % kPage;
  const size_t head = beyond == 0 ? 0 : kPage - beyond;
  return {head, bytes < head ? 0 : (bytes - head) / kPage * kPage};
}

const Status& NoWholePage() {
  thread_local const Status status =
      InvalidArgument("a buffer without a whole page: peers access whole pages only");
  return status;
}

Status Full() {
  return SystemError(
      fmt::format("{} regions are registered, the most that a rank exports; ccl_comm_deregister "
                  "makes room",
                  OwnRegions::kMostKept));
}

// Between threads host memory is as fast through slots, which stay in the caches.
const Status& NotOfHost() {
  thread_local const Status status =
      InvalidArgument("memory of the host, which goes through slots between threads");
  return status;
}

const Status& Refused() {
  thread_local const Status status = SystemError("the export of this memory has failed before");
  return status;
}

}  // namespace

OwnRegions::~OwnRegions() = default;

PeerRegions* OwnRegions::AddPeer(int peer, const mapped::ArenaView* view, UniqueFd inbox) {
  peers_.push_back(std::make_unique<PeerRegions>(rank_, peer, this, arena_, view, inbox_));
  if (inbox_ != nullptr) inboxes_.push_back(std::move(inbox));
  return peers_.back().get();
}

Status OwnRegions::Update() {
  for (const std::unique_ptr<PeerRegions>& peer : peers_) {
    if (Status status = peer->Update(); !status.ok()) return status;
  }
  return Status::Ok();
}

void OwnRegions::SetImporter(RegionImporter* importer) {
  for (const std::unique_ptr<PeerRegions>& peer : peers_) peer->SetOpener(importer);
}

Status OwnRegions::CanRegister(const void* data, size_t bytes, bool on_device) const {
  if (!on_device && inbox_ == nullptr) return NotOfHost();
  if (!FindRegion(data, bytes, on_device).ok()) return WhyNoRegion(data, bytes, on_device);
  return on_device || PagesOf(data, bytes).bytes > 0 ? Status::Ok() : NoWholePage();
}

Result<MemoryHandle> OwnRegions::Register(const void* data, size_t bytes, const Registration& how) {
  if (!how.on_device && inbox_ == nullptr) return NotOfHost();
  Result<Region> region = FindRegion(data, bytes, how.on_device);
  if (!region.ok()) return region.status();
  WholePages pages{.head = 0, .bytes = bytes};
  if (!how.on_device) {
    pages = PagesOf(data, bytes);
    if (pages.bytes == 0) return NoWholePage();
    region->writable = how.access == Access::kReadWrite;
  }
  const Result<uint32_t> id = Export(*region, how.keep);
  if (!id.ok()) return id.status();
  const std::byte* const begin = static_cast<const std::byte*>(data) + pages.head;
  return MemoryHandle{.region = *id,
                      .on_device = how.on_device,
                      .writable = region->writable,
                      .offset = static_cast<uint64_t>(begin - region->data),
                      .begin = begin,
                      .end = begin + pages.bytes,
                      .memory = region->generation};
}

Result<uint32_t> OwnRegions::Export(const Region& region, bool keep) {
  ++uses_;
  if (const auto known = by_generation_.find(region.generation); known != by_generation_.end()) {
    Exported& exported = exports_[known->second];
    exported.used = uses_;
    if (region.writable && !exported.writable) {
      if (Status status = Post(region, &exported); !status.ok()) return status;
    } else if (!exported.unsent.empty() && Send(region.fd, &exported)) {
      if (Result<RegionBlock*> first = arena_->Regions(0); first.ok()) {
        (*first)->changes.fetch_add(1);
      }
    }
    if (keep && exported.keepers == 0 && !HasRoomToKeep()) return Full();
    if (keep) Keep(&exported);
    return IdOf(exported);
  }
  if (region.generation == refused_) return Refused();
  if (keep && !HasRoomToKeep()) return Full();
  Exported& exported = exports_[FindPlace(keep)];
  const uint64_t replaced = exported.generation;
  by_generation_.emplace(region.generation, IdOf(exported) - 1);
  const Status status = CatchOutOfMemory([&] { return Post(region, &exported); });
  if (!status.ok()) {
    by_generation_.erase(region.generation);
    refused_ = region.generation;
    return status;
  }
  refused_ = 0;
  if (replaced == 0) ++found_;
  if (replaced != 0) by_generation_.erase(replaced);
  if (keep) Keep(&exported);
  return IdOf(exported);
}

// A kept region needs no place of those that calls find, so it replaces one of these only if the
// table is full.
uint32_t OwnRegions::FindPlace(bool keep) {
  if (keep || found_ < kMostFound) {
    const auto free = std::find_if(exports_.begin(), exports_.end(),
                                   [](const Exported& each) { return each.generation == 0; });
    if (free != exports_.end()) return IdOf(*free) - 1;
    if (exports_.size() < mapped::kRegions) return IdOf(exports_.emplace_back()) - 1;
  }
  // There is one: found_ has reached its limit, or the table is full and kept_ has not reached its.
  const Exported* oldest = nullptr;
  for (const Exported& each : exports_) {
    if (each.generation == 0 || each.keepers > 0) continue;
    if (oldest == nullptr || each.used < oldest->used) oldest = &each;
  }
  return IdOf(*oldest) - 1;
}

bool OwnRegions::HasRoomToKeep() {
  if (kept_ < kMostKept) return true;
  for (Exported& each : exports_) {
    if (each.keepers == 0) continue;
    const Result<Region> region = FindRegion(each.data, 1, each.on_device);
    if (region.ok() && region->generation == each.generation) continue;
    each.keepers = 0;
    --kept_;
    ++found_;
  }
  return kept_ < kMostKept;
}

void OwnRegions::Keep(Exported* exported) {
  if (exported->keepers++ > 0) return;
  --found_;
  ++kept_;
}

void OwnRegions::Deregister(const MemoryHandle& memory) {
  const auto known = by_generation_.find(memory.memory);
  if (known == by_generation_.end()) return;  // revoked, or freed and replaced
  Exported& exported = exports_[known->second];
  if (exported.keepers == 0 || --exported.keepers > 0) return;
  --kept_;
  ++found_;
}

bool OwnRegions::Send(int file, Exported* offered) {
  const RegionLabel label = {rank_, IdOf(*offered), offered->posted};
  bool any = false;
  std::erase_if(offered->unsent, [&](int inbox) {
    const Sent sent = SendRegionFile(inbox, label, file);
    any = any || sent == Sent::kYes;
    return sent != Sent::kLater;
  });
  return any;
}

// Sends the file before it posts the entry, so that a peer that sees the entry finds the file.
Status OwnRegions::Post(const Region& region, Exported* offered) {
  const uint32_t index = IdOf(*offered) - 1;
  Result<RegionBlock*> first = arena_->Regions(0);
  Result<RegionBlock*> block = arena_->Regions(index / kBlockRegions);
  if (!block.ok()) return block.status();
  // Nothing allocates memory after the first change.
  std::vector<int> inboxes;
  RegionKind kind = RegionKind::kDevice;
  struct stat file {};
  if (!region.on_device) {
    if (fstat(region.fd, &file) != 0) return SystemErrorErrno("fstat of memory to export", errno);
    kind = region.writable ? RegionKind::kWritable : RegionKind::kReadable;
    for (const UniqueFd& inbox : inboxes_) inboxes.push_back(inbox.get());
  }
  *offered = {.generation = region.generation,
              .posted = ++posts_,
              .used = uses_,
              .keepers = offered->keepers,
              .writable = region.writable,
              .on_device = region.on_device,
              .data = region.data,
              .unsent = std::move(inboxes)};
  RegionEntry& entry = (*block)->regions[index % kBlockRegions];
  entry.generation.store(0, std::memory_order_seq_cst);
  if (!region.on_device) Send(region.fd, offered);
  entry.bytes.store(region.bytes, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  entry.device.store(file.st_dev, std::memory_order_relaxed);
  entry.inode.store(file.st_ino, std::memory_order_relaxed);
  HandleWords words;
  std::memcpy(words.data(), region.handle.data(), sizeof words);
  for (size_t i = 0; i < words.size(); ++i) {
    entry.handle[i].store(words[i], std::memory_order_relaxed);
  }
  entry.generation.store(offered->posted, std::memory_order_seq_cst);
  (*first)->changes.fetch_add(1, std::memory_order_seq_cst);
  return Status::Ok();
}

Status OwnRegions::RevokeAccess(const MemoryHandle& memory) {
  if (memory.region == 0) return Status::Ok();
  if (!memory.on_device) {
    return HostAllocator::Instance().RevokeAccess(
        memory.begin, memory.end,
        memory.writable ? HostAllocator::Contents::kLost : HostAllocator::Contents::kKept);
  }
  Invalidate(memory.memory);
  return Status::Ok();
}

// Peers may still read the region, but not release slices in it. The store precedes all later
// writes of the caller to its memory.
void OwnRegions::Invalidate(uint64_t generation) {
  const auto known = by_generation_.find(generation);
  if (known == by_generation_.end()) return;
  const uint32_t index = known->second;
  Result<RegionBlock*> block = arena_->Regions(index / kBlockRegions);  // exists
  if (!block.ok()) return;
  (*block)->regions[index % kBlockRegions].generation.store(0, std::memory_order_seq_cst);
  --(exports_[index].keepers > 0 ? kept_ : found_);
  exports_[index] = {};
  by_generation_.erase(known);
}

using mapped::kBlockRegions;
using mapped::RegionBlock;
using mapped::RegionEntry;
using mapped::RegionKind;

Status PeerRegions::Update() {
  if (blocks_.empty()) {
    if (Status status = FindBlocks(); !status.ok() || blocks_.empty()) return status;
  }
  const uint32_t changes = blocks_.front()->changes.load(std::memory_order_seq_cst);
  if (changes == changes_) return Status::Ok();
  if (Status status = FindBlocks(); !status.ok()) return status;
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    if (Status status = Look(i); !status.ok()) return status;
  }
  changes_ = changes;
  return Status::Ok();
}

Status PeerRegions::FindBlocks() {
  while (blocks_.size() < mapped::kRegionBlocks) {
    Result<const RegionBlock*> next =
        view_->RegionsAfter(blocks_.empty() ? nullptr : blocks_.back());
    if (!next.ok()) return next.status();
    if (*next == nullptr) break;
    blocks_.push_back(*next);
    mapped_.resize(blocks_.size() * kBlockRegions);
  }
  return Status::Ok();
}

std::atomic<uint64_t>* PeerRegions::Answer(uint32_t index) {
  Result<RegionBlock*> own = arena_->Regions(index / kBlockRegions);
  if (!own.ok()) return nullptr;
  return &(*own)->answers[static_cast<size_t>(peer_)].mapped[index % kBlockRegions];
}

void PeerRegions::SetOpener(RegionImporter* opener) {
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    if (mapped_[i].file.data() != nullptr) continue;
    if (mapped_[i].opened.data != nullptr) {
      if (std::atomic<uint64_t>* answer = Answer(i); answer != nullptr) answer->store(0);
    }
    Forget(&mapped_[i]);
  }
  opener_ = opener;
  changes_ = 0;  // the new importer may open what the old one could not
}

void PeerRegions::Forget(Mapped* mapped) {
  if (mapped->opened.data != nullptr) opener_->Close(mapped->opened.data);
  const uint32_t users = mapped->users;  // lanes still drop their references when they end
  *mapped = {};
  mapped->users = users;
}

// Does not answer a region that it cannot import, so the owner sends this rank no references to it.
Status PeerRegions::Look(uint32_t index) {
  const RegionEntry& entry = Entry(index);
  Mapped& mapped = mapped_[index];
  const uint64_t generation = entry.generation.load(std::memory_order_seq_cst);
  if (generation == 0 || generation == mapped.generation) return Status::Ok();
  if (mapped.users > 0) {
    return InternalError(
        fmt::format("rank {}: peer rank {} replaced its region {}, to which {} slices that this "
                    "rank has not released refer",
                    rank_, peer_, index + 1, mapped.users));
  }
  std::atomic<uint64_t>* const answer = Answer(index);
  if (answer == nullptr) return Status::Ok();
  answer->store(0, std::memory_order_seq_cst);
  Forget(&mapped);
  if (Reach(index, generation, &mapped)) answer->store(generation, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reach(uint32_t index, uint64_t generation, Mapped* mapped) {
  const RegionEntry& entry = Entry(index);
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const uint32_t kind = entry.kind.load(std::memory_order_relaxed);
  const uint64_t device = entry.device.load(std::memory_order_relaxed);
  const uint64_t inode = entry.inode.load(std::memory_order_relaxed);
  HandleWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = entry.handle[i].load(std::memory_order_relaxed);
  }
  // The entry changed meanwhile; then `changes` differs at the next Update, too.
  if (entry.generation.load(std::memory_order_seq_cst) != generation || bytes == 0) return false;
  mapped->generation = generation;
  if (kind == static_cast<uint32_t>(RegionKind::kDevice)) {
    Region::Handle handle;
    std::memcpy(handle.data(), words.data(), sizeof words);
    std::byte* const memory = opener_ == nullptr ? nullptr : opener_->Open(handle, bytes);
    if (memory != nullptr) mapped->opened = {memory, bytes};
    return memory != nullptr;
  }
  mapped->writable = kind == static_cast<uint32_t>(RegionKind::kWritable);
  if (inbox_ == nullptr ||
      (!mapped->writable && kind != static_cast<uint32_t>(RegionKind::kReadable))) {
    return false;
  }
  const UniqueFd sent =
      inbox_->Take({.rank = peer_, .region = index + 1, .generation = generation});
  if (!sent.valid()) {
    mapped->generation = 0;  // look again once the owner could send it
    return false;
  }
  // Compare with the peer's own table: another rank could have sent a file under the peer's name.
  struct stat file {};
  if (fstat(sent.get(), &file) != 0 || file.st_dev != device || file.st_ino != inode) return false;
  Result<Mapping> memory = MapSealed(sent.get(), bytes, mapped->writable);
  if (!memory.ok()) return false;
  mapped->file = *std::move(memory);
  return true;
}

bool PeerRegions::ReachableFrom(uint32_t region) const {
  if (region == 0 || region > mapped_.size()) return false;
  const uint32_t index = region - 1;
  const std::atomic<uint64_t>& answer = blocks_[index / kBlockRegions]
                                            ->answers[static_cast<size_t>(rank_)]
                                            .mapped[index % kBlockRegions];
  const uint64_t generation = own_->generation(region);
  return generation != 0 && answer.load(std::memory_order_acquire) == generation;
}

bool PeerRegions::Counts(uint32_t region) const {
  return Entry(region - 1).generation.load(std::memory_order_seq_cst) ==
         mapped_[region - 1].generation;
}

bool PeerRegions::IsWritable(uint32_t region) const {
  if (region == 0 || region > mapped_.size()) return false;
  const Mapped& mapped = mapped_[region - 1];
  return mapped.writable && mapped.file.data() != nullptr;
}

std::byte* PeerRegions::At(const RemoteAddress& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped_.size()) return nullptr;
  const Span memory = mapped_[place.region - 1].memory();
  if (place.offset > memory.bytes || bytes > memory.bytes - place.offset) return nullptr;
  return memory.data == nullptr ? nullptr : memory.data + place.offset;
}

}  // namespace inccl::shm
