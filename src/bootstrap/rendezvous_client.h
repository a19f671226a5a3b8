// SPDX-License-Identifier: Apache-2.0
//
// A rank's side of the rendezvous. It blocks the calling thread, but not beyond the deadline.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/messages.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// Where ranks meet, and by which key.
struct RootTarget {
  std::vector<SocketAddress> addresses;  // tried in turn; the owner of a unix socket is checked
  HandshakeTerms terms;
  std::optional<PublicKey> server_key = {};  // of the rendezvous, if known
  uint32_t number = 0;                       // Registration::number
  bool secret_file = false;                  // the key holds the content of a secret file
  bool may_come_later = false;               // a missing listener is no error until the deadline
  bool same_container = false;  // the owner of a unix socket must run in the same one, too
  std::string advice = {};      // ends the error if nobody listens
  // If set, opens the rendezvous. Returns "" on success, else the obstacle; the client then sees
  // who listens, and calls it again later.
  std::function<Result<std::string>()> open = nullptr;
};

struct ClientOptions {
  int rank = 0, nranks = 1;
  Time deadline = kNever;
  int timeout_ms = 0;         // for messages
  Time patience = kPatience;  // then a log line reports the missing rendezvous
  Cancel cancelled = {};      // ends every wait within kCancelLag
  // If set: makes the body of kRegister once the connection `fd` exists. It follows the hello at
  // once, which saves a round trip.
  std::function<Result<std::vector<std::byte>>(int fd)> registration = nullptr;
};

class RendezvousClient {
 public:
  // Connects and authenticates, with retries where they may help. Errors: kTimeout, kInvalidUsage
  // (wrong secret or user), kRemoteError (the root has gone, and another process may have its
  // address), kSystemError.
  static Result<std::unique_ptr<RendezvousClient>> Connect(const RootTarget& target,
                                                           const ClientOptions& options);

  int fd() const { return fd_.get(); }
  Status Send(MessageKind kind, Bytes body);
  // Waits for a message of this kind and returns its body. Fails with the root's error (kFailed),
  // or if the root has gone or the deadline has passed.
  Result<std::vector<std::byte>> Await(MessageKind kind);
  // Call it after sending kFailed. Returns when the rendezvous has told all ranks, or at `until`. A
  // cancelled rank waits, too.
  void AwaitVerdict(Time until);
  // Gives `mine`, at most kMaxBlob bytes, to every rank and returns the blobs of all, by rank. All
  // ranks call it equally often.
  Result<Blobs> Exchange(Bytes mine);
  // For use while waiting for something else: fails if the root has reported an error or has gone,
  // or if the caller has cancelled.
  Status Check();
  void LimitTo(Time deadline) { options_.deadline = std::min(options_.deadline, deadline); }
  // The error that the root has reported; OK if none.
  const Status& verdict() const { return verdict_; }
  const std::string& name() const { return root_name_; }  // the root's address
  std::string rank_name() const {
    return fmt::format("rank {}/{}", options_.rank, options_.nranks);
  }
  // "rank 1/4: init: ..."
  Status Named(const Status& status) const;

  // Like bootstrap::WaitFor; also returns false when the caller has cancelled.
  static bool WaitFor(int fd, short events, Time until, const ClientOptions& options);

 private:
  static Status NamedBy(const ClientOptions& options, const Status& status);
  static Status CancelledBy(const ClientOptions& options);
  Status CheckCancelled() const { return CancelledBy(options_); }
  RendezvousClient(UniqueFd fd, StreamCipher cipher, std::string root_name,
                   const ClientOptions& options);

  // The next message, if one has arrived.
  Result<std::optional<FrameParser::Frame>> Receive();

  UniqueFd fd_;
  std::string root_name_;
  ClientOptions options_;
  Aead seal_;
  FrameParser in_;
  Status verdict_;
  // To addresses that have not answered. They stay open, since the rendezvous takes a rank for dead
  // whose connection ends before it has registered by another one.
  std::vector<UniqueFd> unanswered_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_CLIENT_H_
