// SPDX-License-Identifier: Apache-2.0
//
// Checks whether the ranks that have registered so far fit into one communicator. Does no I/O.
#ifndef INCCL_BOOTSTRAP_GATHERING_H_
#define INCCL_BOOTSTRAP_GATHERING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/messages.h"

namespace inccl::bootstrap {

// The wait after which a log line names the missing ranks.
inline constexpr Time kPatience = 5 * kSecond;

// "0@host:4711"
std::string NameOf(const RankRecord& record);
// "rank 2", "ranks 2, 3", "ranks 2, 3, 5 and 17 more"
std::string ListRanks(const std::vector<int>& ranks);

// "rank 1 is claimed twice: first by 1@host:4711, then by 1@host:4712"
std::string ClaimedTwice(const RankRecord& first, const RankRecord& second);

class Gathering {
 public:
  enum class Verdict : uint8_t {
    kJoined,
    // Joined; the one that had this rank before fails: a member keeps its rank, and a rank that
    // comes again keeps its own from a copy of what it has sent.
    kReplaces,
    kRefused,  // only this registration fails: a duplicate
    kBroken,   // all ranks fail: this registration does not fit the earlier ones
  };
  // *why is set unless kJoined. Of ranks that join a communicator which grows, none can take the
  // place of a member, whoever comes first.
  Verdict Add(const Registration& registration, Status* why);

  int nranks() const { return static_cast<int>(ranks_.size()); }  // 0 before the first Add
  bool complete() const {
    return joined_ > 0 && joined_ == ranks_.size() && members_joined_ == members_;
  }
  // "rank 2", or "a member" where all ranks are taken, but one by who is none.
  std::string Missing() const;
  const RankRecord& record(int rank) const { return ranks_[static_cast<size_t>(rank)]->record; }
  const RankRecord* Find(uint32_t rank) const;  // nullptr: not registered yet
  std::vector<RankRecord> records() const;

 private:
  Status CheckAgainst(const Registration& first, const Registration& other) const;

  std::vector<std::optional<Registration>> ranks_;
  std::optional<uint32_t> first_;
  size_t joined_ = 0;
  uint32_t members_ = 0, members_joined_ = 0;  // of a communicator that grows
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_GATHERING_H_
