// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_rails.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace inccl::verbs {
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
