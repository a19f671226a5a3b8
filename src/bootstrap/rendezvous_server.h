// SPDX-License-Identifier: Apache-2.0
//
// Serves the rendezvous of this process: those of the unique ids that it has made, and those of its
// job if it is rank 0. One thread and few listeners serve them all: the communicator that a
// connection names selects the key. They exist while there is something to serve.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_SERVER_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_SERVER_H_

#include <atomic>
#include <cstdint>
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
#include "bootstrap/address_filter.h"
#include "bootstrap/handshake.h"
#include "bootstrap/listen_rules.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/rendezvous_root.h"
#include "bootstrap/rendezvous_session.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

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
  // come, and late ones soon find nobody; a job's communicators that are being made go on.
  void Close(const Nonce& communicator);

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
    int holders = 1;  // how often it is open
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
