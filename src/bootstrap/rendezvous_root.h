// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of one communicator. It gathers a registration from each rank, checks that they
// agree, sends all of them the table of ranks and what they give each other, and
// sends "go" when every rank has all it needs. It
// reports a failure to every rank that is connected and to those that come later. The server
// (rendezvous_server.h) owns the connections, and calls it in its thread.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/frame.h"
#include "bootstrap/gathering.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_session.h"

namespace inccl::bootstrap {

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
  size_t expected_ranks() const { return expected_ranks_; }
  // Whether this process knows already that its rank has failed: it comes again.
  bool IsAgain(const Registration& registration) const;

 private:
  enum class Phase : uint8_t { kGathering, kJoining, kFailed, kComplete };
  bool waits() const { return phase_ == Phase::kGathering || phase_ == Phase::kJoining; }
  void OnBlob(Session* session, Bytes blob);
  void OnDone(Session* session);
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
  std::vector<std::optional<uint32_t>> answered_;  // by rank: the pid that received the failure
  uint32_t expected_ranks_ = 0;                    // the largest nranks that a rank has given
  Time deadline_ = kNever;                         // the earliest deadline of the ranks
  uint32_t timeout_ms_ = 0;                        // the length of that deadline
  Time dismiss_own_at_ = kNever;                   // ranks of this process, after a failure
  Time end_ = kNever;
  Time warn_at_ = kNever;  // when to log the missing ranks
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_ROOT_H_
