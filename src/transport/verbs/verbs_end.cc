// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of the RDMA transport.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "transport/lane_check.h"
#include "transport/poll_wakeup_event.h"
#include "transport/verbs/verbs_peer.h"
#include "transport/verbs/verbs_transport.h"

namespace inccl {
namespace verbs {
namespace {

constexpr Time kCloseLimit = kSecond;
constexpr Time kCreditsGrace = 20 * kMillisecond;  // a peer that has left takes no credits
constexpr int kIdlePolls = 64;
constexpr uint32_t kSendDepth = 128;  // work requests per queue pair
// Receives: enough for some channels and algorithms with every peer.
constexpr uint32_t kReceivesAtLeast = 2048, kReceivesPerPeer = 512, kReceivesAtMost = 32768;

class VerbsEnd final : public VerbsTransport {
 public:
  VerbsEnd(int rank, int nranks, const VerbsOptions& options, Device device)
      : rank_(rank),
        options_(options),
        device_(std::make_unique<Device>(std::move(device))),
        peers_(static_cast<size_t>(nranks)) {}
  ~VerbsEnd() override { Quiesce(SystemClock().Now() + kCloseLimit); }

  Status Open();
  std::vector<std::byte> address() const override { return address_.Encode(); }
  Status Attach(int peer, std::span<const std::byte> address, const std::string& name) override;
  Status Protect(const bootstrap::Key& secret, bootstrap::Bytes communicator) override;

  Caps caps() const override { return CapsOf(); }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.consumer_grants = true};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time now) override;
  bool unsent() const override;
  void AppendUnsent(std::vector<int>* ranks) const override;
  WakeupEvent* wakeup_event() override { return wakeup_event_.get(); }
  WakeupSource* wakeup_source() override { return &source_; }
  bool delivered() const override;
  void Quiesce(Time deadline) override;
  uint64_t memory_bytes() const override { return memory_bytes_; }
  TransportCounters counters() const override { return counters_; }

 private:
  // The completion queue; a rank that is about to sleep gives back all credits first.
  class Source final : public WakeupSource {
   public:
    explicit Source(VerbsEnd* end) : end_(end) {}
    int fd() const override { return end_->queues_->fd(); }
    void Arm() override {
      end_->arming_ = true;
      end_->queues_->Arm();
    }
    bool Ready() override { return end_->queues_->Ready(); }
    void Disarm(bool readable) override { end_->queues_->Disarm(readable); }

   private:
    VerbsEnd* const end_;
  };

  int nranks() const { return static_cast<int>(peers_.size()); }
  Slots PartOfInbox(const RegisteredMemory& memory, int peer) const;
  Status CheckOpen(const LaneSpec& spec, int peer, const std::unordered_set<uint64_t>& opened,
                   const char* purpose) const;
  Status Handle(const ibv_wc& completion);
  Result<tcp::FrameGuard> GuardOf(const bootstrap::Key& secret, bootstrap::Bytes communicator,
                                  int from, int to, bootstrap::Aead::Use use) const;

