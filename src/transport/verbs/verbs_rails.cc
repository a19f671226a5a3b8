// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_rails.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace inccl::verbs {
namespace {

constexpr unsigned int kAcknowledgeAtOnce = 64;

}  // namespace

Result<std::unique_ptr<Queues>> Queues::Create(const Device* device, uint32_t sends,
                                               uint32_t receives) {
  const Library& ibv = device->ibv();
  const auto failed = [&](const char* what) {
    return SystemErrorErrno(fmt::format("{}: {}", device->name(), what), errno);
  };
  const auto most = static_cast<uint32_t>(std::max(device->limits().max_cqe, 0));
  receives = std::min(
      {receives, static_cast<uint32_t>(device->limits().max_srq_wr), most - std::min(most, sends)});
  if (receives <= kRepostAtOnce) {
    return SystemError(fmt::format(
        "{} has queues for {} completions and {} shared receives; {} are needed for sends alone",
        device->name(), most, device->limits().max_srq_wr, sends));
  }
  Channel channel((ibv.ibv_create_comp_channel)(device->context()), ibv.ibv_destroy_comp_channel);
  if (channel == nullptr) return failed("no completion channel");
  const int flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return failed("fcntl of a completion channel");
  }
  CompletionQueue cq((ibv.ibv_create_cq)(device->context(), static_cast<int>(sends + receives),
                                         nullptr, channel.get(), 0),
                     ibv.ibv_destroy_cq);
  if (cq == nullptr) return failed("no completion queue");
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = receives;
  attributes.attr.max_sge = 1;
  SharedReceives srq((ibv.ibv_create_srq)(device->pd(), &attributes), ibv.ibv_destroy_srq);
  if (srq == nullptr) return failed("no shared receive queue");
  std::unique_ptr<Queues> made(
      new Queues(device, std::move(channel), std::move(cq), std::move(srq), receives));
  // Those that Consumed has not posted again yet are more than Reserve counts.
  if (Status status = made->Reserve(kRepostAtOnce); !status.ok()) return status;
  return made;
}

Queues::Queues(const Device* device, Channel channel, CompletionQueue cq, SharedReceives srq,
               uint32_t room)
    : device_(device),
      channel_(std::move(channel)),
      cq_(std::move(cq)),
      srq_(std::move(srq)),
      room_(room) {}

Queues::~Queues() {
  if (events_ > 0) (device_->ibv().ibv_ack_cq_events)(cq_.get(), events_);
}

