// SPDX-License-Identifier: Apache-2.0
//
// The agreement of ccl_comm_shrink: the remaining ranks of a communicator agree on the members of
// the new one, over the control connections. Any number of ranks may die meanwhile.
//
// Every rank proposes a set of excluded ranks: those that the caller asks for, and those that it
// knows to be dead. Proposals only grow: a rank adds what it learns, and proposes again. When all
// ranks outside a set have proposed that set, it is agreed for this round. The lowest of them makes
// a unique id and sends it to the others, who join. Joining fails if one more rank dies. So each
// rank reports that it has joined, and the round is done only when all members have reported. Until
// then a rank that sees a death or a later round proposes anew. A rank whose round is done answers
// later proposals with kDone: all members have joined, and the asking rank keeps the communicator
// that it has joined.
//
// A rank that a member excludes ends with an error. So does a rank to which a member sends a
// malformed message: a proposal that excludes its sender, or a round that correct ranks never
// reach.
#ifndef INCCL_FAILURE_SHRINK_AGREEMENT_H_
#define INCCL_FAILURE_SHRINK_AGREEMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/unique_id.h"
#include "control/control.h"

namespace inccl {

// A set of ranks of a communicator of any size.

// Two sets that meet in |=, == or a message are of communicators of the same size.
class RankSet {
 public:
  RankSet() = default;  // of no ranks
  explicit RankSet(int nranks)
      : nranks_(nranks), words_((static_cast<size_t>(nranks) + kBits - 1) / kBits) {}

  int nranks() const { return nranks_; }
  bool Contains(int rank) const {
    return (words_[static_cast<size_t>(rank) / kBits] >> static_cast<size_t>(rank) % kBits & 1) !=
           0;
  }
  void Add(int rank) {
    words_[static_cast<size_t>(rank) / kBits] |= uint64_t{1} << static_cast<size_t>(rank) % kBits;
  }
  RankSet& operator|=(const RankSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  friend bool operator==(const RankSet&, const RankSet&) = default;

  // Writes ceil(nranks / 8) bytes; bit r % 8 of byte r / 8 stands for rank r.
  void Encode(ByteWriter* writer) const {
    for (size_t i = 0; i < Bytes(); ++i) {
      writer->U8(static_cast<uint8_t>(words_[i / 8] >> i % 8 * 8));
    }
  }
  // Reads such bytes into *this, whose size says how many there are. Returns false if there are
  // fewer, or if a bit stands for no rank; *this is then unspecified.
  bool Decode(ByteReader* reader) {
    words_.assign(words_.size(), 0);
    for (size_t i = 0; i < Bytes(); ++i) {
      uint8_t byte = 0;
      if (!reader->U8(&byte)) return false;
      words_[i / 8] |= uint64_t{byte} << i % 8 * 8;
    }
    const size_t used = static_cast<size_t>(nranks_) % kBits;
    return used == 0 || words_.back() >> used == 0;
  }

 private:
  static constexpr size_t kBits = 64;
  size_t Bytes() const { return (static_cast<size_t>(nranks_) + 7) / 8; }

  int nranks_ = 0;
  std::vector<uint64_t> words_;
};

// The unique ids that ranks send to the members of a split over the control connections, which are
// sealed between machines, and end to end where other ranks pass them on: ranks outside, and who
// reads the data connections, must not learn them.
class Invitations {
 public:
  explicit Invitations(int nranks) : received_(static_cast<size_t>(nranks)) {}
  void Attach(ControlPlane* control) { control_.store(control); }

  // `split` numbers the splits of the communicator from 1, equally on all ranks.
  void Send(int peer, uint64_t split, const UniqueId& id);
  // Waits for what `peer` sends in this split. kRemoteError: *failed has become true; kTimeout.
  Result<UniqueId> Await(int peer, uint64_t split, Time deadline, const std::atomic<bool>* failed);

  // The control thread calls these. OnMessage returns false if the message is malformed.
  static bool Owns(uint8_t kind) { return kind == kInvitation; }
  bool OnMessage(int peer, std::span<const std::byte> body);

 private:
  static constexpr uint8_t kInvitation = 20;

  struct Received {
    uint64_t split = 0;  // 0: none
    UniqueId id;
  };
  std::atomic<ControlPlane*> control_{nullptr};
  Mutex mutex_;
  CondVar changed_;
  std::vector<Received> received_ INCCL_GUARDED_BY(mutex_);  // by rank, the latest
};

class ShrinkAgreement {
 public:
  ShrinkAgreement(int rank, int nranks, std::vector<std::string> peer_names);
  void Attach(ControlPlane* control) { control_.store(control); }

