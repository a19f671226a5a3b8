// SPDX-License-Identifier: Apache-2.0
//
// Registered buffers in the simulator: any memory, each buffer a region. A peer imports a region
// after a random time, and the owner learns of that after another one. The peer keeps the region
// until another one replaces it; a revocation is visible at once, as in shared memory.
#ifndef INCCL_TRANSPORT_SIM_SIM_REGIONS_H_
#define INCCL_TRANSPORT_SIM_SIM_REGIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace inccl::sim {

class SimRegions {
 public:
  static constexpr uint32_t kMostFound = 8, kMostKept = 8;
  static constexpr uint32_t kPlaces = kMostFound + kMostKept;
  // Runs an event of this rank later.
  using Later = std::function<void(int rank, std::function<void()> event)>;

  SimRegions(int nranks, Later later);

  // As the methods of Transport.
  Result<MemoryHandle> Register(int owner, std::span<const std::byte> memory,
                                const Registration& how);
  void Deregister(int owner, const MemoryHandle& memory);
  void RevokeAccess(int owner, const MemoryHandle& memory);
  // True if the owner knows that the peer has imported its region.
  bool ReachableFrom(int owner, uint32_t region, int peer) const;
  // False if the owner has revoked or replaced the region since the peer imported it.
  bool Counts(int owner, uint32_t region, int peer) const;
  // The address that the peer has for this place; nullptr if it has not imported the region, the
  // region is too small, or `to_write` is set and it is read-only.
  std::byte* At(int owner, const RemoteAddress& place, size_t bytes, bool to_write, int peer) const;
  // From Hold to Drop, a slice that the peer has peeked at refers to the region.
  void Hold(int owner, uint32_t region, int peer) { ++Known(owner, region, peer).users; }
  void Drop(int owner, uint32_t region, int peer) { --Known(owner, region, peer).users; }
  // A rank that replaced a region while `peer` held it; -1 if there is none.
  int offender(int peer) const { return offenders_[static_cast<size_t>(peer)]; }

 private:
  struct Place {  // the owner's view
    std::span<const std::byte> memory;
    uint64_t generation = 0;  // of this export; 0: none, or revoked
    uint64_t used = 0;
    uint32_t keepers = 0;  // registrations with `keep`
    bool writable = false;
    std::vector<uint64_t> answers;  // by rank: the last generation that it has confirmed
  };
  struct Knowledge {  // a peer's view
    uint64_t generation = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool writable = false;
    uint32_t users = 0;
  };
  using Places = std::array<Place, kPlaces>;

  static uint32_t FindPlace(const Places& places, bool keep);
  // Announces places_[owner][index] to the peers.
  void Post(int owner, uint32_t index);
  void Learn(int owner, uint32_t index, int peer, const Knowledge& news);
  Knowledge& Known(int owner, uint32_t region, int peer) {
    return known_[(static_cast<size_t>(peer) * places_.size() + static_cast<size_t>(owner)) *
                      kPlaces +
                  region - 1];
  }
  const Knowledge& Known(int owner, uint32_t region, int peer) const {
    return const_cast<SimRegions*>(this)->Known(owner, region, peer);
  }

  const Later later_;
  std::vector<Places> places_;    // by owner
  std::vector<Knowledge> known_;  // by peer, owner, place
  std::vector<int> offenders_;    // by peer
  uint64_t generations_ = 0, uses_ = 0;
};

}  // namespace inccl::sim

#endif  // INCCL_TRANSPORT_SIM_SIM_REGIONS_H_
