// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/connector.h"
#include "bootstrap/gathering.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"
#include "transport/transport.h"

namespace inccl::tcp {

using bootstrap::Connector;
using bootstrap::ConnectTerms;
using bootstrap::LinkPlan;
using bootstrap::Listener;

ConnectTerms PeerConnector::Terms(size_t peers, int epoll) {
  ConnectTerms terms;
  terms.rank = options_.rank;
  terms.nranks = options_.nranks;
  terms.handshake = options_.handshake;
  terms.expected = peers * sockets();
  terms.timeout_ms = options_.timeout_ms;
  terms.sources = options_.sources;
  terms.patient = true;
  terms.expects = [this](int peer, int connection) { return Expects(peer, connection); };
  terms.watch = [this, epoll](int fd) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = nullptr;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) blind_ = true;
  };
  return terms;
}

PeerConnector::PeerConnector(const Options& options, std::vector<Listener> listeners,
                             const std::map<int, PeerPlan>& peers, int epoll)
    : options_(options),
      terms_(Terms(peers.size(), epoll)),
      connector_(&terms_, std::move(listeners)) {
  for (const auto& [peer, plan] : peers) peers_[peer].plan = plan;
}

LinkPlan PeerConnector::PlanOf(int peer, const PeerState& state, int connection) const {
  LinkPlan plan{.peer = peer,
                .connection = static_cast<uint16_t>(connection),
                .peer_name = state.plan.name,
                .peer_key = state.plan.key,
                .addresses = {}};
  for (const UniqueIdAddress& address : state.plan.addresses) {
    plan.addresses.push_back(bootstrap::SocketAddress::Tcp(address));
  }
  return plan;
}

void PeerConnector::Begin(int peer) {
  PeerState& state = peers_.at(peer);
  for (int i = 0; i < options_.sockets_per_peer; ++i) {
    const uint32_t bit = 1u << i;
    if ((state.begun & bit) != 0) continue;
    state.begun |= bit;
    connector_.Begin(PlanOf(peer, state, i));
    ready_ = true;
  }
}

std::optional<LinkPlan> PeerConnector::Expects(int peer, int connection) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || peer <= options_.rank || connection >= options_.sockets_per_peer) {
    return std::nullopt;
  }
  const uint32_t bit = 1u << connection;
  if ((found->second.begun & bit) != 0) return std::nullopt;
  return PlanOf(peer, found->second, connection);
}

void PeerConnector::Poll(Time until) {
  const Result<int> handled = connector_.Poll(until);
  ready_ = handled.value() > 0;  // more may have come since
  next_ = connector_.NextTime();
}

std::vector<Connector::Ended> PeerConnector::TakeEnded() {
  std::vector<Connector::Ended> ended = connector_.TakeEnded();
  for (const Connector::Ended& end : ended) {
    peers_.at(end.plan.peer).begun |= 1u << end.plan.connection;
  }
  ended_ += ended.size();
  return ended;
}

}  // namespace inccl::tcp

namespace inccl {
namespace {

using bootstrap::Aead;
using tcp::Connection;
using tcp::FrameGuard;
using tcp::PeerLink;

constexpr Time kCloseLimit = kSecond;
// Bytes that wait in the kernel beyond what is on its way; more would delay credits. Of several
// connections each takes little, so that all stay in use, and one that stalls holds up little.
constexpr int kNotSentBytes = 256 * 1024, kNotSentBytesOfSeveral = 32 * 1024;
constexpr int kEventsAtOnce = 64;
constexpr int kIdlePolls = 256;  // a rank that sleeps arms before (WaitPolicy)

timespec ToTimespec(Time time) {
  timespec out{};
  out.tv_sec = static_cast<time_t>(time / kSecond);
  out.tv_nsec = static_cast<decltype(out.tv_nsec)>(time % kSecond);
  return out;
}

Status ToStream(int fd, int not_sent_bytes) {
  const int one = 1;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return SystemErrorErrno("fcntl of a data socket", errno);
  }
  // Other stream sockets have no such option.
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 && errno != EOPNOTSUPP &&
      errno != ENOPROTOOPT) {
    return SystemErrorErrno("TCP_NODELAY", errno);
  }
  // Not everywhere possible, and not necessary.
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &not_sent_bytes, sizeof not_sent_bytes);
  bootstrap::ProbeWhenIdle(fd);
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(int rank, int nranks,
                                                           tcp::Protection protection) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank {} is not one of {} ranks", rank, nranks));
  }
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemErrorErrno("tcp: epoll_create1", errno);
  std::unique_ptr<TcpTransport> made(new TcpTransport(rank, nranks, protection, std::move(epoll)));
  Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create({&made->wakeup_source_});
  if (!event.ok()) return event.status();
  made->wakeup_event_ = *std::move(event);
  return made;
}

