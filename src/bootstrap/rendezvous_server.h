// SPDX-License-Identifier: Apache-2.0
//
// Serves the rendezvous of this process: those of the unique ids that it has made, and those of its
// job if it is rank 0. One thread and few listeners serve them all: the communicator that a
// connection names selects the key. They exist while there is something to serve.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_SERVER_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_SERVER_H_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/messages.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// One authenticated connection of the rendezvous: frames that arrive, and what is still to be sent.

// A connection that has proven that it knows the secret.
struct Session {
  static constexpr uint32_t kMaxFromRank = 128 * 1024;  // body of a frame that a rank sends

  enum class State : uint8_t { kRegistering, kJoined, kDone, kClosing };

  UniqueFd fd;
  State state = State::kRegistering;
  Time deadline = 0;  // while registering or closing
  uint32_t rank = 0;  // from the handshake
  uint32_t pid = 0;   // from the registration
  FrameParser in{kMaxFromRank};
  std::optional<Aead> seal;
  std::vector<std::byte> out;
  std::optional<std::vector<std::byte>> blob;  // that waits for those of other ranks
  bool shut = false;

  // Reads what has arrived and passes the frames on until the session is closing. Returns false if
  // the other end has gone, or has sent what is no frame.
  bool Read(const std::function<void(const FrameParser::Frame&)>& on_frame);
  // Sends what the socket takes now; the rest stays in `out`.
  void Flush();
  void Send(MessageKind kind, Bytes body);
  // Sends the last message, then closes when the other end has closed.
  void Dismiss(MessageKind kind, Bytes body);
  void Close();
  bool member() const { return state == State::kJoined || state == State::kDone; }
  bool own() const { return pid == static_cast<uint32_t>(getpid()); }  // of this process
};

// The rendezvous of one communicator. It gathers a registration from each rank, checks that they
// agree, sends all of them the table of ranks and what they give each other, and
// sends "go" when every rank has all it needs. It
// reports a failure to every rank that is connected and to those that come later. The server
// (rendezvous_server.h) owns the connections, and calls it in its thread.
struct RootOptions {
  Time lifetime = 240 * kSecond;  // from the first registration on
  // The ranks come at once or never: late ones learn of a failure only for a short time.
  bool at_once = false;
  int nranks = 0;             // number of ranks; 0: the first registration says it
  Time patience = kPatience;  // then a log line names the missing ranks
};

// The answer to a rank that comes when its communicator exists already.
Status TooLate();

class Root {
 public:
  explicit Root(const RootOptions& options) : options_(options) {}

  // A rank has come. The session is this root's from now on; the root answers it in any case.
  void Register(Session* session, const Registration& registration);
  void OnFrame(Session* session, const FrameParser::Frame& frame);
  // The session has ended; its socket is closed.
  void OnGone(Session* session);
  // The session is about to be destroyed.
  void Remove(const Session* session) { std::erase(sessions_, session); }
  void Fail(const Status& status);

  void Expire(Time now);
  Time NextDeadline() const;
  bool Finished(Time now) const;
  bool complete() const { return phase_ == Phase::kComplete; }
  const Status& failure() const { return failure_; }
  size_t expected_ranks() const { return expected_ranks_; }
  // Whether this process knows already that its rank has failed: it comes again.
  bool IsAgain(const Registration& registration) const;

 private:
  enum class Phase : uint8_t { kGathering, kJoining, kFailed, kComplete };
  bool waits() const { return phase_ == Phase::kGathering || phase_ == Phase::kJoining; }
  void OnBlob(Session* session, Bytes blob);
  void OnDone(Session* session, Bytes body);
  void SayWhoIsMissing();
  void Dismiss(bool own, MessageKind kind, Bytes body);
  bool AllAnswered() const {
    return std::ranges::all_of(answered_, [](const auto& pid) { return pid.has_value(); });
  }
  void SendTable();
  // The ranks whose blob, or else whose end, is awaited.
  std::vector<int> Awaited() const;
  bool exchanges() const;  // some ranks have sent a blob, others have not

  const RootOptions options_;
  Phase phase_ = Phase::kGathering;
  Status failure_;
  std::vector<Session*> sessions_;
  Gathering gathering_;
  std::vector<MeasuredLink> links_;
  std::vector<std::byte> table_;                   // once it has been sent
  std::vector<std::optional<uint32_t>> answered_;  // by rank: the pid that received the failure
  uint32_t expected_ranks_ = 0;                    // the largest nranks that a rank has given
  Time deadline_ = kNever;                         // the earliest deadline of the ranks
  uint32_t timeout_ms_ = 0;                        // the length of that deadline
  Time dismiss_own_at_ = kNever;                   // ranks of this process, after a failure
  Time end_ = kNever;
  Time warn_at_ = kNever;  // when to log the missing ranks
};

