// SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/mapped/mapped_transport.h"
#include "transport/shm/regions.h"

namespace inccl {
namespace {

using mapped::Arena;
using mapped::ArenaView;
using mapped::FutexScope;
using mapped::WakeupArea;

// The committed memory of all arenas, in the pieces in which it was committed. All ends share it.
class Pieces {
 public:
  void Add(const Span& piece) {
    const MutexLock lock(&mutex_);
    pieces_.push_back(piece);
  }
  void Append(std::vector<Span>* spans) const {
    const MutexLock lock(&mutex_);
    spans->insert(spans->end(), pieces_.begin(), pieces_.end());
  }

 private:
  mutable Mutex mutex_;
  std::vector<Span> pieces_ INCCL_GUARDED_BY(mutex_);
};

// Address space without access rights; Commit makes pages accessible, which accounts for them.
class AnonymousMemory final : public mapped::ArenaMemory {
 public:
  AnonymousMemory(std::shared_ptr<const Mapping> mapping, std::shared_ptr<Pieces> pieces)
      : mapping_(std::move(mapping)), pieces_(std::move(pieces)) {}
  std::byte* data() const override { return mapping_->data(); }
  size_t bytes() const override { return mapping_->bytes(); }
  Status Commit(size_t offset, size_t bytes) override {
    if (mprotect(data() + offset, bytes, PROT_READ | PROT_WRITE) != 0) {
      return SystemErrorErrno(fmt::format("mprotect of {} bytes of slot memory", bytes), errno);
    }
    if (offset >= mapped::kDataOffset) pieces_->Add({data() + offset, bytes});
    return Status::Ok();
  }

 private:
  std::shared_ptr<const Mapping> mapping_;
  std::shared_ptr<Pieces> pieces_;
};

// The state that all ends share.
struct World {
  std::vector<std::shared_ptr<const Mapping>> arenas;
  std::unique_ptr<WakeupArea[]> wakeups;
  std::shared_ptr<Pieces> pieces = std::make_shared<Pieces>();
};

class LoopbackTransport final : public mapped::MappedTransport {
 public:
  LoopbackTransport(std::shared_ptr<World> world, int rank, int nranks,
                    std::unique_ptr<Arena> arena, uint32_t max_slot_bytes)
      : MappedTransport("loopback", rank, nranks, std::move(arena),
                        &world->wakeups[static_cast<size_t>(rank)], FutexScope::kProcess,
                        max_slot_bytes, /*slots_at_opening=*/UINT32_MAX),
        world_(std::move(world)),
        own_regions_(rank, this->arena(), /*inbox=*/nullptr) {}

  Exports* exports() override { return &own_regions_; }
  Result<int> Progress(Time /*now*/) override {
    if (Status status = own_regions_.Update(); !status.ok()) return status;
    return 0;
  }
  void SlotMemory(std::vector<Span>* spans) const override { world_->pieces->Append(spans); }

  Status AttachAll() {
    for (int peer = 0; peer < nranks(); ++peer) {
      if (peer == rank()) continue;
      const Mapping& arena = *world_->arenas[static_cast<size_t>(peer)];
      auto view = ArenaView::Create(arena.data(), arena.bytes(), peer, nranks());
      if (!view.ok()) return view.status();
      shm::PeerRegions* const regions = own_regions_.AddPeer(peer, view->get());
      SetPeer(peer, std::move(*view), &world_->wakeups[static_cast<size_t>(peer)], regions);
    }
    return Status::Ok();
  }

 private:
  std::shared_ptr<World> world_;
  shm::OwnRegions own_regions_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeLoopback(int nranks, const LoopbackOptions& options) {
  if (nranks < 1) return {};
  const size_t bytes = mapped::RoundUp(options.arena_bytes, mapped::kPage);
  auto world = std::make_shared<World>();
  world->wakeups = std::make_unique<WakeupArea[]>(static_cast<size_t>(nranks));
  std::vector<std::unique_ptr<LoopbackTransport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    void* data =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return {};
    world->arenas.push_back(std::make_shared<const Mapping>(data, bytes));
    auto arena = Arena::Create(
        std::make_unique<AnonymousMemory>(world->arenas.back(), world->pieces), rank, nranks);
    if (!arena.ok()) return {};
    if (options.commit_ahead > 0) (*arena)->CommitAhead(options.commit_ahead);
    ends.push_back(std::make_unique<LoopbackTransport>(world, rank, nranks, std::move(*arena),
                                                       Arena::MaxSlotBytes(bytes)));
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& end : ends) {
    if (!end->AttachAll().ok()) return {};
    transports.push_back(std::move(end));
  }
  return transports;
}

}  // namespace inccl