TcpTransport::~TcpTransport() { Quiesce(SystemClock().Now() + kCloseLimit); }

Status TcpTransport::Attach(int peer, std::vector<TcpSocket> sockets, const std::string& name) {
  if (Status status = CheckPeer(rank_, peer, nranks()); !status.ok()) return status;
  if (peers_[static_cast<size_t>(peer)] != nullptr) return AttachedTwice(rank_, peer);
  if (sockets.empty()) {
    return InvalidArgument(fmt::format("rank {}: peer rank {}: no data socket", rank_, peer));
  }
  PeerLink* const link = MakeLink(peer, name, static_cast<int>(sockets.size()));
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (Status status = Open(link, i, std::move(sockets[i])); !status.ok()) return status;
  }
  return Status::Ok();
}

PeerLink* TcpTransport::MakeLink(int peer, const std::string& name, int connections) {
  const std::string prefix = fmt::format("rank {}: tcp: peer {}", rank_,
                                         name.empty() ? fmt::format("rank {}", peer) : name);
  auto made = std::make_unique<PeerLink>(rank_, peer, prefix, protection_, connections);
  PeerLink* const link = made.get();
  attached_.push_back(link);
  peers_[static_cast<size_t>(peer)] = std::move(made);
  return link;
}

Status TcpTransport::Open(PeerLink* link, size_t number, TcpSocket socket) {
  const auto named = [&](const Status& status) {
    return Status(status.code(), fmt::format("{}: {}", link->name(), status.message()));
  };
  const int fd = socket.fd.get();
  Connection* const connection = link->connection(number);
  if (!connection->failure().empty()) return Status::Ok();  // a call failed
  const bool several = link->lanes()->connections().size() > 1;
  const int not_sent_bytes = several ? kNotSentBytesOfSeveral : kNotSentBytes;
  if (Status status = ToStream(fd, not_sent_bytes); !status.ok()) return named(status);
  Result<FrameGuard> out = FrameGuard::Create(protection_, socket.send_key, Aead::Use::kSeal);
  if (!out.ok()) return named(out.status());
  Result<FrameGuard> in = FrameGuard::Create(protection_, socket.receive_key, Aead::Use::kOpen);
  if (!in.ok()) return named(in.status());
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = connection;
  // The connector has added its sockets.
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0 &&
      (errno != EEXIST || epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)) {
    return named(SystemErrorErrno("epoll_ctl", errno));
  }
  if (sockets_ != nullptr) sockets_->Add(link->peer(), SocketList::Use::kData, fd);
  connection->Open(std::move(socket.fd), *std::move(out), *std::move(in));
  return Status::Ok();
}

Result<int> TcpTransport::Connect(Time until, Status* failure) {
  connector_->Poll(until);
  int made_now = 0;
  for (bootstrap::Connector::Ended& ended : connector_->TakeEnded()) {
    const int peer = ended.plan.peer;
    PeerLink* link = peers_[static_cast<size_t>(peer)].get();
    if (link == nullptr) {
      link = MakeLink(peer, ended.plan.peer_name, connector_->sockets_per_peer());
    }
    if (!ended.link.ok()) {
      const Status& status = ended.link.status();
      if (failure->ok() || status.code() == Code::kSystemError) {
        *failure = {status.code(), fmt::format("{}: {}", link->name(), status.message())};
      }
      link->connection(ended.plan.connection)->Fail(status.message());
      continue;
    }
    bootstrap::Link& made = *ended.link;
    Status status = Open(
        link, ended.plan.connection,
        {.fd = std::move(made.fd), .send_key = made.send_key, .receive_key = made.receive_key});
    if (!status.ok()) return status;
    ++made_now;
  }
  if (connector_->complete()) connector_.reset();
  return made_now;
}

void TcpTransport::BeginAll() {
  for (int peer = 0; connector_ != nullptr && peer < nranks(); ++peer) {
    if (connector_->Has(peer)) connector_->Begin(peer);
  }
}

Status TcpTransport::AdvanceConnections() {
  Poll();
  if (connector_ == nullptr) return Status::Ok();
  Status failure;
  const Result<int> made = Connect(SystemClock().Now(), &failure);
  return made.ok() ? failure : made.status();
}

