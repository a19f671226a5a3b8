// SPDX-License-Identifier: Apache-2.0
//
// Tries every transport in this process.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "config/variables.h"
#include "tools/info/sections.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"
#include "transport/ucx/ucx_transport.h"
#include "tuning/segmentation.h"

namespace inccl::tools {
namespace {

using Ends = std::vector<std::unique_ptr<Transport>>;

Result<Ends> LoopbackEnds() {
  Ends ends = MakeLoopback(2);
  if (ends.empty()) return SystemError("no address space for the ranks' slots (ulimit -v)");
  return ends;
}

// As between processes, but that descriptors are duplicated instead of sent.
Result<Ends> ShmEnds() {
  std::vector<std::unique_ptr<ShmTransport>> made;
  for (int rank = 0; rank < 2; ++rank) {
    Result<std::unique_ptr<ShmTransport>> end = ShmTransport::Create(rank, 2);
    if (!end.ok()) return end.status();
    made.push_back(*std::move(end));
  }
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<int> fds = made[static_cast<size_t>(1 - rank)]->fds_to_share();
    std::vector<UniqueFd> shared;
    for (const int fd : fds) {
      shared.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!shared.back().valid()) return SystemErrorErrno("dup of a memfd", errno);
    }
    Status status = made[static_cast<size_t>(rank)]->Attach(
        1 - rank, std::move(shared[0]), std::move(shared[1]), std::move(shared[2]),
        std::move(shared[3]));
    if (!status.ok()) return status;
  }
  Ends ends;
  for (std::unique_ptr<ShmTransport>& end : made) ends.push_back(std::move(end));
  return ends;
}

Result<Ends> UcxEnds() {
  Result<Environment> environment =
      ReadEnvironment([](const char* name) { return secure_getenv(name); });
  if (!environment.ok()) return environment.status();
  UcxOptions options;
  options.tls = environment->ucx_tls;
  std::vector<std::unique_ptr<UcxTransport>> made;
  for (int rank = 0; rank < 2; ++rank) {
    Result<std::unique_ptr<UcxTransport>> end = UcxTransport::Create(rank, 2, options);
    if (!end.ok()) return end.status();
    made.push_back(*std::move(end));
  }
  for (int rank = 0; rank < 2; ++rank) {
    Status status = made[static_cast<size_t>(rank)]->Attach(
        1 - rank, made[static_cast<size_t>(1 - rank)]->address());
    if (!status.ok()) return status;
  }
  Ends ends;
  for (std::unique_ptr<UcxTransport>& end : made) ends.push_back(std::move(end));
  return ends;
}

// Waits until the slice is there.
Result<bool> Await(const Ends& ends, RecvLane* recv, RecvLane::Incoming* incoming) {
  const Time limit = SystemClock().Now() + 5 * kSecond;
  while (true) {
    for (const std::unique_ptr<Transport>& end : ends) {
      Result<int> events = end->Progress(SystemClock().Now());
      if (!events.ok()) return events.status();
    }
    Result<bool> there = recv->TryPeek(incoming);
    if (!there.ok() || *there || SystemClock().Now() > limit) return there;
  }
}

// Sends one slice of the largest size that is used by default.
Status SendOne(const Ends& ends, uint64_t* memory_bytes) {
  const LaneSpec spec{.lane_class = LaneClass::kData,
                      .channel = 0,
                      .producer = 0,
                      .consumers = {1},
                      .slot_bytes = SlotsFor(128 * 1024).data_bytes,
                      .depth = 2};
  Result<std::unique_ptr<SendLane>> send = ends[0]->OpenSend(spec);
  if (!send.ok()) return send.status();
  Result<std::unique_ptr<RecvLane>> recv = ends[1]->OpenRecv(spec);
  if (!recv.ok()) return recv.status();
  Result<Span> slot = (*send)->TryAcquire();
  if (!slot.ok()) return slot.status();
  if (slot->data == nullptr) return InternalError("a new lane has no free slot");
  std::fill(slot->data, slot->data + spec.slot_bytes, std::byte{0x5A});
  if (Status status = (*send)->Publish({.bytes = spec.slot_bytes}); !status.ok()) return status;
  RecvLane::Incoming incoming;
  Result<bool> there = Await(ends, recv->get(), &incoming);
  if (!there.ok()) return there.status();
  if (!*there || incoming.header.bytes != spec.slot_bytes ||
      !std::all_of(incoming.payload, incoming.payload + spec.slot_bytes,
                   [](std::byte byte) { return byte == std::byte{0x5A}; })) {
    return InternalError("a slice did not arrive as it was sent");
  }
  *memory_bytes = ends[0]->memory_bytes();
  return (*recv)->Release();
}

Json Probe(const char* name, const char* joins, Result<Ends> ends) {
  Status status = ends.status();
  uint64_t memory_bytes = 0;
  if (status.ok()) status = SendOne(*ends, &memory_bytes);
  Json json = {{"name", name}, {"works", status.ok()}, {"joins", joins}};
  json["why_not"] = status.ok() ? Json() : Json(status.message());
  if (status.ok()) {
    constexpr int kConsumers[] = {1};
    const LaneCaps caps = (*ends)[0]->CapsFor(0, kConsumers);
    json["max_slot_bytes"] = caps.max_slot_bytes;
    json["multicast"] = caps.multicast;
  }
  return json;
}

}  // namespace

Json TransportsSection() {
  Json json = Json::array();
  json.push_back(Probe("loopback", "threads of one process", LoopbackEnds()));
  json.push_back(Probe("shm", "processes of one host", ShmEnds()));
  json.push_back(Probe("ucx", "processes of one host", UcxEnds()));
  return json;
}

}  // namespace inccl::tools
