// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/pending_connections.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "bootstrap/host.h"
#include "bootstrap/mesh.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kLeastTotal = 256, kLeastPerProcess = 16;
constexpr size_t kRanksPerLimit = 32;

size_t QuarterOfDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeastTotal;
  return std::max<size_t>(kLeastPerProcess, limit.rlim_cur / 4);
}

}  // namespace

uint64_t Source::Key() const {
  uint64_t key = 0;
  if (address.is_unix()) {
    key = uint64_t{peer.uid} << 32 | static_cast<uint32_t>(peer.pid);
  } else if (address.storage.ss_family == AF_INET6) {
    std::memcpy(&key, &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr,
                sizeof key);
  } else {
    key = reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr;
  }
  return key;
}

std::string Source::ToString() const {
  if (!address.is_unix()) return address.ToString();
  return fmt::format("process {} of uid {}", peer.pid, peer.uid);
}

Budget BudgetFor(size_t ranks, bool unix_sockets) {
  const size_t total = std::min(std::max(kLeastTotal, 4 * ranks), QuarterOfDescriptors());
  const size_t per_source = unix_sockets ? std::max(kLeastPerProcess, 2 * ranks) : total / 2;
  return {.total = total, .per_source = std::min(total, per_source)};
}

Time LimitFor(Time limit, size_t ranks) {
  return limit * static_cast<Time>(std::max<size_t>(1, ranks / kRanksPerLimit));
}

size_t MakesRoom(std::span<const uint64_t> pending, uint64_t source, const Budget& budget,
                 uint64_t random) {
  const auto of_source = static_cast<size_t>(std::count(pending.begin(), pending.end(), source));
  if (of_source < budget.per_source) {
    return pending.size() < budget.total ? pending.size() : random % pending.size();
  }
  size_t skip = random % of_source;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i] == source && skip-- == 0) return i;
  }
  return pending.size();
}

bool PendingConnections::MayJoin(int fd, Source* source) {
  const Result<PeerCredentials> peer = GetPeerCredentials(fd);
  if (peer.ok()) source->peer = *peer;
  if (!peer.ok() || peer->uid != geteuid()) {
    Complain(*source, "it belongs to another user");
    return false;
  }
  if (!terms_.same_container) return true;
  const Status status = CheckPeerNamespaces(fd);
  if (!status.ok()) Complain(*source, fmt::format("it belongs to {}", status.message()));
  return status.ok();
}

void PendingConnections::MakeRoomFor(const Source& source) {
  uint64_t random = 0;
  if (!FillRandom(std::as_writable_bytes(std::span(&random, 1))).ok()) return;
  std::vector<uint64_t> sources;
  for (const Pending& pending : pending_) sources.push_back(pending.source.Key());
  const size_t victim = MakesRoom(sources, source.Key(), budget_, random);
  if (victim == pending_.size()) return;
  Complain(pending_[victim].source, "it made room for newer ones before it authenticated");
  ResetConnection(std::move(pending_[victim].fd));
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(victim));
}

void PendingConnections::Add(UniqueFd fd, const SocketAddress& address) {
  Source source{.address = address, .peer = {}};
  if (!address.is_unix() && !terms_.sources.AdmitsPeerOf(fd.get(), address.storage)) {
    Complain(source, "INCCL_SOCKET_ALLOW does not admit it");
    return ResetConnection(std::move(fd));
  }
  if (terms_.is_unix && !MayJoin(fd.get(), &source)) return ResetConnection(std::move(fd));
  MakeRoomFor(source);
  Pending& pending = pending_.emplace_back();
  pending.fd = std::move(fd);
  pending.source = source;
  pending.deadline = SystemClock().Now() + limit_;
  pending.handshake.Start(terms_.handshake, terms_.server);
}

void PendingConnections::AppendTo(std::vector<pollfd>* fds) const {
  for (const Pending& pending : pending_) {
    fds->push_back({.fd = pending.fd.get(), .events = POLLIN, .revents = 0});
  }
}

size_t PendingConnections::Advance(const pollfd* fds, const Promote& promote) {
  std::vector<Pending> kept;
  size_t ready = 0;
  for (size_t i = 0; i < pending_.size(); ++i) {
    ready += fds[i].revents != 0 ? 1 : 0;
    if (fds[i].revents == 0 || Step(&pending_[i], promote)) {
      kept.push_back(std::move(pending_[i]));
    }
  }
  pending_ = std::move(kept);
  return ready;
}

namespace {

// What has arrived, up to the size of a registration.
void Discard(int fd) {
  std::array<std::byte, 4096> buffer;
  for (size_t left = 2 * kMaxBlob; left > 0;) {
    const IoResult got = ReadSome(fd, std::span(buffer).first(std::min(left, buffer.size())));
    if (got.error != 0 || got.closed) return;
    left -= got.bytes;
  }
}

}  // namespace

bool PendingConnections::Step(Pending* pending, const Promote& promote) {
  ServerHandshake& handshake = pending->handshake;
  std::array<std::byte, kHelloBytes> buffer;
  ServerHandshake::State state = ServerHandshake::State::kReading;
  while (state == ServerHandshake::State::kReading) {
    const IoResult got = ReadSome(pending->fd.get(), std::span(buffer).first(handshake.wanted()));
    if (got.error == EAGAIN) return true;
    if (got.error != 0 || got.closed) {
      Complain(pending->source, "it closed before it authenticated");
      return false;
    }
    state = handshake.Feed(std::span(buffer).first(got.bytes));
  }
  if (state == ServerHandshake::State::kAsked) {
    return WriteAll(pending->fd.get(), handshake.greeting());
  }
  if (handshake.fault() == HandshakeFault::kVersion) {
    (void)WriteAll(pending->fd.get(), handshake.reply());
  }
  const std::string why = state == ServerHandshake::State::kDone ? promote(handshake, &pending->fd)
                                                                 : Describe(handshake.fault());
  if (why.empty()) return false;
  Complain(pending->source, why);
  // An orderly close shows the client of a whole hello that it was rejected. It would not be one if
  // what the client has sent behind its hello were left.
  if (pending->fd.valid()) Discard(pending->fd.get());
  return false;
}

void PendingConnections::Complain(const Source& source, const std::string& why) {
  ++refused_;
  if (!complaints_.Allow(SystemClock().Now())) return;
  Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
      "{} refused a connection from {}: {} ({} refused so far)", terms_.name, source.ToString(),
      why, refused_);
}

void PendingConnections::Expire(Time now) {
  std::erase_if(pending_, [&](Pending& pending) {
    if (now < pending.deadline) return false;
    Complain(pending.source, "it did not authenticate in time");
    ResetConnection(std::move(pending.fd));
    return true;
  });
}

Time PendingConnections::NextDeadline() const {
  Time next = kNever;
  for (const Pending& pending : pending_) next = std::min(next, pending.deadline);
  return next;
}

void PendingConnections::MoveTo(std::vector<UniqueFd>* open) {
  for (Pending& pending : pending_) open->push_back(std::move(pending.fd));
  pending_.clear();
}

}  // namespace inccl::bootstrap