Status TcpTransport::ConnectNow(
    const std::function<Status(const std::vector<int>& missing)>& check) {
  constexpr Time kCheckInterval = 50 * kMillisecond;
  while (connector_ != nullptr) {
    const std::vector<int> missing = connector_->Missing();
    if (Status status = check(missing); !status.ok()) {
      return {status.code(), fmt::format("tcp: {}{}", status.message(), connector_->LastFailure())};
    }
    Status failure;
    const Result<int> made = Connect(SystemClock().Now() + kCheckInterval, &failure);
    if (!made.ok()) return made.status();
    if (!failure.ok()) return failure;
  }
  return Status::Ok();
}

Result<PeerLink*> TcpTransport::LinkFor(const LaneSpec& spec, int peer) {
  PeerLink* link = peers_[static_cast<size_t>(peer)].get();
  if (connector_ != nullptr && connector_->Has(peer)) {
    if (link == nullptr) {
      link = MakeLink(peer, connector_->NameOf(peer), connector_->sockets_per_peer());
    }
    connector_->Begin(peer);
  }
  if (link != nullptr) return link;
  return NotAttached(rank_, spec, peer);
}

Result<std::unique_ptr<SendLane>> TcpTransport::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, nranks(), *this);
  if (!status.ok()) return status;
  if (opened_send_.contains(spec.Key())) return OpenedTwice(rank_, spec, LaneSide::kSend);
  const Result<PeerLink*> link = LinkFor(spec, spec.consumers.front());
  if (!link.ok()) return link.status();
  tcp::PeerLanes* const lanes = (*link)->lanes();
  Result<tcp::SendEnd*> end = lanes->OpenSend(spec);
  if (!end.ok()) return end.status();
  opened_send_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.bytes();
  return std::unique_ptr<SendLane>(new tcp::TcpSendLane(*end, lanes, *link, &counters_));
}

Result<std::unique_ptr<RecvLane>> TcpTransport::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, nranks(), *this);
  if (!status.ok()) return status;
  if (opened_recv_.contains(spec.Key())) return OpenedTwice(rank_, spec, LaneSide::kRecv);
  const Result<PeerLink*> link = LinkFor(spec, spec.producer);
  if (!link.ok()) return link.status();
  tcp::PeerLanes* const lanes = (*link)->lanes();
  Result<tcp::RecvEnd*> end = lanes->OpenRecv(spec);
  if (!end.ok()) return end.status();
  opened_recv_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.bytes();
  return std::unique_ptr<RecvLane>(new tcp::TcpRecvLane(*end, lanes, *link, &counters_));
}

void TcpTransport::Poll() {
  std::array<epoll_event, kEventsAtOnce> events;
  const int ready = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  for (int i = 0; i < ready; ++i) {
    auto* const connection = static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
    if (connection == nullptr) {  // a socket of the connector, or one that it has closed
      if (connector_ != nullptr) connector_->SetReady();
      continue;
    }
    const uint32_t what = events[static_cast<size_t>(i)].events;
    constexpr uint32_t kEnds = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    if ((what & (EPOLLIN | kEnds)) != 0) connection->SetReadable((what & kEnds) != 0);
    if ((what & (EPOLLOUT | EPOLLERR)) != 0) connection->SetWritable();
  }
}

Result<int> TcpTransport::Progress(Time now) {
  if (closed_) return 0;
  Poll();
  int frames = 0, connected = 0;
  if (connector_ != nullptr && connector_->Due(now)) {
    Status failure;
    Result<int> made = Connect(0, &failure);
    if (!made.ok()) return made;
    // This rank lacks descriptors, say. Else the lanes report the loss of the peer.
    if (failure.code() == Code::kSystemError) return failure;
    connected = *made;
  }
  for (PeerLink* const link : attached_) {
    Result<int> arrived = link->Progress(now);
    if (!arrived.ok()) return arrived;
    frames += *arrived;
  }
  // Most credits ride on slices that go the other way. A rank that waits gives back all of them,
  // because its peers may wait for them.
  idle_polls_ = frames == 0 ? std::min(idle_polls_ + 1, kIdlePolls) : 0;
  const bool all = arming_ || idle_polls_ >= kIdlePolls;
  arming_ = false;
  for (PeerLink* const link : attached_) {
    if (Status status = link->SendCredits(all); !status.ok()) return status;
  }
  return frames + connected;
}

bool TcpTransport::unsent() const {
  return !closed_ && std::any_of(attached_.begin(), attached_.end(),
                                 [](const PeerLink* link) { return link->unsent(); });
}

void TcpTransport::AppendUnsent(std::vector<int>* ranks) const {
  for (const PeerLink* const link : attached_) {
    if (link->unsent()) ranks->push_back(link->peer());
  }
}

