// SPDX-License-Identifier: Apache-2.0
//
// Which calls of former communicators count. A residual outlives communicators, each of which
// numbers its calls from 1. When a rank dies, the last call may have completed on some ranks only;
// the ranks that are left repeat it, so those who had completed it take it back.
#ifndef INCCL_BASE_LINEAGE_H_
#define INCCL_BASE_LINEAGE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace inccl {

// A call, for who keeps what it has changed. operation 0: none, which counts.
struct CallName {
  uint64_t communicator = 0;  // Lineage::number
  uint64_t operation = 0;
};

// The communicators from which one has been made, as far as it knows which of their calls count.
// Immutable.
class Lineage {
 public:
  Lineage() : number_(NextNumber()) {}  // of a communicator that is made from no other
  // How many calls of a communicator that is being shrunk have completed.
  struct Completed {
    uint64_t on_all = 0, here = 0;
  };
  // Of one that is made from `parent`; `shrunk`: by shrinking it.
  Lineage(const Lineage& parent, const std::optional<Completed>& shrunk)
      : number_(NextNumber()), shrunk_(parent.shrunk_) {
    if (!shrunk) return;
    completed_ = shrunk->on_all;
    if (shrunk->here > shrunk->on_all) shrunk_.push_back({parent.number_, *shrunk});
  }

  uint64_t number() const { return number_; }  // of the communicator, in this process
  // If it was made by shrinking: how many calls of its parent completed on all ranks.
  std::optional<uint64_t> completed() const { return completed_; }
  // False if the call is to be repeated, because some rank has not completed it.
  bool Counts(const CallName& call) const {
    return std::none_of(shrunk_.begin(), shrunk_.end(), [&](const Shrunk& shrunk) {
      return shrunk.communicator == call.communicator && call.operation > shrunk.completed.on_all &&
             call.operation <= shrunk.completed.here;
    });
  }

 private:
  static uint64_t NextNumber() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  // A communicator some of whose calls do not count. Where it has gone on since, later ones do.
  struct Shrunk {
    uint64_t communicator = 0;
    Completed completed;
  };

  uint64_t number_;
  std::vector<Shrunk> shrunk_;
  std::optional<uint64_t> completed_;
};

}  // namespace inccl

#endif  // INCCL_BASE_LINEAGE_H_