// Ranks that know a key and meet here: once, by a unique id, or as a job, for one communicator
// after the other.
struct MeetingOptions {
  HandshakeTerms terms;  // terms.communicator names it
  bool of_job = false;
  RootOptions root;
  Time handshake_limit = 2 * kSecond;  // for a connection to authenticate and register
};

// Where ranks of this host come to without a secret: over unix sockets the kernel says who they
// are.
enum class Admission : uint8_t { kSameUser, kSameUserAndContainer };

// Thread-safe.
class RendezvousServer {
 public:
  static RendezvousServer& Get();  // of this process: a child of fork() has another one

  // Opens a meeting at free ports of these addresses; puts the ports into them, and drops addresses
  // at which it cannot listen.
  Status Open(const MeetingOptions& options, const ListenRules& rules,
              std::vector<UniqueIdAddress>* addresses);
  // Opens a meeting at a place, or opens it once more. *in_use: another process has the place.
  Status OpenAt(const MeetingOptions& options, const SocketAddress& place,
                const AddressFilter& sources, Admission admission, bool* in_use);
  // Ends what Open or OpenAt has begun. A unique id that has not served fails for ranks that have
  // come, with `why`, and late ones soon find nobody; a job's communicators that are being made go
  // on.
  void Close(const Nonce& communicator, const Status& why);

 private:
  struct Listener {
    Listener(UniqueFd socket, PendingConnections::Terms terms)
        : fd(std::move(socket)), pending(std::move(terms)) {}

    UniqueFd fd;
    PendingConnections pending;
    // Of a TCP listener with a free port: what it was made for, so that others use it, too.
    std::optional<UniqueIdAddress> address = {};
    std::optional<ListenRules> rules = {};
  };

  struct Meeting {
    MeetingOptions options;
    std::vector<std::shared_ptr<Listener>> listeners;
    int holders = 1;      // how often it is open
    Status failure = {};  // of a unique id: why it serves no longer, if not all ranks have joined
    // By the number of the communicator, the latest last.
    std::vector<std::pair<uint32_t, std::unique_ptr<Root>>> roots = {};

    // Where a rank registers.
    Root* RootFor(const Registration& registration);
    bool over() const { return holders == 0 && roots.empty(); }
  };

  // A connection, which belongs to a root once it has registered.
  struct Visitor {
    Session session;
    std::shared_ptr<Meeting> meeting;
    Root* root = nullptr;
  };

  RendezvousServer() = default;
  Status Start() INCCL_REQUIRES(mutex_);
  void Wake() INCCL_REQUIRES(mutex_);
  Meeting* Find(const Nonce& communicator) INCCL_REQUIRES(mutex_);
  TermsOf TermsOfMeetings();
  Status Add(const MeetingOptions& options, std::vector<std::shared_ptr<Listener>> listeners)
      INCCL_REQUIRES(mutex_);
  void Run();
  void Serve() INCCL_REQUIRES(mutex_);
  bool Expire(Time now) INCCL_REQUIRES(mutex_);
  Time NextDeadline() const INCCL_REQUIRES(mutex_);
  bool Poll() INCCL_REQUIRES(mutex_);
  void AcceptFrom(Listener* listener) INCCL_REQUIRES(mutex_);
  std::string Promote(const ServerHandshake& handshake, UniqueFd* fd) INCCL_REQUIRES(mutex_);
  void Register(Visitor* visitor, Bytes body) INCCL_REQUIRES(mutex_);

  Mutex mutex_;
  bool running_ INCCL_GUARDED_BY(mutex_) = false;
  UniqueFd wakeup_ INCCL_GUARDED_BY(mutex_);  // an eventfd
  std::vector<std::shared_ptr<Listener>> listeners_ INCCL_GUARDED_BY(mutex_);
  std::map<Nonce, std::shared_ptr<Meeting>> meetings_ INCCL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Visitor>> visitors_ INCCL_GUARDED_BY(mutex_);
  // By job, the numbers of communicators that all ranks have joined.
  std::map<Nonce, std::set<uint32_t>> complete_ INCCL_GUARDED_BY(mutex_);
  Time accept_after_ INCCL_GUARDED_BY(mutex_) = 0;
  LineLimit failed_accepts_ INCCL_GUARDED_BY(mutex_);
  int poll_failures_ INCCL_GUARDED_BY(mutex_) = 0;  // consecutive
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_SERVER_H_
