// SPDX-License-Identifier: Apache-2.0
//
// How the ranks that are left of a communicator agree who they are, over its control connections:
// part of ccl_comm_shrink. Any number of ranks may die meanwhile.
//
// Every rank proposes a set of excluded ranks: what the caller asks for, and whoever it knows to be
// dead. Proposals only grow: a rank adds what it learns, and proposes again. When all ranks outside
// a set have proposed that set, it is agreed for this round; the lowest of them makes a unique id
// and sends it to the others, who join. Joining may fail because one more dies; so each says when
// it has joined, and only when all have, the round is done. Until then a rank that sees a death, or
// a later round, proposes anew. A rank whose round is done answers later proposals by saying so:
// then everybody else had joined as well, and the asking rank keeps what it has.
#ifndef INCCL_SURVIVORS_H_
#define INCCL_SURVIVORS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/bootstrap/unique_id.h"
#include "transport/control/control.h"

namespace inccl {

class Survivors {
 public:
  // A set of ranks, bit r for rank r.
  using Set = uint64_t;

  Survivors(int rank, int nranks, std::vector<std::string> peer_names);
  void Attach(ControlPlane* control) { control_.store(control); }

  struct Outcome {
    std::vector<int> members;     // ascending, this rank among them
    uint64_t last_completed = 0;  // of all members' `completed`, the least
    uint64_t round = 0;
  };
  struct Steps {
    std::function<Result<UniqueId>()> create_id;
    // Joins the members, and on success replaces what an earlier round has joined. Ends soon after
    // `cancelled` becomes true.
    std::function<Status(const UniqueId& id, const Outcome& outcome,
                         const std::atomic<bool>* cancelled)>
        join;
  };
  // One call at a time. kInvalidUsage: a member excludes this rank; kTimeout names the members that
  // have not called; else what the steps return.
  Result<Outcome> Agree(Set excluded, uint64_t completed, Time deadline, const Steps& steps);

  // From the control thread.
  static bool Owns(uint8_t kind) { return kind >= kFirstKind && kind <= kLastKind; }
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body);
  void OnPeerClosed(int peer);

 private:
  static constexpr uint8_t kFirstKind = 16, kLastKind = 19;
  enum Kind : uint8_t { kProposal = kFirstKind, kId, kJoined, kDone = kLastKind };

  struct Peer {
    bool proposes = false;
    uint64_t round = 0;  // of the latest proposal
    Set excluded = 0;
    uint64_t completed = 0;
    uint64_t id_round = 0;  // 0: none
    UniqueId id;
    uint64_t joined_round = 0;
    uint64_t done_round = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  static Set Bit(int rank) { return Set{1} << rank; }
  bool IsMember(int rank) const { return (excluded_ & Bit(rank)) == 0; }
  template <typename Predicate>
  bool AllOthers(Predicate predicate) const {  // that are members
    for (int peer = 0; peer < nranks_; ++peer) {
      if (peer != rank_ && IsMember(peer) && !predicate(peers_[static_cast<size_t>(peer)])) {
        return false;
      }
    }
    return true;
  }
  bool Agreed() const;
  int ExcludedBy() const;
  bool Learn();  // from deaths and proposals; true: the round is over, and a new proposal is due
  void Propose(bool active);
  void SendRound(Kind kind, int peer, uint64_t round);
  Result<bool> WaitFor(Lock* lock, Time deadline, const char* what,
                       const std::function<bool(const Peer&)>& has);
  Result<UniqueId> ObtainId(Lock* lock, Time deadline, const Steps& steps, bool* over);
  Result<Outcome> Run(Lock* lock, Time deadline, const Steps& steps);
  Outcome MakeOutcome() const;

  const int rank_, nranks_;
  const std::vector<std::string> peer_names_;
  std::atomic<ControlPlane*> control_{nullptr};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  Set dead_ = 0;
  bool active_ = false;
  uint64_t round_ = 0;  // goes on from call to call
  uint64_t done_round_ = 0;
  Set excluded_ = 0;
  uint64_t completed_ = 0;
  std::atomic<bool> cancelled_{false};  // joining is pointless
};

}  // namespace inccl

#endif  // INCCL_SURVIVORS_H_
