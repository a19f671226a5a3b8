// SPDX-License-Identifier: Apache-2.0
//
// A peer that writes any bytes into its region table and into an inbox, and any addresses into its
// slices: a rank then reads only memory that it can read, and writes only memory that it may write.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "fuzz/fuzz.h"
#include "memory/memfd.h"
#include "transport/shm/shm_transport.h"

namespace inccl::fuzz {
namespace {

constexpr size_t kArena = size_t{2} << 20, kBytes = 8192;
constexpr ShmOptions kOptions = {.arena_bytes = kArena, .for_device = true};

UniqueFd Dup(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Rank 0, which is what the bytes make of it, and rank 1.
struct World {
  World() {
    for (int rank : {0, 1}) ends[rank] = *ShmTransport::Create(rank, 2, kOptions);
    for (int rank : {0, 1}) {
      const std::vector<int> fds = ends[1 - rank]->fds_to_share();
      Require(ends[rank]->Attach(1 - rank, Dup(fds[0]), Dup(fds[1]), Dup(fds[2]), Dup(fds[3])).ok(),
              "attached");
    }
    const LaneSpec spec{.lane_class = LaneClass::kData,
                        .channel = 0,
                        .producer = 0,
                        .consumers = {1},
                        .slot_bytes = kBytes,
                        .depth = 2};
    send = *ends[0]->OpenSend(spec);
    recv = *ends[1]->OpenRecv(spec);
    arena = *shm::MapSealed(ends[0]->fds_to_share()[0], kArena, /*writable=*/true);
    const Region region = {.generation = 1,
                           .data = file.mapping.data(),
                           .bytes = kBytes,
                           .fd = file.fd.get(),
                           .writable = true};
    const Result<uint32_t> id = ends[0]->ExportRegion(region);
    Require(id.ok() && *id == 1, "a file is exported");
  }
  std::byte* table() const {
    const auto* header = reinterpret_cast<const mapped::ArenaHeader*>(arena.data());
    return arena.data() + header->table.load();
  }

  std::unique_ptr<ShmTransport> ends[2];
  shm::Memfd file = *shm::CreateMemfd("fuzz", kBytes, false);
  shm::Memfd other = *shm::CreateMemfd("fuzz", kBytes / 2, false);
  Mapping arena;
  std::unique_ptr<SendLane> send;
  std::unique_ptr<RecvLane> recv;
};

void UseSlice(World* world, const SliceHeader& header) {
  const Result<Span> slot = world->send->TryAcquire();
  if (!slot.ok() || slot->data == nullptr) return;
  Require(world->send->Publish(header).ok(), "a slice is published");
  RecvLane::Incoming incoming;
  const Result<bool> there = world->recv->TryPeek(&incoming);
  if (!there.ok() || !*there) return;
  volatile unsigned sum = 0;
  for (uint32_t i = 0; i < incoming.header.bytes; ++i) {
    sum = sum + std::to_integer<unsigned>(incoming.payload[i]);
  }
  if (incoming.target != nullptr) std::memset(incoming.target, 1, incoming.header.bytes);
  (void)world->recv->Release();
}

}  // namespace

void Run(Data data) {
  World world;
  Input input(data);
  uint32_t changes = 1;
  for (int steps = 0; steps < 12 && !input.empty(); ++steps) {
    switch (input.Byte() % 4) {
      case 0: {  // any bytes in the first entries, and as the place of the next block
        const size_t at = offsetof(mapped::RegionBlock, next) + input.Below(512);
        const Data bytes = input.Take(1 + input.Byte() % 32);
        std::memcpy(world.table() + at, bytes.data(), bytes.size());
        break;
      }
      case 1: {  // a file for any label, or bytes for none
        const int inbox = world.ends[1]->fds_to_share()[2];
        const shm::RegionLabel label = {static_cast<int>(input.Byte()) - 1, input.Byte(),
                                        input.Byte()};
        const int fd = (input.Byte() & 1) != 0 ? world.other.fd.get() : inbox;
        (void)shm::SendRegionFile(inbox, label, fd);
        const Data bytes = input.Take(input.Byte() % 32);
        (void)send(inbox, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      }
      case 2: {
        const uint32_t bytes = input.Below(kBytes + 1);
        UseSlice(&world, {.bytes = bytes,
                          .source = {input.Byte() % 4u, input.Below(kBytes + 9)},
                          .target = {input.Byte() % 4u, input.Below(kBytes + 9)}});
        break;
      }
      default:
        reinterpret_cast<mapped::RegionBlock*>(world.table())->changes.store(++changes);
        if (!world.ends[1]->Progress(0).ok()) return;
    }
  }
}

std::vector<std::vector<std::byte>> Examples() {
  const auto of = [](std::initializer_list<int> values) {
    std::vector<std::byte> bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
  };
  return {
      of({3, 2, 64, 0, 1, 0, 0, 1, 0, 16}),          // a slice that lies in the region
      of({3, 2, 0, 32, 1, 1, 0, 1, 0, 0}),           // one byte beyond its end
      of({0, 64, 0, 0, 255, 3, 2, 64, 0, 1, 0, 0}),  // another size
      of({0, 56, 0, 0, 2, 1, 1, 1, 2, 1, 0, 3, 2, 9, 0, 1, 0, 0}),  // another file for generation 2
      of({0, 1, 0, 1, 16, 16, 3, 2, 64, 0, 1, 0, 0}),  // the next block lies over the slots
      of({0, 1, 0, 0, 255, 3}),                        // and in no page
  };
}

}  // namespace inccl::fuzz