void TcpTransport::DropUnsent() {
  for (PeerLink* const link : attached_) link->DropUnsent();
}

bool TcpTransport::delivered() const {
  return closed_ || std::all_of(attached_.begin(), attached_.end(), [](const PeerLink* link) {
           return !link->unsent() && link->acknowledged();
         });
}

void TcpTransport::Quiesce(Time deadline) {
  constexpr Time kPause = 100 * kMicrosecond;
  if (closed_) return;
  // Closing a socket with unread bytes resets the connection, which discards what is still on its
  // way.
  arming_ = true;  // a peer may wait for the last credits
  while ((arming_ || !delivered()) && SystemClock().Now() < deadline) {
    const Status progress =
        CatchOutOfMemory([&] { return Progress(SystemClock().Now()).status(); });
    if (!progress.ok()) break;
    const timespec pause = ToTimespec(kPause);
    nanosleep(&pause, nullptr);
  }
  closed_ = true;
  connector_.reset();
  if (sockets_ != nullptr) sockets_->RemoveAll(SocketList::Use::kData);
  for (PeerLink* const link : attached_) link->Close();
}

void TcpTransport::Source::Arm() { transport_->arming_ = true; }

bool TcpTransport::Source::Ready() {
  if (transport_->connector_ != nullptr && transport_->connector_->ready()) return false;
  return std::none_of(transport_->attached_.begin(), transport_->attached_.end(),
                      [](const PeerLink* link) { return link->readable(); });
}

}  // namespace inccl

namespace inccl {
namespace {

using bootstrap::Listener;
using tcp::PeerConnector;

constexpr size_t kFewDescriptors = 16;
// Over long links a connection carries no more than this at a time where its buffers stay small.
// Several recover sooner from losses and from pauses, after which each begins slowly. A rank makes
// at most so many, unless it has as many peers.
constexpr uint64_t kBytesOfSocket = uint64_t{4} << 20;
constexpr uint64_t kFewSockets = 4, kManySockets = 16, kMostSockets = 256;

int SocketsFor(uint64_t under_way, size_t peers) {
  if (under_way == 0) return 1;
  const uint64_t most = std::max<uint64_t>(1, kMostSockets / std::max<size_t>(1, peers));
  return static_cast<int>(
      std::min(std::clamp(under_way / kBytesOfSocket, kFewSockets, kManySockets), most));
}

std::string NameOf(const PeerInfo& peer) {
  return fmt::format("{}@{}:{}", peer.rank, peer.host, peer.pid);
}

class TcpFactory final : public TransportFactory {
 public:
  TcpFactory(const TcpOptions& options, std::unique_ptr<TcpTransport> transport)
      : options_(options), transport_(std::move(transport)) {}
  // Where a creation fails, nobody waits for what the transport has sent.
  ~TcpFactory() override {
    if (transport_ != nullptr) transport_->Quiesce(SystemClock().Now());
  }
  TcpFactory(const TcpFactory&) = delete;
  TcpFactory& operator=(const TcpFactory&) = delete;

  Status Listen();
  std::vector<std::byte> payload() const override;
  Status Announce(const PeerInfo& peer, std::span<const std::byte> payload) override;
  int Begin(const Mesh& mesh, const ConnectLimits& limits) override;
  void Advance() override;
  Status Attach(Peer* peer, std::span<const std::byte> payload) override {
    return begun_ ? Status::Ok() : Announce(peer->info, payload);
  }
  Status Connect(const Mesh& mesh, const ConnectLimits& limits) override;
  std::unique_ptr<Transport> Take(bool /*alone*/) override { return std::move(transport_); }

 private:
  // Gives the transport its connector.
  Status Prepare(const Mesh& mesh, const ConnectLimits& limits);

