// SPDX-License-Identifier: Apache-2.0
//
// A rank's side of the rendezvous. Blocks the calling thread, never beyond its deadline.
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
  bool same_uid_only = false;            // unix: pass over those that another user listens at
  bool any_namespace = false;            // else, with same_uid_only, refuse another container's
  bool may_come_later = false;           // nobody listening is no error until the deadline
  // Not null: where no rendezvous answers, this makes one. What stands in its way for now, so that
  // it is to be called again; "": nothing, it has made one.
  std::function<Result<std::string>()> make = nullptr;
};

struct ClientOptions {
  int rank = 0, nranks = 1;
  Time deadline = kNever;
  int timeout_ms = 0;                            // for texts
  Time patience = kPatience;                     // before a log line says that nobody listens
  const std::atomic<bool>* cancelled = nullptr;  // true ends every wait within kCancelLag
};
inline constexpr Time kCancelLag = 50 * kMillisecond;

class RendezvousClient {
 public:
  // Connects and authenticates, again and again where that may help. kTimeout, kInvalidUsage (wrong
  // secret, wrong user), kRemoteError (root gone), kSystemError.
  static Result<std::unique_ptr<RendezvousClient>> Connect(const RootTarget& target,
                                                           const HandshakeTerms& terms,
                                                           const ClientOptions& options);

  int fd() const { return fd_.get(); }
  Status Send(MessageKind kind, Bytes body);
  // Waits for a message of this kind and returns its body. The error is what the root says
  // (kFailed), that it has gone, or that time is up.
  Result<std::vector<std::byte>> Await(MessageKind kind);
  // While waiting for something else: an error if the root has one, or has gone.
  Status Check();
  void LimitTo(Time deadline) { options_.deadline = std::min(options_.deadline, deadline); }
  // An error once the caller does not want to join any more.
  Status CheckCancelled() const;
  // What the root said has gone wrong, OK if nothing.
  const Status& verdict() const { return verdict_; }
  const std::string& name() const { return root_name_; }  // where it is
  // "rank 1/4: init: ..."
  Status Named(const Status& status) const;

 private:
  RendezvousClient(UniqueFd fd, std::string root_name, const ClientOptions& options)
      : fd_(std::move(fd)), root_name_(std::move(root_name)), options_(options) {}

  // The next message, if one is there.
  Result<std::optional<FrameParser::Frame>> Receive();

  UniqueFd fd_;
  std::string root_name_;
  ClientOptions options_;
  FrameParser in_;
  Status verdict_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_
