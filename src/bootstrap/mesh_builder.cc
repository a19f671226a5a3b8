// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/mesh_builder.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "bootstrap/fd_passing.h"
#include "bootstrap/gathering.h"
#include "bootstrap/namespaces.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kServerLimit = 2 * kSecond;
constexpr Time kClientLimit = 4 * kSecond;
constexpr Time kPause = 2 * kMillisecond;
constexpr size_t kMostAcceptsAtOnce = 64;
constexpr int kMostRejections = 3;

// The connection to one peer.
struct Link {
  enum class State : uint8_t {
    kAwaited,      // the peer connects to this rank
    kPausing,      // this rank connects again at `at`
    kConnecting,   // limited by `at`
    kHandshaking,  // limited by `at`
    kSwapping,     // exchanging descriptors
    kDone
  };
  State state = State::kAwaited;
  UniqueFd fd;
  Time at = 0;
  ClientHandshake handshake;
  FdReceiver receiver;
  bool sent = false, received = false;
  int rejections = 0;
};

class MeshBuilder {
 public:
  MeshBuilder(const MeshTerms& terms, UniqueFd listener, RendezvousClient* root)
      : terms_(terms),
        listener_(std::move(listener)),
        root_(root),
        links_(static_cast<size_t>(terms.nranks)),
        pending_({.name = fmt::format("rank {}/{}:", terms.rank, terms.nranks),
                  .handshake = &terms.handshake,
                  .server = static_cast<uint32_t>(terms.rank),
                  .same_uid_only = true,
                  .any_namespace = terms.any_namespace,
                  .limit = kServerLimit}) {
    pending_.ExpectRanks(links_.size());
  }

  Status Run();
  void MoveTo(std::vector<Peer>* peers);
  void MoveTo(std::vector<UniqueFd>* open);

 private:
  bool Done() const;
  Status StartLinks(Time now);
  Status Poll();
  Time NextDeadline() const;
  std::string Missing() const;
  Status Error(size_t peer, const Status& status) const;

  void AcceptAll();
  // Takes over the connection of a peer that this rank waits for, or returns why not.
  std::string Promote(const ServerHandshake& handshake, UniqueFd* fd);

  Status StartConnecting(size_t peer);
  Status Step(size_t peer);
  Status StepHandshake(size_t peer);
  Status Swap(size_t peer);
  void Pause(Link* link);

  const MeshTerms& terms_;
  UniqueFd listener_;
  RendezvousClient* const root_;
  std::vector<Link> links_;
  PendingConnections pending_;
};

Status MeshBuilder::Run() {
  for (size_t peer = 0; peer < static_cast<size_t>(terms_.rank); ++peer) {
    links_[peer].state = Link::State::kPausing;
  }
  while (!Done()) {
    if (Status status = root_->CheckCancelled(); !status.ok()) return status;
    const Time now = SystemClock().Now();
    if (now >= terms_.deadline) {
      return TimeoutError(
          fmt::format("no connection with {} within {} ms", Missing(), terms_.timeout_ms));
    }
    pending_.Expire(now);
    if (Status status = StartLinks(now); !status.ok()) return status;
    if (Done()) break;
    if (Status status = Poll(); !status.ok()) return status;
  }
  return Status::Ok();
}

void MeshBuilder::MoveTo(std::vector<Peer>* peers) {
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    (*peers)[peer].control = std::move(links_[peer].fd);
    (*peers)[peer].fds = links_[peer].receiver.Take();
  }
}

void MeshBuilder::MoveTo(std::vector<UniqueFd>* open) {
  open->push_back(std::move(listener_));
  for (Link& link : links_) open->push_back(std::move(link.fd));
  pending_.MoveTo(open);
}

bool MeshBuilder::Done() const {
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (static_cast<int>(peer) != terms_.rank && links_[peer].state != Link::State::kDone) {
      return false;
    }
  }
  return true;
}

std::string MeshBuilder::Missing() const {
  std::vector<int> missing;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (static_cast<int>(peer) != terms_.rank && links_[peer].state != Link::State::kDone) {
      missing.push_back(static_cast<int>(peer));
    }
  }
  return ListRanks(missing);
}

Status MeshBuilder::Error(size_t peer, const Status& status) const {
  return {status.code(), fmt::format("peer {}: {}", NameOf(terms_.ranks[peer]), status.message())};
}

