// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of the RDMA transport.
#include "transport/verbs/verbs_transport.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "transport/poll_wakeup_event.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_peer.h"
#include "transport/verbs/verbs_rails.h"

namespace inccl {

namespace verbs {
namespace {

constexpr Time kCloseLimit = kSecond;
constexpr Time kCreditsGrace = 20 * kMillisecond;  // a peer that has left takes no credits
constexpr int kIdlePolls = 64;
constexpr Time kTrialPause = 100 * kMicrosecond;

// A CRC is not made of what the processor cannot read.
Status GpuMemory(tcp::Protection protection) {
  if (protection == tcp::Protection::kNone) return Status::Ok();
  return InvalidUsage(
      fmt::format("memory of a GPU goes through slots with INCCL_NET_SECURITY={}, not with none",
                  tcp::Name(protection)));
}

void Pause(Time time) {
  const timespec pause = {.tv_sec = 0, .tv_nsec = time};
  nanosleep(&pause, nullptr);
}

// The rails' completion queues are what it sleeps on.
class VerbsEnd final : public VerbsTransport, private WakeupSource {
 public:
  VerbsEnd(int rank, int nranks, const VerbsOptions& options, std::unique_ptr<Rails> rails)
      : rank_(rank),
        options_(options),
        rails_(std::move(rails)),
        memory_(rails_->devices(), GpuMemory(options.protection)),
        peers_(static_cast<size_t>(nranks)) {}
  ~VerbsEnd() override { Quiesce(SystemClock().Now() + kCloseLimit); }

  Status Open();
  std::vector<std::byte> address() const override { return address_.Encode(); }
  Status Attach(int peer, std::span<const std::byte> address, const std::string& name) override;
  Status Protect(const bootstrap::Key& secret, bootstrap::Bytes communicator) override;
  Result<std::vector<PathFailure>> TryPaths(std::span<const int> peers,
                                            const ConnectLimits& limits) override;

  Caps caps() const override { return CapsOf(); }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.consumer_grants = true};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Exports* exports() override { return &memory_; }
  Result<int> Progress(Time now) override;
  bool unsent() const override;
  void AppendUnsent(std::vector<int>* ranks) const override;
  void DropUnsent() override;
  WakeupEvent* wakeup_event() override { return wakeup_event_.get(); }
  WakeupSource* wakeup_source() override { return this; }
  bool delivered() const override;
  void Quiesce(Time deadline) override;
  uint64_t memory_bytes() const override { return memory_bytes_; }
  TransportCounters counters() const override { return counters_; }

 private:
  int fd() const override { return rails_->fd(); }
  void Arm() override {
    arming_ = true;
    rails_->Arm();
  }
  bool Ready() override { return rails_->Ready(); }
  void Disarm(bool readable) override { rails_->Disarm(readable); }

  int nranks() const { return static_cast<int>(peers_.size()); }
  size_t RailTo(int peer) const { return RailOf(rank_, peer, rails_->size()); }
  // The peer of a lane that is opened now, once.
  Result<Peer*> PeerFor(const LaneSpec& spec, LaneSide side,
                        const std::unordered_set<uint64_t>& opened) const;
  Status Handle(size_t rail, const ibv_wc& completion);
  Result<int> PollAll();
  Result<tcp::FrameGuard> GuardOf(const bootstrap::Key& secret, bootstrap::Bytes communicator,
                                  int from, int to, bootstrap::Aead::Use use) const;