  const TcpOptions options_;
  std::unique_ptr<TcpTransport> transport_;
  std::vector<UniqueIdAddress> addresses_;
  std::vector<Listener> listeners_;
  std::map<int, PeerConnector::PeerPlan> peers_;
  bool begun_ = false;
  Status failure_;  // since Begin
};

Status TcpFactory::Listen() {
  Result<std::vector<UniqueIdAddress>> addresses = bootstrap::ChooseAddresses(options_.interfaces);
  if (!addresses.ok()) return addresses.status();
  Result<std::vector<UniqueFd>> listeners =
      bootstrap::ListenAtAll(&*addresses, options_.listen.ports);
  if (!listeners.ok()) return listeners.status();
  for (UniqueFd& listener : *listeners) {
    listeners_.push_back({.fd = std::move(listener), .is_unix = false});
  }
  addresses_ = *std::move(addresses);
  return Status::Ok();
}

std::vector<std::byte> TcpFactory::payload() const {
  ByteWriter writer;
  WriteAddresses(addresses_, &writer);
  return writer.bytes();
}

Status TcpFactory::Announce(const PeerInfo& peer, std::span<const std::byte> payload) {
  ByteReader reader(payload);
  std::vector<UniqueIdAddress> theirs;
  if (!ReadAddresses(&reader, &theirs) || reader.remaining() != 0 || theirs.empty()) {
    return InternalError(fmt::format("tcp: peer rank {} sent no address to connect to", peer.rank));
  }
  bootstrap::SetScopes(options_.interfaces, &theirs);
  peers_[peer.rank] = {.name = NameOf(peer), .addresses = std::move(theirs), .key = {}};
  return Status::Ok();
}

Status TcpFactory::Prepare(const Mesh& mesh, const ConnectLimits& limits) {
  if (options_.protection == tcp::Protection::kNone) {
    Log(LogLevel::kWarn, LogSubsystem::kTransport,
        "rank {}/{}: INCCL_NET_SECURITY=none: nothing protects the data on the network", mesh.rank,
        mesh.nranks);
  }
  const uint64_t machine = mesh.peers[static_cast<size_t>(mesh.rank)].info.machine_id;
  const std::vector<UniqueIdAddress> own = bootstrap::OwnAddresses();
  for (auto& [rank, plan] : peers_) {
    const Peer& peer = mesh.peers[static_cast<size_t>(rank)];
    plan.key = peer.info.key;
    if (peer.info.machine_id == machine || rank > mesh.rank) continue;  // the higher one connects
    const std::vector<UniqueIdAddress> all = plan.addresses;
    bootstrap::RemoveOwn(own, &plan.addresses);
    if (plan.addresses.empty()) {
      return InvalidUsage("tcp: " + bootstrap::IsAlsoHere(plan.name, all));
    }
    const auto reached = bootstrap::RemoteAddress(peer.control.get());
    if (reached) bootstrap::MoveToFront(*reached, &plan.addresses);
  }
  const int sockets = options_.sockets_per_peer > 0
                          ? options_.sockets_per_peer
                          : SocketsFor(limits.under_way, mesh.peers.size() - 1);
  // Twice, because connections of strangers wait for their authentication.
  const size_t connections = peers_.size() * static_cast<size_t>(sockets);
  Status room = bootstrap::EnsureDescriptors(2 * connections + kFewDescriptors);
  transport_->ShowIn(mesh.sockets);
  transport_->ConnectWhenNeeded(
      std::make_unique<PeerConnector>(PeerConnector::Options{.rank = mesh.rank,
                                                             .nranks = mesh.nranks,
                                                             .handshake = mesh.data_terms,
                                                             .sources = options_.listen.sources,
                                                             .sockets_per_peer = sockets,
                                                             .timeout_ms = limits.timeout_ms},
                                      std::move(listeners_), peers_, transport_->epoll()));
  // A large communicator does not use most pairs.
  return mesh.graph.large() ? Status::Ok() : room;
}

int TcpFactory::Begin(const Mesh& mesh, const ConnectLimits& limits) {
  if (mesh.graph.large()) return -1;
  begun_ = true;
  failure_ = Prepare(mesh, limits);
  if (failure_.ok()) transport_->BeginAll();
  return failure_.ok() ? transport_->epoll() : -1;
}

void TcpFactory::Advance() {
  if (failure_.ok()) failure_ = transport_->AdvanceConnections();
}

Status TcpFactory::Connect(const Mesh& mesh, const ConnectLimits& limits) {
  if (!begun_) failure_ = Prepare(mesh, limits);
  if (!failure_.ok() || mesh.graph.large()) return failure_;
  transport_->BeginAll();
  return transport_->ConnectNow([&](const std::vector<int>& missing) {
    if (SystemClock().Now() >= limits.deadline) {
      return TimeoutError(fmt::format("no connection with {} within {} ms",
                                      bootstrap::ListRanks(missing), limits.timeout_ms));
    }
    return limits.check();
  });
}

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeTcpFactory(int rank, int nranks,
                                                         const TcpOptions& options) {
  Result<std::unique_ptr<TcpTransport>> transport =
      TcpTransport::Create(rank, nranks, options.protection);
  if (!transport.ok()) return transport.status();
  auto factory = std::make_unique<TcpFactory>(options, *std::move(transport));
  if (Status status = factory->Listen(); !status.ok()) return status;
  return std::unique_ptr<TransportFactory>(std::move(factory));
}

}  // namespace inccl