Status Queues::Post(uint32_t count) {
  while (count > 0) {
    const uint32_t now = std::min(count, kRepostAtOnce);
    for (uint32_t i = 0; i < now; ++i) {
      requests_[i].next = i + 1 < now ? &requests_[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_srq_recv(srq_.get(), requests_.data(), &bad);
    if (error != 0) {
      return SystemErrorErrno(fmt::format("{}: posting a receive", device_->name()), error);
    }
    count -= now;
  }
  return Status::Ok();
}

Status Queues::Reserve(uint32_t messages) {
  if (messages > room_) {
    return SystemError(fmt::format(
        "{}: its shared receive queue has place for {} more slices, {} are needed; fewer channels "
        "(INCCL_CHANNELS) need fewer",
        device_->name(), room_, messages));
  }
  room_ -= messages;
  return Post(messages);
}

Status Queues::Consumed() {
  if (++consumed_ < kRepostAtOnce) return Status::Ok();
  return Post(std::exchange(consumed_, 0));
}

Result<std::span<const ibv_wc>> Queues::Poll() {
  const int count = ibv_poll_cq(cq_.get(), kPollAtOnce, polled_.data());
  if (count < 0) {
    return SystemError(fmt::format("{}: its completion queue has failed", device_->name()));
  }
  more_ = count == kPollAtOnce;
  return std::span<const ibv_wc>(polled_.data(), static_cast<size_t>(count));
}

// The queue is armed before the owner's last look, so a completion that the look does not find
// makes the channel readable.
void Queues::Arm() {
  armed_for_sends_ = std::exchange(await_sends_, false);
  arm_failed_ = ibv_req_notify_cq(cq_.get(), armed_for_sends_ ? 0 : 1) != 0;
}

bool Queues::Ready() {
  if (await_sends_ && !armed_for_sends_) return false;  // the look has found the need
  return !more_ && !arm_failed_;
}

void Queues::Disarm(bool readable) {
  if (!readable) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while ((device_->ibv().ibv_get_cq_event)(channel_.get(), &cq, &context) == 0) ++events_;
  if (events_ < kAcknowledgeAtOnce) return;
  (device_->ibv().ibv_ack_cq_events)(cq_.get(), std::exchange(events_, 0));
}

namespace {

constexpr uint32_t kSendDepth = 128;  // work requests per queue pair
// Receives: enough for some channels and algorithms with every peer.
constexpr uint32_t kReceivesAtLeast = 2048, kReceivesPerPeer = 512, kReceivesAtMost = 32768;

}  // namespace

Result<std::unique_ptr<Rails>> Rails::Open(int nranks, const VerbsPortOptions& ports) {
  const auto peers = static_cast<size_t>(std::max(nranks - 1, 1));
  Result<std::vector<std::unique_ptr<Device>>> devices =
      Device::Open(ports, std::min(kMostRails, peers));
  if (!devices.ok()) return devices.status();
  auto made = std::make_unique<Rails>();
  for (std::unique_ptr<Device>& device : *devices) {
    Result<Rail> rail = OpenOne(nranks, std::move(device));
    if (!rail.ok()) return rail.status();
    made->rails_.push_back(*std::move(rail));
  }
  if (made->size() == 1) return made;
  made->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  for (const Rail& rail : made->rails_) {
    epoll_event readable{.events = EPOLLIN, .data = {}};
    if (epoll_ctl(made->epoll_.get(), EPOLL_CTL_ADD, rail.queues->fd(), &readable) != 0) {
      return SystemErrorErrno("epoll of completion channels", errno);
    }
  }
  return made;
}

Result<Rails::Rail> Rails::OpenOne(int nranks, std::unique_ptr<Device> device) {
  Rail rail;
  rail.device = std::move(device);
  const auto n = static_cast<uint32_t>(nranks);
  rail.depth =
      std::min(kSendDepth, static_cast<uint32_t>(std::max(rail.device->limits().max_qp_wr, 1)));
  const uint32_t receives =
      std::min(std::max(kReceivesAtLeast, kReceivesPerPeer * n), kReceivesAtMost);
  Result<std::unique_ptr<Queues>> queues =
      Queues::Create(rail.device.get(), rail.depth * (n - 1), receives);
  if (!queues.ok()) return queues.status();
  Result<RegisteredMemory> in = rail.device->Allocate(size_t{n} * kInboxBytes, Writer::kPeers);
  if (!in.ok()) return in.status();
  Result<RegisteredMemory> out = rail.device->Allocate(size_t{n} * kInboxBytes, Writer::kThisRank);
  if (!out.ok()) return out.status();
  rail.queues = *std::move(queues);
  rail.inboxes = *std::move(in);
  rail.outboxes = *std::move(out);
  return rail;
}

Slots Rails::Part(const RegisteredMemory& memory, int peer) {
  Slots slots;
  slots.base = memory.data() + static_cast<size_t>(peer) * kInboxBytes;
  slots.stride = kInboxStride;
  slots.local_key = memory.region->lkey;
  slots.depth = kInboxDepth;
  return slots;
}

std::vector<const Device*> Rails::devices() const {
  std::vector<const Device*> all;
  for (const Rail& rail : rails_) all.push_back(rail.device.get());
  return all;
}

RailAddress Rails::AddressOf(size_t rail) const {
  const Device& port = device(rail);
  const RegisteredMemory& inboxes = rails_[rail].inboxes;
  return {.ethernet = port.ethernet(),
          .mtu = static_cast<uint8_t>(port.mtu()),
          .lid = port.lid(),
          .gid = port.gid(),
          .inbox = reinterpret_cast<uint64_t>(inboxes.data()),
          .inbox_key = inboxes.region->rkey};
}

void Rails::Arm() {
  for (const Rail& rail : rails_) rail.queues->Arm();
}

bool Rails::Ready() {
  return std::all_of(rails_.begin(), rails_.end(),
                     [](const Rail& rail) { return rail.queues->Ready(); });
}

void Rails::Disarm(bool readable) {
  for (const Rail& rail : rails_) rail.queues->Disarm(readable);
}

}  // namespace inccl::verbs
