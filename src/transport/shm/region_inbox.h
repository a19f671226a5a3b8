// SPDX-License-Identifier: Apache-2.0
//
// Delivers the files of regions to the peers that may map them. Each rank has one socket; its peers
// receive the other end over their authenticated connections and send descriptors into it. The
// receiver uses a message only to find the file of a region, and checks the file itself.
#ifndef INCCL_TRANSPORT_SHM_REGION_INBOX_H_
#define INCCL_TRANSPORT_SHM_REGION_INBOX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace inccl::shm {

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

}  // namespace inccl::shm

#endif  // INCCL_TRANSPORT_SHM_REGION_INBOX_H_