  const int rank_;
  const VerbsOptions options_;
  const std::unique_ptr<Device> device_;  // outlives all that refers to it
  std::unique_ptr<Queues> queues_;
  RegisteredMemory inboxes_, outboxes_;  // kInboxBytes for each rank
  RankAddress address_;
  Source source_{this};
  std::unique_ptr<PollWakeupEvent> wakeup_event_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr: this rank
  std::vector<Peer*> attached_;
  std::unordered_map<uint32_t, Peer*> by_queue_pair_;
  std::unordered_set<uint64_t> opened_send_, opened_recv_;
  TransportCounters counters_;
  uint64_t memory_bytes_ = 0;
  int idle_polls_ = 0;   // calls of Progress in a row in which nothing arrived
  bool arming_ = false;  // the rank is about to sleep
  bool closed_ = false;
};

Slots VerbsEnd::PartOfInbox(const RegisteredMemory& memory, int peer) const {
  Slots slots;
  slots.base = memory.data() + static_cast<size_t>(peer) * kInboxBytes;
  slots.stride = kInboxStride;
  slots.local_key = memory.region->lkey;
  slots.depth = kInboxDepth;
  return slots;
}

Status VerbsEnd::Open() {
  const auto n = static_cast<uint32_t>(nranks());
  const auto depth =
      std::min(kSendDepth, static_cast<uint32_t>(std::max(device_->limits().max_qp_wr, 1)));
  const uint32_t receives =
      std::min(std::max(kReceivesAtLeast, kReceivesPerPeer * n), kReceivesAtMost);
  Result<std::unique_ptr<Queues>> queues = Queues::Create(device_.get(), depth * (n - 1), receives);
  if (!queues.ok()) return queues.status();
  queues_ = *std::move(queues);
  Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create({&source_});
  if (!event.ok()) return event.status();
  wakeup_event_ = *std::move(event);
  if (options_.expected_bytes > 0) {  // a limit of locked memory shows now, not in a call
    Result<RegisteredMemory> trial = device_->Allocate(options_.expected_bytes, Writer::kThisRank);
    if (!trial.ok()) return trial.status();
  }
  Result<RegisteredMemory> in = device_->Allocate(size_t{n} * kInboxBytes, Writer::kPeers);
  if (!in.ok()) return in.status();
  Result<RegisteredMemory> out = device_->Allocate(size_t{n} * kInboxBytes, Writer::kThisRank);
  if (!out.ok()) return out.status();
  inboxes_ = *std::move(in);
  outboxes_ = *std::move(out);
  uint32_t random = 0;
  Status status = bootstrap::FillRandom(std::as_writable_bytes(std::span(&random, 1)));
  if (!status.ok()) return status;
  address_ = {.ethernet = device_->ethernet(),
              .mtu = static_cast<uint8_t>(device_->mtu()),
              .lid = device_->lid(),
              .gid = device_->gid(),
              .first_packet = random,
              .inbox = reinterpret_cast<uint64_t>(inboxes_.data()),
              .inbox_key = inboxes_.region->rkey,
              .queue_pairs = std::vector<uint32_t>(n)};
  for (int peer = 0; peer < nranks(); ++peer) {
    if (peer == rank_) continue;
    auto made = std::make_unique<Peer>(rank_, peer, device_.get(), queues_.get(),
                                       PartOfInbox(inboxes_, peer), PartOfInbox(outboxes_, peer));
    status = made->CreateQueuePair(depth);
    if (!status.ok()) return status;
    address_.queue_pairs[static_cast<size_t>(peer)] = made->queue_pair();
    peers_[static_cast<size_t>(peer)] = std::move(made);
  }
  return Status::Ok();
}

Status VerbsEnd::Attach(int peer, std::span<const std::byte> address, const std::string& name) {
  if (peer < 0 || peer >= nranks() || peer == rank_) {
    return InvalidArgument(
        fmt::format("rank {}: peer {} is not another one of {} ranks", rank_, peer, nranks()));
  }
  Peer* const end = peers_[static_cast<size_t>(peer)].get();
  if (end->connected()) {
    return InvalidUsage(fmt::format("rank {}: peer rank {} is attached twice", rank_, peer));
  }
  const std::string prefix = fmt::format("rank {}: verbs: peer {}", rank_,
                                         name.empty() ? fmt::format("rank {}", peer) : name);
  RankAddress theirs;
  if (!RankAddress::Decode(address, nranks(), &theirs)) {
    return InternalError(fmt::format("{} sent a malformed address", prefix));
  }
  const ConnectionOptions how{.traffic_class = static_cast<uint8_t>(options_.traffic_class),
                              .timeout = static_cast<uint8_t>(options_.timeout)};
  if (Status status = end->Connect(address_, theirs, how, prefix); !status.ok()) return status;
  by_queue_pair_.emplace(end->queue_pair(), end);
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

Status VerbsEnd::CheckOpen(const LaneSpec& spec, int peer,
                           const std::unordered_set<uint64_t>& opened, const char* purpose) const {
  if (!peers_[static_cast<size_t>(peer)]->connected()) {
    return InvalidUsage(
        fmt::format("rank {}: {}: peer rank {} is not attached", rank_, Describe(spec), peer));
  }
  if (opened.contains(spec.Key())) {
    return InvalidUsage(
        fmt::format("rank {}: {} is opened twice for {}", rank_, Describe(spec), purpose));
  }
  return Status::Ok();
}

Result<std::unique_ptr<SendLane>> VerbsEnd::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, nranks(), *this);
  if (status.ok()) status = CheckOpen(spec, spec.consumers.front(), opened_send_, "sending");
  if (!status.ok()) return status;
  Peer* const peer = peers_[static_cast<size_t>(spec.consumers.front())].get();
  Result<SendEnd*> end = peer->OpenSend(spec);
  if (!end.ok()) return end.status();
  opened_send_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.memory.bytes();
  return std::unique_ptr<SendLane>(new VerbsSendLane(*end, peer, &counters_));
}

