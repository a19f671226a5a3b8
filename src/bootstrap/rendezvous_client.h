// SPDX-License-Identifier: Apache-2.0
//
// A rank's side of the rendezvous. It blocks the calling thread, but not beyond the deadline.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/frame.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/messages.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

struct RootTarget {
  std::vector<SocketAddress> addresses;  // tried in turn
  bool same_uid_only = false;            // unix sockets: skip those of other users
  bool any_namespace = false;            // false with same_uid_only: refuse other containers, too
  bool may_come_later = false;           // a missing listener is no error until the deadline
  std::string advice = {};               // ends the error if nobody listens
  // If set, starts a rendezvous where none answers. Returns "" on success, else the obstacle; the
  // client then calls it again later.
  std::function<Result<std::string>()> make = nullptr;
};

struct ClientOptions {
  int rank = 0, nranks = 1;
  Time deadline = kNever;
  int timeout_ms = 0;                            // for messages
  Time patience = kPatience;                     // then a log line reports the missing rendezvous
  const std::atomic<bool>* cancelled = nullptr;  // true ends every wait within kCancelLag
};

class RendezvousClient {
 public:
  // Connects and authenticates, with retries where they may help. Errors: kTimeout, kInvalidUsage
  // (wrong secret or user), kRemoteError (the root has gone, and another process may have its
  // address), kSystemError.
  static Result<std::unique_ptr<RendezvousClient>> Connect(const RootTarget& target,
                                                           const HandshakeTerms& terms,
                                                           const ClientOptions& options);

  int fd() const { return fd_.get(); }
  Status Send(MessageKind kind, Bytes body);
  // Waits for a message of this kind and returns its body. Fails with the root's error (kFailed),
  // or if the root has gone or the deadline has passed.
  Result<std::vector<std::byte>> Await(MessageKind kind);
  // For use while waiting for something else: fails if the root has reported an error or has gone.
  Status Check();
  void LimitTo(Time deadline) { options_.deadline = std::min(options_.deadline, deadline); }
  // Fails once the caller has cancelled.
  Status CheckCancelled() const;
  // The error that the root has reported; OK if none.
  const Status& verdict() const { return verdict_; }
  const std::string& name() const { return root_name_; }  // the root's address
  // "rank 1/4: init: ..."
  Status Named(const Status& status) const;

  // Like bootstrap::WaitFor; also returns false when the caller has cancelled.
  static bool WaitFor(int fd, short events, Time until, const ClientOptions& options);

 private:
  static Status NamedBy(const ClientOptions& options, const Status& status);
  static Status CancelledBy(const ClientOptions& options);
  RendezvousClient(UniqueFd fd, std::optional<StreamCipher> cipher, std::string root_name,
                   const ClientOptions& options);

  // The next message, if one has arrived.
  Result<std::optional<FrameParser::Frame>> Receive();

  UniqueFd fd_;
  std::string root_name_;
  ClientOptions options_;
  std::optional<Aead> seal_;  // over TCP
  FrameParser in_;
  Status verdict_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_