// Advances the links whose time `at` has come.
Status MeshBuilder::StartLinks(Time now) {
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    Link& link = links_[peer];
    if (now < link.at) continue;
    Status status;
    if (link.state == Link::State::kPausing) status = StartConnecting(peer);
    if (link.state == Link::State::kConnecting || link.state == Link::State::kHandshaking) {
      if (now >= link.at) Pause(&link);
    }
    if (link.state == Link::State::kSwapping && !link.sent) status = Swap(peer);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Time MeshBuilder::NextDeadline() const {
  Time next = terms_.deadline;
  for (const Link& link : links_) {
    const bool timed = link.state == Link::State::kPausing ||
                       link.state == Link::State::kConnecting ||
                       link.state == Link::State::kHandshaking ||
                       (link.state == Link::State::kSwapping && !link.sent);
    if (timed) next = std::min(next, link.at);
  }
  return std::min(next, pending_.NextDeadline());
}

Status MeshBuilder::Poll() {
  std::vector<pollfd> fds;
  const auto watch = [&](int fd, short events) {
    fds.push_back({.fd = fd, .events = events, .revents = 0});
  };
  watch(root_->fd(), POLLIN);
  watch(listener_.get(), POLLIN);
  for (const Link& link : links_) {
    const bool idle = link.state == Link::State::kAwaited || link.state == Link::State::kPausing ||
                      link.state == Link::State::kDone;
    watch(idle ? -1 : link.fd.get(), link.state == Link::State::kConnecting ? POLLOUT : POLLIN);
  }
  pending_.AppendTo(&fds);
  const Time until = std::min(NextDeadline(), SystemClock().Now() + kCancelLag);
  if (PollUntil(fds, until) <= 0) return Status::Ok();

  if (fds[0].revents != 0) {
    if (Status status = root_->Check(); !status.ok()) return status;
  }
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (fds[2 + peer].revents == 0) continue;
    if (Status status = Step(peer); !status.ok()) return status;
  }
  pending_.Advance(
      fds.data() + 2 + links_.size(),
      [&](const ServerHandshake& handshake, UniqueFd* fd) { return Promote(handshake, fd); });
  if (fds[1].revents != 0) AcceptAll();
  return Status::Ok();
}

void MeshBuilder::AcceptAll() {
  for (size_t i = 0; i < std::max(kMostAcceptsAtOnce, links_.size()); ++i) {
    SocketAddress address;
    int error = 0;
    UniqueFd fd = Accept(listener_.get(), &address, &error);
    if (error == EAGAIN) return;
    if (error != 0) {
      // Other threads may free descriptors; do not spin until then.
      SleepUntil(SystemClock().Now() + kPause);
      return;
    }
    FAULT_POINT("mesh.after_accept");
    pending_.Add(std::move(fd), address);
  }
}

std::string MeshBuilder::Promote(const ServerHandshake& handshake, UniqueFd* fd) {
  const size_t peer = handshake.rank();
  if (peer >= links_.size() || handshake.nranks() != static_cast<uint32_t>(terms_.nranks) ||
      links_[peer].state != Link::State::kAwaited || static_cast<int>(peer) == terms_.rank) {
    return "no such rank is awaited";
  }
  const Bytes reply = handshake.reply();
  if (!WriteAll(fd->get(), reply)) return "it closed before it authenticated";
  links_[peer].fd = std::move(*fd);
  links_[peer].state = Link::State::kSwapping;  // at once, since `at` is over
  return "";
}

void MeshBuilder::Pause(Link* link) {
  link->fd.Reset();
  link->state = Link::State::kPausing;
  link->at = SystemClock().Now() + kPause;
}

Status MeshBuilder::StartConnecting(size_t peer) {
  Link& link = links_[peer];
  int error = 0;
  Result<UniqueFd> fd = Connect(SocketAddress::Unix(terms_.ranks[peer].mesh_name), &error);
  if (!fd.ok()) return Error(peer, fd.status());
  if (error == EAGAIN) {  // the peer's backlog is full
    Pause(&link);
    return Status::Ok();
  }
  if (error == ECONNREFUSED) {
    return Error(peer, RemoteError("does not listen any more (process died?)"));
  }
  if (error != 0) return Error(peer, SystemErrorErrno("connect", error));
  FAULT_POINT("mesh.after_connect");
  Nonce nonce;
  if (Status status = FillRandom(nonce); !status.ok()) return status;
  link.fd = *std::move(fd);
  link.state = Link::State::kConnecting;
  link.at = SystemClock().Now() + kClientLimit;
  link.handshake.Start(&terms_.handshake,
                       {.rank = static_cast<uint32_t>(terms_.rank),
                        .nranks = static_cast<uint32_t>(terms_.nranks),
                        .server = static_cast<uint32_t>(peer)},
                       nonce);
  return Status::Ok();
}