  struct Outcome {
    std::vector<int> members;     // ascending, this rank among them
    uint64_t last_completed = 0;  // the least of all members' `completed`
    uint64_t round = 0;
  };
  struct Steps {
    std::function<Result<UniqueId>()> create_id;
    // Joins the members. On success it replaces the communicator that an earlier round has joined.
    // Returns soon after `cancelled` becomes true.
    std::function<Status(const UniqueId& id, const Outcome& outcome,
                         const std::atomic<bool>* cancelled)>
        join;
  };
  // `excluded` is a set of this communicator's ranks without this one. kInvalidArgument: another
  // thread is in this call. kInvalidUsage: a member excludes this rank. kInternalError: a member
  // sends a malformed message. kTimeout names the members that have not called. Other errors come
  // from Cancel or the steps.
  Result<Outcome> Agree(const RankSet& excluded, uint64_t completed, Time deadline,
                        const Steps& steps);
  // Any thread. The call in progress and every later one end soon, with `why`.
  void Cancel(const Status& why);

  // The control thread calls these.
  static bool Owns(uint8_t kind) { return kind >= kFirstKind && kind <= kLastKind; }
  // Returns false if the message is malformed.
  bool OnMessage(int peer, uint8_t kind, std::span<const std::byte> body);
  void OnPeerClosed(int peer);

 private:
  static constexpr uint8_t kFirstKind = 16, kLastKind = 19;
  enum Kind : uint8_t { kProposal = kFirstKind, kId, kJoined, kDone = kLastKind };
  // More rounds than correct ranks need: a call takes a few for each rank that dies.
  static constexpr uint64_t kMaxRound = uint64_t{1} << 48;

  struct Peer {
    explicit Peer(int nranks) : excluded(nranks), done_excluded(nranks) {}
    bool malformed = false;  // it has sent a malformed message
    bool proposes = false;
    uint64_t round = 0;  // of the latest proposal
    RankSet excluded;
    uint64_t completed = 0;
    uint64_t id_round = 0;  // 0: none
    UniqueId id;
    uint64_t joined_round = 0;
    uint64_t done_round = 0;
    RankSet done_excluded;
  };

  bool IsMember(int rank) const INCCL_REQUIRES(mutex_) { return !excluded_.Contains(rank); }
  template <typename Predicate>
  bool AllOthers(Predicate predicate) const INCCL_REQUIRES(mutex_) {  // other members only
    for (int peer = 0; peer < nranks_; ++peer) {
      if (peer != rank_ && IsMember(peer) && !predicate(peers_[static_cast<size_t>(peer)])) {
        return false;
      }
    }
    return true;
  }
  bool Proposes(const Peer& peer) const INCCL_REQUIRES(mutex_);  // as this rank does
  Status Verdict() const INCCL_REQUIRES(mutex_);                 // the error that ends the call in
                                                                 // any round
  // Adds deaths and proposals to `excluded_`. Returns true if the round is over and a new proposal
  // is due.
  bool Learn() INCCL_REQUIRES(mutex_);
  bool Read(int peer, uint8_t kind, std::span<const std::byte> body) INCCL_REQUIRES(mutex_);
  void Propose(bool active) INCCL_REQUIRES(mutex_);
  void SendRound(Kind kind, uint64_t round) INCCL_REQUIRES(mutex_);
  void SendDone(int peer) INCCL_REQUIRES(mutex_);  // peer -1: all others
  Status TimedOut(const char* what, const std::function<bool(const Peer&)>& has) const
      INCCL_REQUIRES(mutex_);
  // These release the mutex while they wait and while a step runs.
  Result<bool> WaitFor(Time deadline, const char* what, const std::function<bool(const Peer&)>& has)
      INCCL_REQUIRES(mutex_);
  Result<UniqueId> ObtainId(Time deadline, const Steps& steps, bool* over) INCCL_REQUIRES(mutex_);
  Result<Outcome> Run(Time deadline, const Steps& steps) INCCL_REQUIRES(mutex_);
  Outcome MakeOutcome() const INCCL_REQUIRES(mutex_);

  const int rank_, nranks_;
  const std::vector<std::string> peer_names_;
  std::atomic<ControlPlane*> control_{nullptr};
  // Taken after the control plane's dispatch_mutex_, before its other mutexes.
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Peer> peers_ INCCL_GUARDED_BY(mutex_);
  RankSet dead_ INCCL_GUARDED_BY(mutex_);
  Status cancel_ INCCL_GUARDED_BY(mutex_);  // OK: not cancelled
  bool active_ INCCL_GUARDED_BY(mutex_) = false;
  uint64_t round_ INCCL_GUARDED_BY(mutex_) = 0;        // continues from call to call
  uint64_t first_round_ INCCL_GUARDED_BY(mutex_) = 0;  // of this call
  RankSet excluded_ INCCL_GUARDED_BY(mutex_);
  uint64_t completed_ INCCL_GUARDED_BY(mutex_) = 0;
  // The round of this call that this rank has joined last; round 0: none.
  Outcome held_ INCCL_GUARDED_BY(mutex_);
  RankSet held_excluded_ INCCL_GUARDED_BY(mutex_);
  bool held_done_ INCCL_GUARDED_BY(mutex_) = false;   // a member has reported that all members have
                                                      // joined
  uint64_t done_round_ INCCL_GUARDED_BY(mutex_) = 0;  // of the last successful call
  RankSet done_excluded_ INCCL_GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};  // ends a join that cannot succeed any more
};

}  // namespace inccl

#endif  // INCCL_FAILURE_SHRINK_AGREEMENT_H_