  const int rank_;
  const VerbsOptions options_;
  const std::unique_ptr<Rails> rails_;  // outlive all that refers to them
  CallerMemory memory_;
  RankAddress address_;
  std::unique_ptr<PollWakeupEvent> wakeup_event_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr: this rank
  std::vector<Peer*> attached_;
  std::unordered_map<uint64_t, Peer*> by_queue_pair_;  // by rail, then number
  std::unordered_set<uint64_t> opened_send_, opened_recv_;
  TransportCounters counters_;
  uint64_t memory_bytes_ = 0;
  int idle_polls_ = 0;   // calls of Progress in a row in which nothing arrived
  bool arming_ = false;  // the rank is about to sleep and gives back all credits first
  bool closed_ = false;
};

// The numbers of queue pairs differ on one device only.
uint64_t QueuePairKey(size_t rail, uint32_t number) { return uint64_t{rail} << 32 | number; }

Status VerbsEnd::Open() {
  Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create({this});
  if (!event.ok()) return event.status();
  wakeup_event_ = *std::move(event);
  if (options_.expected_bytes > 0) {  // a limit of locked memory shows now, not in a call
    Result<RegisteredMemory> trial =
        rails_->device(0).Allocate(options_.expected_bytes, Writer::kThisRank);
    if (!trial.ok()) return trial.status();
  }
  Status status =
      bootstrap::FillRandom(std::as_writable_bytes(std::span(&address_.first_packet, 1)));
  if (!status.ok()) return status;
  for (size_t rail = 0; rail < rails_->size(); ++rail) {
    address_.rails.push_back(rails_->AddressOf(rail));
  }
  address_.queue_pairs.resize(peers_.size());
  for (int peer = 0; peer < nranks(); ++peer) {
    if (peer == rank_) continue;
    auto made = std::make_unique<Peer>(rank_, peer, rails_.get(), RailTo(peer), &memory_);
    status = made->CreateQueuePair();
    if (!status.ok()) return status;
    address_.queue_pairs[static_cast<size_t>(peer)] = made->queue_pair();
    peers_[static_cast<size_t>(peer)] = std::move(made);
  }
  return Status::Ok();
}

Status VerbsEnd::Attach(int peer, std::span<const std::byte> address, const std::string& name) {
  if (Status status = CheckPeer(rank_, peer, nranks()); !status.ok()) return status;
  Peer* const end = peers_[static_cast<size_t>(peer)].get();
  if (end->connected()) return AttachedTwice(rank_, peer);
  const std::string prefix = fmt::format("rank {}: verbs: peer {}", rank_,
                                         name.empty() ? fmt::format("rank {}", peer) : name);
  RankAddress theirs;
  if (!RankAddress::Decode(address, nranks(), &theirs)) {
    return InternalError(fmt::format("{} sent a malformed address", prefix));
  }
  if (Status status = end->Connect(address_, theirs, options_, prefix); !status.ok()) return status;
  by_queue_pair_.emplace(QueuePairKey(RailTo(peer), end->queue_pair()), end);
  attached_.push_back(end);
  return Status::Ok();
}

Result<tcp::FrameGuard> VerbsEnd::GuardOf(const bootstrap::Key& secret,
                                          bootstrap::Bytes communicator, int from, int to,
                                          bootstrap::Aead::Use use) const {
  Result<bootstrap::Key> key =
      bootstrap::Hkdf(secret.bytes(), communicator, fmt::format("inccl verbs {} to {}", from, to));
  if (!key.ok()) return key.status();
  return tcp::FrameGuard::Create(options_.protection, *key, use);
}

Status VerbsEnd::Protect(const bootstrap::Key& secret, bootstrap::Bytes communicator) {
  using Use = bootstrap::Aead::Use;
  for (Peer* const peer : attached_) {
    Result<tcp::FrameGuard> out = GuardOf(secret, communicator, rank_, peer->peer(), Use::kSeal);
    if (!out.ok()) return out.status();
    Result<tcp::FrameGuard> in = GuardOf(secret, communicator, peer->peer(), rank_, Use::kOpen);
    if (!in.ok()) return in.status();
    peer->Protect(*std::move(out), *std::move(in));
  }
  return Status::Ok();
}

Result<Peer*> VerbsEnd::PeerFor(const LaneSpec& spec, LaneSide side,
                                const std::unordered_set<uint64_t>& opened) const {
  Status status = CheckLaneSpec(spec, side, rank_, nranks(), *this);
  if (!status.ok()) return status;
  const int number = side == LaneSide::kSend ? spec.consumers.front() : spec.producer;
  Peer* const peer = peers_[static_cast<size_t>(number)].get();
  if (!peer->connected()) return NotAttached(rank_, spec, number);
  if (opened.contains(spec.Key())) return OpenedTwice(rank_, spec, side);
  return peer;
}

Result<std::unique_ptr<SendLane>> VerbsEnd::OpenSend(const LaneSpec& spec) {
  Result<Peer*> peer = PeerFor(spec, LaneSide::kSend, opened_send_);
  if (!peer.ok()) return peer.status();
  Result<SendEnd*> end = (*peer)->OpenSend(spec);
  if (!end.ok()) return end.status();
  opened_send_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.memory.bytes();
  return std::unique_ptr<SendLane>(new VerbsSendLane(*end, *peer, &memory_, &counters_));
}

Result<std::unique_ptr<RecvLane>> VerbsEnd::OpenRecv(const LaneSpec& spec) {
  Result<Peer*> peer = PeerFor(spec, LaneSide::kRecv, opened_recv_);
  if (!peer.ok()) return peer.status();
  Result<RecvEnd*> end = (*peer)->OpenRecv(spec);
  if (!end.ok()) return end.status();
  opened_recv_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.memory.bytes();
  return std::unique_ptr<RecvLane>(new VerbsRecvLane(*end, *peer, &counters_));
}

// Messages of peers have the work request 0, which has no other content.
Status VerbsEnd::Handle(size_t rail, const ibv_wc& completion) {
  const auto found = by_queue_pair_.find(QueuePairKey(rail, completion.qp_num));
  if (found == by_queue_pair_.end()) return Status::Ok();
  Peer* const peer = found->second;
  if (completion.status != IBV_WC_SUCCESS) {
    peer->OnFailure(completion.wr_id, completion.status);
    return Status::Ok();
  }
  if (completion.wr_id == 0)
    return peer->OnMessage(ntohl(completion.imm_data), completion.byte_len);
  peer->OnSent(completion.wr_id);
  return Status::Ok();
}

Result<int> VerbsEnd::PollAll() {
  int events = 0;
  for (size_t rail = 0; rail < rails_->size(); ++rail) {
    Result<std::span<const ibv_wc>> completions = rails_->queues(rail)->Poll();
    if (!completions.ok()) return completions.status();
    for (const ibv_wc& completion : *completions) {
      if (Status status = Handle(rail, completion); !status.ok()) return status;
    }
    events += static_cast<int>(completions->size());
  }
  return events;
}

Result<int> VerbsEnd::Progress(Time now) {
  if (closed_) return 0;
  Result<int> events = PollAll();
  if (!events.ok()) return events.status();
  // A rank that waits gives back all credits, because its peers may wait for them.
  idle_polls_ = *events == 0 ? std::min(idle_polls_ + 1, kIdlePolls) : 0;
  const bool all = arming_ || idle_polls_ >= kIdlePolls;
  arming_ = false;
  for (Peer* const peer : attached_) {
    if (Status status = peer->Progress(now, all); !status.ok()) return status;
  }
  return events;
}

Result<std::vector<PathFailure>> VerbsEnd::TryPaths(std::span<const int> peers,
                                                    const ConnectLimits& limits) {
  for (const int peer : peers) peers_[static_cast<size_t>(peer)]->StartTrial();
  const auto open = [&](int peer) { return peers_[static_cast<size_t>(peer)]->trial_is_open(); };
  while (std::any_of(peers.begin(), peers.end(), open) && SystemClock().Now() < limits.deadline) {
    if (Status status = limits.check(); !status.ok()) return status;
    Result<int> events = PollAll();
    if (!events.ok()) return events.status();
    if (*events == 0) Pause(kTrialPause);
  }
  std::vector<PathFailure> failures;
  for (const int peer : peers) {
    std::string why = peers_[static_cast<size_t>(peer)]->EndTrial();
    if (!why.empty()) failures.push_back({.peer = peer, .why = std::move(why)});
  }
  return failures;
}

bool VerbsEnd::unsent() const {
  return !closed_ && std::any_of(attached_.begin(), attached_.end(),
                                 [](const Peer* peer) { return peer->unsent(); });
}

void VerbsEnd::AppendUnsent(std::vector<int>* ranks) const {
  for (const Peer* const peer : attached_) {
    if (peer->unsent()) ranks->push_back(peer->peer());
  }
}

// Late retransmissions would send what the caller does with the memory next.
void VerbsEnd::DropUnsent() {
  bool reads = false;
  for (Peer* const peer : attached_) {
    if (!peer->reads_caller_memory()) continue;
    peer->Abort();
    reads = true;
  }
  if (reads) memory_.Clear();
}

bool VerbsEnd::delivered() const {
  return closed_ || std::all_of(attached_.begin(), attached_.end(),
                                [](const Peer* peer) { return peer->slices_delivered(); });
}

void VerbsEnd::Quiesce(Time deadline) {
  if (closed_) return;
  arming_ = true;  // a peer may wait for the last credits
  const Time soon = SystemClock().Now() + kCreditsGrace;
  const auto credits_delivered = [&] {
    return std::all_of(attached_.begin(), attached_.end(),
                       [](const Peer* peer) { return peer->delivered(); });
  };
  for (Time now = SystemClock().Now(); now < deadline; now = SystemClock().Now()) {
    const Status progress = CatchOutOfMemory([&] { return Progress(now).status(); });
    if (!progress.ok() || (delivered() && (now > soon || credits_delivered()))) break;
    Pause(50 * kMicrosecond);
  }
  closed_ = true;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer != nullptr) peer->Close();
  }
}

}  // namespace
}  // namespace verbs

bool VerbsTransport::Built() { return true; }

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::Create(int rank, int nranks,
                                                               const VerbsOptions& options) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank {} is not one of {} ranks", rank, nranks));
  }
  if (options.protection == tcp::Protection::kEncrypt) {
    return InvalidUsage(
        "INCCL_NET_SECURITY=encrypt: RDMA devices would send the data as plain text");
  }
  if (nranks > verbs::kMostRanks) {
    return InvalidUsage(fmt::format("RDMA serves at most {} ranks", verbs::kMostRanks));
  }
  Result<std::unique_ptr<verbs::Rails>> rails = verbs::Rails::Open(nranks, options.ports);
  if (!rails.ok()) return rails.status();
  auto end = std::make_unique<verbs::VerbsEnd>(rank, nranks, options, *std::move(rails));
  if (Status status = end->Open(); !status.ok()) return status;
  return std::unique_ptr<VerbsTransport>(std::move(end));
}

}  // namespace inccl