Status MeshBuilder::Step(size_t peer) {
  Link& link = links_[peer];
  if (link.state == Link::State::kConnecting) {
    if (const int error = PendingError(link.fd.get()); error != 0) {
      return Error(peer, SystemErrorErrno("connect", error));
    }
    const Result<PeerCredentials> owner = GetPeerCredentials(link.fd.get());
    if (!owner.ok()) return Error(peer, owner.status());
    if (owner->uid != geteuid()) {
      return Error(peer, InvalidUsage(fmt::format("its socket belongs to uid {}, not to uid {}",
                                                  owner->uid, geteuid())));
    }
    if (!terms_.any_namespace) {
      const Status status = CheckPeerNamespaces(link.fd.get());
      // The next attempt to connect, or the rendezvous, reports the peer's death.
      if (status.code() == Code::kRemoteError) {
        Pause(&link);
        return Status::Ok();
      }
      if (!status.ok())
        return Error(peer, InvalidUsage("its socket belongs to " + status.message()));
    }
    link.state = Link::State::kHandshaking;
    return Status::Ok();
  }
  if (link.state == Link::State::kHandshaking) return StepHandshake(peer);
  if (link.state == Link::State::kSwapping) return Swap(peer);
  return Status::Ok();
}

Status MeshBuilder::StepHandshake(size_t peer) {
  Link& link = links_[peer];
  std::array<std::byte, kHelloBytes> buffer;
  const IoResult got = ReadSome(link.fd.get(), std::span(buffer).first(link.handshake.wanted()));
  if (got.error == EAGAIN) return Status::Ok();
  if (got.error != 0 || got.closed) {
    // A busy peer has dropped the connection, or the peer died, which the next attempt shows.
    if (got.closed && link.handshake.state() == ClientHandshake::State::kReadingReply &&
        ++link.rejections == kMostRejections) {
      return Error(peer, InternalError("rejects the handshake"));
    }
    Pause(&link);
    return Status::Ok();
  }
  const ClientHandshake::State before = link.handshake.state();
  const ClientHandshake::State after = link.handshake.Feed(std::span(buffer).first(got.bytes));
  if (link.handshake.fault() == HandshakeFault::kCrypto) {
    return Error(peer, SystemError(Describe(link.handshake.fault())));
  }
  if (after == ClientHandshake::State::kFailed) {
    return Error(peer, InvalidUsage(fmt::format("its socket is not ours: {}",
                                                Describe(link.handshake.fault()))));
  }
  if (after == ClientHandshake::State::kReadingReply && before != after &&
      !WriteAll(link.fd.get(), link.handshake.hello())) {
    Pause(&link);
    return Status::Ok();
  }
  if (after != ClientHandshake::State::kDone) return Status::Ok();
  FAULT_POINT("mesh.after_handshake");
  link.state = Link::State::kSwapping;
  return Swap(peer);
}

Status MeshBuilder::Swap(size_t peer) {
  Link& link = links_[peer];
  if (!link.sent) {
    FAULT_POINT("mesh.before_swap");
    Result<bool> sent = SendFds(link.fd.get(), terms_.share_fds);
    if (!sent.ok()) return Error(peer, sent.status());
    link.sent = *sent;
    link.at = SystemClock().Now() + kPause;  // time of the next attempt
  }
  if (!link.received) {
    Result<bool> received = link.receiver.Receive(link.fd.get());
    if (!received.ok()) return Error(peer, received.status());
    link.received = *received;
  }
  if (link.sent && link.received) {
    link.state = Link::State::kDone;
    FAULT_POINT("mesh.after_swap");
  }
  return Status::Ok();
}

}  // namespace

Status BuildMesh(const MeshTerms& terms, UniqueFd listener, RendezvousClient* root,
                 std::vector<Peer>* peers, std::vector<UniqueFd>* open) {
  MeshBuilder builder(terms, std::move(listener), root);
  if (Status status = builder.Run(); !status.ok()) {
    builder.MoveTo(open);
    return status;
  }
  builder.MoveTo(peers);
  return Status::Ok();
}

}  // namespace inccl::bootstrap
