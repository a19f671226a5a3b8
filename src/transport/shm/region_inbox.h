// SPDX-License-Identifier: Apache-2.0
//
// How the files of regions reach the peers that may map them: a rank has one socket, whose other
// end all its peers have been given over their authenticated connections, and they put descriptors
// into it. What a message says is only used to find the file for a region; what the file is, its
// receiver sees for itself.
#ifndef INCCL_TRANSPORT_SHM_REGION_INBOX_H_
#define INCCL_TRANSPORT_SHM_REGION_INBOX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace inccl::shm {

// Whose region a file is for, and which: its number and generation on the owner's table.
struct RegionLabel {
  int rank = -1;
  uint32_t region = 0;
  uint64_t generation = 0;
};

enum class Sent : uint8_t { kYes, kLater, kNever };
// Into the end of a RegionInbox that peers have. kLater: it is full.
Sent SendRegionFile(int inbox, const RegionLabel& label, int file);

class RegionInbox {
 public:
  static Result<RegionInbox> Create(int nranks);

  // To be shared with all peers; stays this object's.
  int for_peers() const { return for_peers_.get(); }
  // The file that has come for this very label, once; else an invalid descriptor. Malformed
  // messages, and files for what is not there or not there any more, are dropped.
  UniqueFd Take(const RegionLabel& label);

 private:
  explicit RegionInbox(int nranks) : nranks_(nranks) {}
  // What has come, as far as there is anything. False: nothing more.
  bool Receive();

  int nranks_;
  UniqueFd own_, for_peers_;
  struct File {
    uint64_t generation = 0;
    UniqueFd fd;
  };
  std::map<std::pair<int, uint32_t>, File> waiting_;  // by rank and region: one each, the last
};

}  // namespace inccl::shm

#endif  // INCCL_TRANSPORT_SHM_REGION_INBOX_H_
