// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "transport/transport.h"

namespace inccl {
namespace {

using mapped::Arena;
using mapped::ArenaView;
using mapped::kPage;
using mapped::WakeupArea;

constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // for madvise, since Linux 5.14

// Maps committed pages in advance, which saves a page fault each. Older kernels refuse, harmlessly.
void Map(const std::byte* data, size_t bytes, int advice) {
  (void)madvise(const_cast<std::byte*>(data), bytes, advice);
}

class FileMemory final : public mapped::ArenaMemory {
 public:
  FileMemory(int fd, Mapping mapping) : fd_(fd), mapping_(std::move(mapping)) {}
  std::byte* data() const override { return mapping_.data(); }
  size_t bytes() const override { return mapping_.bytes(); }
  Status Commit(size_t offset, size_t bytes) override {
    Status status = shm::CommitPages(fd_, offset, bytes);
    if (status.ok()) Map(data() + offset, bytes, kPopulateWrite);
    return status;
  }

 private:
  int fd_;  // owned by the transport
  Mapping mapping_;
};

// Whether a write to the peer's descriptor returns at once and has no effect but to make it
// readable.
bool IsEventFd(int fd) {
  char target[32];
  const ssize_t bytes =
      readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target, sizeof target);
  const int flags = fcntl(fd, F_GETFL);
  return bytes > 0 && flags >= 0 && (flags & O_NONBLOCK) != 0 &&
         std::string_view(target, static_cast<size_t>(bytes)) == "anon_inode:[eventfd]";
}

Status Prefixed(const std::string& prefix, const Status& status) {
  return {status.code(), prefix + status.message()};
}

}  // namespace

ShmTransport::ShmTransport(int rank, int nranks, std::unique_ptr<Arena> arena, UniqueFd arena_fd,
                           shm::Memfd wakeup, shm::RegionInbox inbox, UniqueFd event_fd,
                           const ShmOptions& options)
    : MappedTransport("shm", rank, nranks, std::move(arena),
                      reinterpret_cast<WakeupArea*>(wakeup.mapping.data()),
                      mapped::FutexScope::kHost,
                      Arena::MaxSlotBytes(mapped::RoundUp(options.arena_bytes, kPage)),
                      options.for_device ? UINT32_MAX : options.slots_at_opening),
      options_(options),
      arena_fd_(std::move(arena_fd)),
      wakeup_(std::move(wakeup)),
      event_fd_(std::move(event_fd)),
      wakeup_source_(reinterpret_cast<WakeupArea*>(wakeup_.mapping.data()), event_fd_.get()),
      inbox_(std::move(inbox)),
      own_regions_(rank, this->arena(), &inbox_) {}

Result<std::unique_ptr<ShmTransport>> ShmTransport::Create(int rank, int nranks,
                                                           const ShmOptions& options) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank {} is not one of {} ranks", rank, nranks));
  }
  const std::string prefix = fmt::format("rank {}: ", rank);
  const size_t bytes = mapped::RoundUp(options.arena_bytes, kPage);
  Result<shm::Memfd> memory =
      shm::CreateMemfd("inccl-arena", bytes, /*peers_read_only=*/!options.for_device);
  if (!memory.ok()) return Prefixed(prefix, memory.status());
  Result<shm::Memfd> wakeup = shm::CreateMemfd("inccl-wakeup", kPage, /*peers_read_only=*/false);
  if (!wakeup.ok()) return Prefixed(prefix, wakeup.status());
  if (Status status = shm::CommitPages(wakeup->fd.get(), 0, kPage); !status.ok()) {
    return Prefixed(prefix, status);
  }
  auto* area = new (wakeup->mapping.data()) WakeupArea{};
  area->magic = mapped::kWakeupMagic;
  area->rank = rank;
  Result<std::unique_ptr<Arena>> arena = Arena::Create(
      std::make_unique<FileMemory>(memory->fd.get(), std::move(memory->mapping)), rank, nranks);
  if (!arena.ok()) return Prefixed(prefix, arena.status());
  if (options.commit_ahead > 0) (*arena)->CommitAhead(options.commit_ahead);
  Result<shm::RegionInbox> inbox = shm::RegionInbox::Create(nranks);
  if (!inbox.ok()) return Prefixed(prefix, inbox.status());
  UniqueFd event_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_fd.valid()) return SystemErrorErrno(prefix + "eventfd", errno);
  return std::unique_ptr<ShmTransport>(
      new ShmTransport(rank, nranks, std::move(*arena), std::move(memory->fd), std::move(*wakeup),
                       std::move(*inbox), std::move(event_fd), options));
}