Result<std::unique_ptr<RecvLane>> VerbsEnd::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, nranks(), *this);
  if (status.ok()) status = CheckOpen(spec, spec.producer, opened_recv_, "receiving");
  if (!status.ok()) return status;
  Peer* const peer = peers_[static_cast<size_t>(spec.producer)].get();
  Result<RecvEnd*> end = peer->OpenRecv(spec);
  if (!end.ok()) return end.status();
  opened_recv_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.memory.bytes();
  return std::unique_ptr<RecvLane>(new VerbsRecvLane(*end, peer, &counters_));
}

// Messages of peers have the work request 0, which has no other content.
Status VerbsEnd::Handle(const ibv_wc& completion) {
  const auto found = by_queue_pair_.find(completion.qp_num);
  if (found == by_queue_pair_.end()) return Status::Ok();
  Peer* const peer = found->second;
  if (completion.status != IBV_WC_SUCCESS) {
    peer->OnFailure(completion.status);
    return Status::Ok();
  }
  if (completion.wr_id == 0)
    return peer->OnMessage(ntohl(completion.imm_data), completion.byte_len);
  peer->OnSent(completion.wr_id);
  return Status::Ok();
}

Result<int> VerbsEnd::Progress(Time now) {
  if (closed_) return 0;
  Result<std::span<const ibv_wc>> completions = queues_->Poll();
  if (!completions.ok()) return completions.status();
  for (const ibv_wc& completion : *completions) {
    if (Status status = Handle(completion); !status.ok()) return status;
  }
  const auto events = static_cast<int>(completions->size());
  // A rank that waits gives back all credits, because its peers may wait for them.
  idle_polls_ = events == 0 ? std::min(idle_polls_ + 1, kIdlePolls) : 0;
  const bool all = arming_ || idle_polls_ >= kIdlePolls;
  arming_ = false;
  for (Peer* const peer : attached_) {
    if (Status status = peer->Progress(now, all); !status.ok()) return status;
  }
  return events;
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

bool VerbsEnd::delivered() const {
  return closed_ || std::all_of(attached_.begin(), attached_.end(),
                                [](const Peer* peer) { return peer->slices_delivered(); });
}

void VerbsEnd::Quiesce(Time deadline) {
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 50 * kMicrosecond};
  if (closed_ || queues_ == nullptr) return;  // or never opened
  arming_ = true;                             // a peer may wait for the last credits
  const Time soon = SystemClock().Now() + kCreditsGrace;
  const auto credits_delivered = [&] {
    return std::all_of(attached_.begin(), attached_.end(),
                       [](const Peer* peer) { return peer->delivered(); });
  };
  for (Time now = SystemClock().Now(); now < deadline; now = SystemClock().Now()) {
    const Status progress = CatchOutOfMemory([&] { return Progress(now).status(); });
    if (!progress.ok() || (delivered() && (now > soon || credits_delivered()))) break;
    nanosleep(&kPause, nullptr);
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
  Result<verbs::Device> device = verbs::Device::Open(options.ports);
  if (!device.ok()) return device.status();
  auto end = std::make_unique<verbs::VerbsEnd>(rank, nranks, options, *std::move(device));
  if (Status status = end->Open(); !status.ok()) return status;
  return std::unique_ptr<VerbsTransport>(std::move(end));
}

}  // namespace inccl
