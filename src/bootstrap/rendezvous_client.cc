// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "bootstrap/host.h"
#include "bootstrap/pending_connections.h"

namespace inccl::bootstrap {
namespace {

// Extra time after the deadline, in which the root reports which ranks were missing.
constexpr Time kAnswerGrace = kSecond;

// Of a frame of the root: a record and a blob of each rank, at least that of an error.
uint32_t MostBody(int nranks) {
  constexpr uint32_t kMostOfRank = 2 * kMaxBlob;
  return kMaxErrorText + kMostOfRank * static_cast<uint32_t>(nranks);
}

// Returns kTimeout if the rendezvous takes nothing until the deadline or the rank is cancelled,
// kRemoteError if it has closed the connection, and kSystemError if libcrypto fails.
Status SendFrame(int fd, MessageKind kind, Bytes body, Aead* seal, const ClientOptions& options) {
  std::vector<std::byte> frame;
  if (!AppendFrame(static_cast<uint8_t>(kind), body, &frame, seal)) {
    return SystemError("libcrypto cannot seal a message");
  }
  Bytes rest = frame;
  while (!rest.empty()) {
    const IoResult sent = WriteSome(fd, rest);
    rest = rest.subspan(sent.bytes);
    if (sent.error == EAGAIN) {
      if (RendezvousClient::WaitFor(fd, POLLOUT, options.deadline, options)) continue;
      return TimeoutError("it takes nothing");
    }
    if (sent.error != 0) return RemoteError("it has closed the connection");
  }
  return Status::Ok();
}

}  // namespace

bool RendezvousClient::WaitFor(int fd, short events, Time until, const ClientOptions& options) {
  while (options.cancelled.possible() && !options.cancelled.requested()) {
    const Time next = std::min(until, SystemClock().Now() + kCancelLag);
    if (bootstrap::WaitFor(fd, events, next)) return true;
    if (next == until) return false;
  }
  return !options.cancelled.possible() && bootstrap::WaitFor(fd, events, until);
}

Status RendezvousClient::NamedBy(const ClientOptions& options, const Status& status) {
  const std::string name = fmt::format("rank {}/{}: init: ", options.rank, options.nranks);
  if (status.message().starts_with(name)) return status;
  return {status.code(), name + status.message()};
}

Status RendezvousClient::CancelledBy(const ClientOptions& options) {
  const Status cancelled = options.cancelled.Check();
  return cancelled.ok() ? cancelled : NamedBy(options, cancelled);
}

RendezvousClient::RendezvousClient(UniqueFd fd, StreamCipher cipher, std::string root_name,
                                   const ClientOptions& options)
    : fd_(std::move(fd)),
      root_name_(std::move(root_name)),
      options_(options),
      seal_(std::move(cipher.seal)),
      in_(MostBody(options.nranks)) {
  in_.Protect(std::move(cipher.open));
}

Status RendezvousClient::Named(const Status& status) const { return NamedBy(options_, status); }

Status RendezvousClient::Send(MessageKind kind, Bytes body) {
  const Status sent = SendFrame(fd_.get(), kind, body, &seal_, options_);
  if (sent.code() == Code::kRemoteError) return Status::Ok();  // Await reports the error
  if (sent.code() != Code::kTimeout) return sent.ok() ? sent : Named(sent);
  if (Status status = CheckCancelled(); !status.ok()) return status;
  return Named(TimeoutError(fmt::format("the rendezvous at {} takes nothing", root_name_)));
}

Result<std::optional<FrameParser::Frame>> RendezvousClient::Receive() {
  std::array<std::byte, 16384> buffer;
  while (true) {
    FrameParser::Frame frame;
    const FrameParser::Next next = in_.Pop(&frame);
    if (next == FrameParser::Next::kFrame) {
      if (frame.kind == static_cast<uint8_t>(MessageKind::kFailed)) {
        verdict_ = Named(DecodeError(frame.body));
        return verdict_;
      }
      return std::optional(frame);
    }
    if (next == FrameParser::Next::kMalformed) {
      return Named(InternalError(fmt::format("malformed message from {}", root_name_)));
    }
    const IoResult got = ReadSome(fd_.get(), buffer);
    if (got.error == EAGAIN) return std::optional<FrameParser::Frame>();
    if (got.error != 0 || got.closed) {
      return Named(RemoteError(fmt::format(
          "the rendezvous at {} closed the connection (did the process that runs it end?){}",
          root_name_, got.error != 0 ? ": " + SocketErrorText(got.error) : "")));
    }
    in_.Append(std::span(buffer).first(got.bytes));
  }
}

Result<std::vector<std::byte>> RendezvousClient::Await(MessageKind kind) {
  const Time until =
      options_.deadline > kNever - kAnswerGrace ? kNever : options_.deadline + kAnswerGrace;
  while (true) {
    Result<std::optional<FrameParser::Frame>> frame = Receive();
    if (!frame.ok()) return frame.status();
    if (frame->has_value()) {
      if ((*frame)->kind != static_cast<uint8_t>(kind)) {
        return Named(InternalError(
            fmt::format("unexpected message of kind {} from {}", (*frame)->kind, root_name_)));
      }
      return std::vector<std::byte>((*frame)->body.begin(), (*frame)->body.end());
    }
    if (Status status = CheckCancelled(); !status.ok()) {
      // The others learn why this rank leaves, and do not take it for dead.
      (void)Send(MessageKind::kFailed, EncodeError(status));
      return status;
    }
    const Time now = SystemClock().Now();
    const Time next = !options_.cancelled.possible() ? until : std::min(until, now + kCancelLag);
    if (!bootstrap::WaitFor(fd_.get(), POLLIN, next) && next == until) {
      return Named(TimeoutError(fmt::format("the rendezvous at {} did not answer within {} ms",
                                            root_name_, options_.timeout_ms)));
    }
  }
}

void RendezvousClient::AwaitVerdict(Time until) {
  while (Receive().ok() && bootstrap::WaitFor(fd_.get(), POLLIN, until)) {
  }
}

Result<Blobs> RendezvousClient::Exchange(Bytes mine) {
  if (mine.size() > kMaxBlob) {
    return Named(
        InvalidArgument(fmt::format("blob of {} bytes, at most {}", mine.size(), kMaxBlob)));
  }
  if (Status status = Send(MessageKind::kBlob, mine); !status.ok()) return status;
  const Result<std::vector<std::byte>> body = Await(MessageKind::kBlobs);
  if (!body.ok()) return body.status();
  Result<Blobs> blobs = DecodeBlobs(*body, static_cast<uint32_t>(options_.nranks));
  return blobs.ok() ? std::move(blobs) : Result<Blobs>(Named(blobs.status()));
}

Status RendezvousClient::Check() {
  if (Status status = CheckCancelled(); !status.ok()) return status;
  Result<std::optional<FrameParser::Frame>> frame = Receive();
  if (!frame.ok()) return frame.status();
  if (frame->has_value()) {
    return Named(InternalError(
        fmt::format("unexpected message of kind {} from {}", (*frame)->kind, root_name_)));
  }
  return Status::Ok();
}

// How a rank finds the rendezvous.

namespace {

// Longer than the root's own limit, so that the client does not give up before a slow root does.
constexpr Time kAttemptLimit = 4 * kSecond;
constexpr Time kFirstPause = kMillisecond;
constexpr Time kLongestPause = 50 * kMillisecond;
constexpr int kMostRootRejections = 3;  // a root under attack may reject a correct client
constexpr int kMostAbsences = 5;        // attempts without a listener where one must exist

// How one attempt to connect and authenticate ended.
struct Attempt {
  enum class Outcome : uint8_t {
    kAuthenticated,
    kAbsent,    // no process listens
    kRejected,  // the root closed the connection after the hello
    kBroken,    // another attempt may succeed
    kHopeless,
  };
  Outcome outcome = Outcome::kBroken;
  UniqueFd fd;  // when kAuthenticated, and of a rendezvous that may count this rank
  std::optional<StreamCipher> cipher;
  std::string why;
  Status status;  // when kHopeless
};

Attempt Broken(std::string why) {
  Attempt attempt;
  attempt.why = std::move(why);
  return attempt;
}

Attempt Hopeless(Status status) {
  Attempt attempt;
  attempt.outcome = Attempt::Outcome::kHopeless;
  attempt.status = std::move(status);
  return attempt;
}

// A unique id says itself where its rendezvous is, and which key that has, but for a secret file.
bool HasTheKey(const RootTarget& target) { return !target.may_come_later && !target.secret_file; }

// The address has come to another process.
Status NotOfTheId(const std::string& where, const std::string& why) {
  return RemoteError(fmt::format(
      "the rendezvous at {} is not that of the id ({}): the process that made the id has ended, or "
      "the id has served already (one id, one communicator)",
      where, why));
}

Status WhyNot(HandshakeFault fault, const std::string& where, const RootTarget& target) {
  if (fault == HandshakeFault::kCrypto) return SystemError(Describe(fault));
  if (HasTheKey(target) && fault != HandshakeFault::kVersion) {
    return NotOfTheId(where, Describe(fault));
  }
  return InvalidUsage(fmt::format("the rendezvous at {} is not ours: {}", where, Describe(fault)));
}

// Sends what the client's state begins with: its ask, or its hello and the registration. *cipher is
// set with the hello.
std::optional<Attempt> SendFirst(int fd, const ClientHandshake& handshake,
                                 const ClientOptions& options,
                                 std::optional<StreamCipher>* cipher) {
  if (!WriteAll(fd, handshake.to_send())) {
    return Broken("it closed the connection during authentication");
  }
  if (handshake.state() != ClientHandshake::State::kReadingReply) return std::nullopt;
  FAULT_POINT("bootstrap.after_authentication");
  Result<ConnectionKeys> keys = handshake.Keys();
  if (!keys.ok()) return Hopeless(keys.status());
  Result<StreamCipher> made = StreamCipher::Create(keys->from_client, keys->from_server);
  if (!made.ok()) return Hopeless(made.status());
  *cipher = *std::move(made);
  if (!options.registration) return std::nullopt;
  const Result<std::vector<std::byte>> body = options.registration(fd);
  if (!body.ok()) return Hopeless(body.status());
  const Status sent = SendFrame(fd, MessageKind::kRegister, *body, &(*cipher)->seal, options);
  if (sent.code() == Code::kSystemError) return Hopeless(sent);
  if (!sent.ok()) return Broken(sent.message());
  return std::nullopt;
}

Attempt Authenticate(UniqueFd fd, const std::string& where, const RootTarget& target,
                     const ClientOptions& options, Time until) {
  Nonce nonce;
  if (Status status = FillRandom(nonce); !status.ok()) return Hopeless(status);
  ClientHandshake handshake;
  handshake.Start(&target.terms,
                  {.rank = static_cast<uint32_t>(options.rank),
                   .nranks = static_cast<uint32_t>(options.nranks),
                   .server_key = target.server_key},
                  nonce);
  std::array<std::byte, kGreetingBytes> buffer;
  std::optional<StreamCipher> cipher;
  for (bool begins = true; handshake.state() != ClientHandshake::State::kDone;) {
    const ClientHandshake::State before = handshake.state();
    if (before == ClientHandshake::State::kFailed) {
      return Hopeless(WhyNot(handshake.fault(), where, target));
    }
    if (begins) {
      std::optional<Attempt> ended = SendFirst(fd.get(), handshake, options, &cipher);
      if (ended) return *std::move(ended);
      // The rendezvous may count this rank from now on, so this rank waits for it. But of several
      // addresses this one may be that of something else, which never answers.
      const bool alone = target.addresses.size() == 1;
      if (cipher && options.registration && alone) until = options.deadline;
    }
    if (!RendezvousClient::WaitFor(fd.get(), POLLIN, until, options)) {
      if (cipher && options.cancelled.requested()) {  // the rendezvous may have counted this rank
        (void)SendFrame(fd.get(), MessageKind::kFailed, EncodeError(options.cancelled.Check()),
                        &cipher->seal, options);
      }
      Attempt attempt = Broken("it does not answer");
      attempt.fd = std::move(fd);
      return attempt;
    }
    const IoResult got = ReadSome(fd.get(), std::span(buffer).first(handshake.wanted()));
    begins = false;
    if (got.error == EAGAIN) continue;
    if (got.error != 0) return Broken(SocketErrorText(got.error));
    if (got.closed) {
      Attempt attempt = Broken("it closed the connection during authentication");
      if (before == ClientHandshake::State::kReadingReply) {
        attempt.outcome = Attempt::Outcome::kRejected;
      }
      return attempt;
    }
    begins = handshake.Feed(std::span(buffer).first(got.bytes)) != before;
  }
  Attempt attempt;
  attempt.outcome = Attempt::Outcome::kAuthenticated;
  attempt.fd = std::move(fd);
  attempt.cipher = std::move(cipher);
  return attempt;
}

// Of a unix socket: whether the process that listens may be ours. An error of kRemoteError says
// that it has ended.
Status CheckOwner(int fd, const std::string& where, bool same_container) {
  const Result<PeerCredentials> peer = GetPeerCredentials(fd);
  if (!peer.ok()) return peer.status();
  if (peer->uid != geteuid()) {
    return InvalidUsage(fmt::format(
        "the rendezvous at {} belongs to process {} of uid {}, not to uid {}: another user has "
        "taken its name; another INCCL_JOB, equal on all ranks, gives another one",
        where, peer->pid, peer->uid, geteuid()));
  }
  if (!same_container) return Status::Ok();
  Status status = CheckPeerNamespaces(fd);
  if (status.ok() || status.code() == Code::kRemoteError) return status;
  return InvalidUsage(
      fmt::format("the rendezvous at {} belongs to {}; ranks in several containers need "
                  "INCCL_SECRET_FILE",
                  where, status.message()));
}

Attempt TryOnce(const SocketAddress& address, const RootTarget& target,
                const ClientOptions& options) {
  const std::string where = address.ToString();
  const Time limit = LimitFor(kAttemptLimit, static_cast<size_t>(options.nranks));
  const Time until = std::min(options.deadline, SystemClock().Now() + limit);
  int error = 0;
  Result<UniqueFd> fd = Connect(address, &error);
  if (!fd.ok()) return Hopeless(fd.status());
  if (error == 0) {
    if (!RendezvousClient::WaitFor(fd->get(), POLLOUT, until, options))
      return Broken("it does not answer");
    error = PendingError(fd->get());
  }
  if (error != 0) {
    Attempt attempt = Broken(SocketErrorText(error));
    if (error == ECONNREFUSED) attempt.outcome = Attempt::Outcome::kAbsent;
    return attempt;
  }
  FAULT_POINT("bootstrap.after_connect");
  if (address.is_unix()) {
    const Status owner = CheckOwner(fd->get(), where, target.same_container);
    if (owner.code() == Code::kRemoteError) return Broken(owner.message());
    if (!owner.ok()) return Hopeless(owner);
  }
  return Authenticate(*std::move(fd), where, target, options, until);
}

// The error if another attempt is useless; else OK.
Status GiveUp(const RootTarget& target, const std::string& where, const Attempt& last,
              int rejections, int absences) {
  if (last.outcome == Attempt::Outcome::kHopeless) return last.status;
  // A rendezvous of another job may be about to end, which leaves its place to this one's.
  if (rejections >= kMostRootRejections && target.open == nullptr) {
    if (HasTheKey(target)) return NotOfTheId(where, "it rejects this rank");
    return InvalidUsage(
        fmt::format("the rendezvous at {} rejects this rank: the ids, the jobs or the secret files "
                    "differ (INCCL_SECRET_FILE is {} on this rank)",
                    where, target.secret_file ? "set" : "not set"));
  }
  if (absences >= kMostAbsences && !target.may_come_later) {
    return RemoteError(fmt::format(
        "there is no rendezvous at {}: the process that made the id has ended or is on another "
        "host, or the id has served already (one id, one communicator){}",
        where, target.advice));
  }
  return Status::Ok();
}

// One attempt at each address.
struct Round {
  Attempt last;  // the one that authenticated, else the last that reached a listener
  std::string where;
  int rejections = 0;
  bool all_absent = true;
};

// *unanswered: RendezvousClient::unanswered_.
Round TryAll(const RootTarget& target, const ClientOptions& options,
             std::vector<UniqueFd>* unanswered) {
  Round round;
  for (const SocketAddress& address : target.addresses) {
    Attempt attempt = TryOnce(address, target, options);
    if (attempt.outcome == Attempt::Outcome::kRejected) ++round.rejections;
    if (attempt.outcome == Attempt::Outcome::kBroken && attempt.fd.valid()) {
      unanswered->push_back(std::move(attempt.fd));
    }
    if (attempt.outcome == Attempt::Outcome::kAbsent && !round.last.why.empty()) continue;
    if (attempt.outcome != Attempt::Outcome::kAbsent) round.all_absent = false;
    round.last = std::move(attempt);
    round.where = address.ToString();
    if (round.last.outcome == Attempt::Outcome::kAuthenticated ||
        round.last.outcome == Attempt::Outcome::kHopeless) {
      break;
    }
  }
  return round;
}

// Says why no rendezvous has been found so far.
std::string WhyNone(const RootTarget& target, const Round& round, const std::string& obstacle) {
  if (!obstacle.empty()) {
    return fmt::format("{}; this rank cannot listen there: {}; another program has the place",
                       round.last.why, obstacle);
  }
  if (!round.all_absent || !target.may_come_later) return round.last.why;
  return round.last.why + "; has rank 0 been started, on this host?";
}

}  // namespace

Result<std::unique_ptr<RendezvousClient>> RendezvousClient::Connect(const RootTarget& target,
                                                                    const ClientOptions& options) {
  std::string where;
  for (const SocketAddress& address : target.addresses) {
    where += (where.empty() ? "" : ", ") + address.ToString();
  }
  if (where.empty()) return NamedBy(options, InvalidArgument("id: it holds no address"));
  int rejections = 0, absences = 0;
  Time pause = kFirstPause;
  const Time start = SystemClock().Now();
  bool opened = target.open == nullptr, warned = false;
  std::string obstacle;
  std::vector<UniqueFd> unanswered;
  while (true) {
    if (Status status = CancelledBy(options); !status.ok()) return status;
    if (!opened) {
      const Result<std::string> outcome = target.open();
      if (!outcome.ok()) return NamedBy(options, outcome.status());
      obstacle = *outcome;
      opened = obstacle.empty();
    }
    Round round = TryAll(target, options, &unanswered);
    if (round.last.outcome == Attempt::Outcome::kAuthenticated) {
      std::unique_ptr<RendezvousClient> client(new RendezvousClient(
          std::move(round.last.fd), *std::move(round.last.cipher), round.where, options));
      client->unanswered_ = std::move(unanswered);
      return client;
    }
    rejections += round.rejections;
    if (round.all_absent) ++absences;
    if (Status end = GiveUp(target, where, round.last, rejections, absences); !end.ok()) {
      return NamedBy(options, end);
    }
    const Time now = SystemClock().Now();
    if (now >= options.deadline) {
      return NamedBy(
          options, TimeoutError(fmt::format("no rendezvous at {} within {} ms: {}", where,
                                            options.timeout_ms, WhyNone(target, round, obstacle))));
    }
    if (!warned && now - start >= options.patience) {
      warned = true;
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
          "rank {}/{}: init: still no rendezvous at {}, after {} ms: {}; the limit is {} ms",
          options.rank, options.nranks, where, options.patience / kMillisecond,
          WhyNone(target, round, obstacle), options.timeout_ms);
    }
    SleepUntil(std::min(options.deadline, now + pause));
    pause = std::min(kLongestPause, 2 * pause);
  }
}

}  // namespace inccl::bootstrap
