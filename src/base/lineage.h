// SPDX-License-Identifier: Apache-2.0
//
// Which calls of former communicators count. A residual outlives communicators, each of which
// numbers its calls from 1. When a rank dies, the last call may have completed on some ranks only;
// the ranks that are left repeat it, so those who had completed it take it back.
#ifndef INCCL_BASE_LINEAGE_H_
#define INCCL_BASE_LINEAGE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace inccl {

// A call, for who keeps what it has changed. operation 0: none.
struct CallName {
  uint64_t communicator = 0;  // Lineage::number
  uint64_t operation = 0;
};

// The communicators from which one has been made, as far as it knows which of their calls count.
// Immutable.
class Lineage {
 public:
  Lineage() : number_(NextNumber()) {}  // of a communicator that is made from no other
  // Of one that is made from `parent`. `completed`: by shrinking it, after so many of its calls.
  explicit Lineage(const Lineage& parent, std::optional<uint64_t> completed)
      : number_(NextNumber()), shrunk_(parent.shrunk_), completed_(completed) {
    if (completed) shrunk_.push_back({parent.number_, *completed});
  }

  uint64_t number() const { return number_; }  // of the communicator, in this process
  // If it was made by shrinking: how many calls of its parent completed on all ranks.
  std::optional<uint64_t> completed() const { return completed_; }
  // False if the call is to be repeated, because some rank has not completed it.
  bool Counts(const CallName& call) const {
    for (const CallName& last : shrunk_) {
      if (last.communicator == call.communicator) return call.operation <= last.operation;
    }
    return true;
  }

 private:
  static uint64_t NextNumber() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  uint64_t number_;
  std::vector<CallName> shrunk_;  // the last call that counts, of each that was shrunk
  std::optional<uint64_t> completed_;
};

}  // namespace inccl

#endif  // INCCL_BASE_LINEAGE_H_
