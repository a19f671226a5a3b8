// SPDX-License-Identifier: Apache-2.0
//
// The second half of error feedback: what the owner of a part has left out when it encoded the
// total for all ranks, which its next total gets back. A rank owns few superblocks, so only these
// take memory. Like the residual of contributions, the errors have a state before the last
// committed call, and one that the call in progress writes.
#ifndef INCCL_COMPRESS_RESIDUAL_TOTAL_RESIDUAL_H_
#define INCCL_COMPRESS_RESIDUAL_TOTAL_RESIDUAL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "compress/codec.h"

namespace inccl {

class TotalResidual {
 public:
  // Adds factor * errors of a superblock to `sum`.
  void AddTo(uint64_t superblock, float factor, std::span<float> sum) const;
  // For the call in progress: the error of each element is (sum - sent) / factor; one that is not
  // finite counts as 0.
  void Set(uint64_t superblock, float factor, std::span<const float> sum, const float* sent);
  // Ends the call. Where a committed call has not asked for a superblock, this rank does not own it
  // any more: its errors go to `contributions`(superblock, errors).
  template <typename Body>
  void End(bool committed, uint64_t operation, const Body& contributions) {
    for (Entry& entry : entries_) {
      // Its number may be that of a call on another communicator.
      if (committed) entry.operation = 0;
      if (committed && (entry.pending || !entry.empty)) {
        if (!entry.pending) {
          contributions(entry.superblock, entry.rows[entry.now]);
          entry.rows[(entry.now + 1) % 3] = {};
        }
        entry.empty = !entry.pending;
        entry.now = (entry.now + 1) % 3;
        entry.operation = operation;
      }
      entry.pending = false;
    }
  }
  // Takes back what the call of this number has committed, which was the last one.
  void Rollback(uint64_t operation);
  void Clear();
  // Adds all errors to the elements of a vector.
  void AddAll(std::span<float> values) const;

 private:
  struct Entry {
    uint64_t superblock = 0;
    uint64_t operation = 0;  // the last committed one if that has changed it, or 0
    uint32_t now = 0;        // the row in force; after it come the pending and the former one
    bool pending = false, empty = true;
    std::array<std::array<float, kSuperblock>, 3> rows = {};
  };

  const Entry* Find(uint64_t superblock) const;

  std::vector<uint32_t> index_;  // by superblock: 1 + the index of its entry, or 0
  std::deque<Entry> entries_;
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_RESIDUAL_TOTAL_RESIDUAL_H_