Caps ShmTransport::CapsOf(const ShmOptions& options) {
  return {.name = "shm",
          .timed = false,
          .slot_memory = mapped::RoundUp(options.arena_bytes, kPage) - mapped::kDataOffset,
          .shared_slots = true,
          .deep_lanes = true};  // between hosts it has none
}

void ShmTransport::CloseEventFds() {
  ForgetEventFds();
  event_fd_.Reset();
  peer_event_fds_.clear();
}

Status ShmTransport::Attach(int peer, UniqueFd arena, UniqueFd wakeup_event, UniqueFd inbox,
                            UniqueFd event_fd) {
  if (Status status = CheckPeer(rank(), peer, nranks()); !status.ok()) return status;
  if (HasPeer(peer)) return AttachedTwice(rank(), peer);
  FAULT_POINT("shm.before_attach");
  const std::string prefix = fmt::format("rank {}: peer rank {}: ", rank(), peer);
  Result<Mapping> memory =
      shm::MapSealed(arena.get(), mapped::RoundUp(options_.arena_bytes, kPage), /*writable=*/false);
  if (!memory.ok()) return Prefixed(prefix + "arena: ", memory.status());
  Result<Mapping> wakeup = shm::MapSealed(wakeup_event.get(), kPage, /*writable=*/true);
  if (!wakeup.ok()) return Prefixed(prefix + "wakeup_event: ", wakeup.status());
  auto* area = reinterpret_cast<WakeupArea*>(wakeup->data());
  if (area->magic != mapped::kWakeupMagic || area->rank != peer) {
    return InternalError(
        fmt::format("{}wakeup_event: magic {:x}, rank {}", prefix, area->magic, area->rank));
  }
  int type = 0;
  socklen_t length = sizeof type;
  const bool known = getsockopt(inbox.get(), SOL_SOCKET, SO_TYPE, &type, &length) == 0;
  if (!known && errno != ENOTSOCK) return SystemErrorErrno(prefix + "inbox: getsockopt", errno);
  if (!known || type != SOCK_SEQPACKET) {
    return InternalError(prefix + "inbox: not a socket of packets");
  }
  if (!IsEventFd(event_fd.get())) return InternalError(prefix + "not an eventfd");
  Result<std::unique_ptr<ArenaView>> view =
      ArenaView::Create(memory->data(), memory->bytes(), peer, nranks());
  if (!view.ok()) return Prefixed(prefix, view.status());
  // Limited to this rank's own option: a peer's number alone must not make this rank take memory.
  const size_t ahead = mapped::RoundUp(options_.commit_ahead, kPage);
  Map(memory->data() + mapped::kDataOffset,
      std::min(ahead, (*view)->committed() - mapped::kDataOffset), kPopulateRead);
  shm::PeerRegions* const regions = own_regions_.AddPeer(peer, view->get(), std::move(inbox));
  SetPeer(peer, std::move(*view), area, regions, event_fd.get());
  peer_event_fds_.push_back(std::move(event_fd));
  mappings_.push_back(std::move(*memory));
  mappings_.push_back(std::move(*wakeup));
  FAULT_POINT("shm.after_attach");
  return Status::Ok();
}

Result<int> ShmTransport::Progress(Time /*now*/) {
  if (Status status = own_regions_.Update(); !status.ok()) return status;
  return 0;
}

namespace {

class ShmFactory final : public TransportFactory {
 public:
  ShmFactory(int rank, int nranks, std::unique_ptr<ShmTransport> shm)
      : rank_(rank), nranks_(nranks), shm_(std::move(shm)) {}
  std::vector<int> fds_to_share() const override { return shm_->fds_to_share(); }
  Status Attach(Peer* peer, std::span<const std::byte> /*payload*/) override {
    const size_t expected = shm_->fds_to_share().size();
    if (peer->fds.size() != expected) {
      return InternalError(fmt::format("rank {}/{}: peer {} shared {} descriptors instead of {}",
                                       rank_, nranks_, peer->info.rank, peer->fds.size(),
                                       expected));
    }
    return shm_->Attach(peer->info.rank, std::move(peer->fds[0]), std::move(peer->fds[1]),
                        std::move(peer->fds[2]), std::move(peer->fds[3]));
  }
  std::unique_ptr<Transport> Take(bool alone) override {
    if (alone) shm_->CloseEventFds();
    return std::move(shm_);
  }

 private:
  const int rank_, nranks_;
  std::unique_ptr<ShmTransport> shm_;
};

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeShmFactory(int rank, int nranks,
                                                         const ShmOptions& options) {
  Result<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(rank, nranks, options);
  if (!shm.ok()) return shm.status();
  return std::unique_ptr<TransportFactory>(new ShmFactory(rank, nranks, *std::move(shm)));
}

}  // namespace inccl
