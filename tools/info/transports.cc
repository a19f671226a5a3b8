// SPDX-License-Identifier: Apache-2.0
//
// Tries every transport in this process.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "config/variables.h"
#include "init/thread_transports.h"
#include "tools/info/sections.h"
#include "transport/verbs/verbs_wire.h"
#include "tuning/segmentation.h"

namespace inccl::tools {
namespace {

using Ends = std::vector<std::unique_ptr<Transport>>;

// Waits until `there` returns true or an error.
Result<bool> Await(const Ends& ends, const std::function<Result<bool>()>& there) {
  const Time limit = SystemClock().Now() + 5 * kSecond;
  while (true) {
    for (const std::unique_ptr<Transport>& end : ends) {
      Result<int> events = end->Progress(SystemClock().Now());
      if (!events.ok()) return events.status();
    }
    Result<bool> is_there = there();
    if (!is_there.ok() || *is_there || SystemClock().Now() > limit) return is_there;
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
  Span slot;
  Result<bool> free = Await(ends, [&]() -> Result<bool> {
    Result<Span> got = (*send)->TryAcquire();
    if (!got.ok()) return got.status();
    slot = *got;
    return slot.data != nullptr;
  });
  if (!free.ok()) return free.status();
  if (!*free) return InternalError("a new lane has no free slot");
  std::fill(slot.data, slot.data + spec.slot_bytes, std::byte{0x5A});
  if (Status status = (*send)->Publish({.bytes = spec.slot_bytes}); !status.ok()) return status;
  RecvLane::Incoming incoming;
  Result<bool> there = Await(ends, [&] { return (*recv)->TryPeek(&incoming); });
  if (!there.ok()) return there.status();
  if (!*there || incoming.header.bytes != spec.slot_bytes ||
      !std::all_of(incoming.payload, incoming.payload + spec.slot_bytes,
                   [](std::byte byte) { return byte == std::byte{0x5A}; })) {
    return InternalError("a slice did not arrive as it was sent");
  }
  *memory_bytes = ends[0]->memory_bytes();
  return (*recv)->Release();
}

// `environment`: as the user has set it.
Json Probe(const char* name, const char* joins, Environment environment) {
  environment.transport = name;
  Result<Ends> ends = MakeThreadTransports(2, environment);
  Status status = ends.status();
  uint64_t memory_bytes = 0;
  if (status.ok()) status = SendOne(*ends, &memory_bytes);
  Json json = {{"name", name}, {"works", status.ok()}, {"joins", joins}};
  // The text behind "no common transport of INCCL_TRANSPORT=...: NAME: ".
  const std::string prefix = fmt::format(": {}: ", name);
  const size_t begin = status.message().find(prefix);
  const size_t skip = begin == std::string::npos ? 0 : begin + prefix.size();
  json["why_not"] = status.ok() ? Json() : Json(status.message().substr(skip));
  if (status.ok()) {
    constexpr int kConsumers[] = {1};
    const LaneCaps caps = (*ends)[0]->CapsFor(0, kConsumers);
    json["max_slot_bytes"] = caps.max_slot_bytes;
    json["multicast"] = caps.multicast;
  }
  return json;
}

// The ports of the RDMA devices.
Json Ports(const Environment& environment) {
  Json json = Json::array();
  const Result<std::vector<VerbsPort>> ports =
      ListVerbsPorts({.hca = environment.ib_hca, .gid_index = environment.ib_gid_index});
  if (!ports.ok()) return json;
  for (const VerbsPort& port : *ports) {
    const std::string gpus =
        environment.net_security == NetSecurity::kNone
            ? port.why_no_dma_bufs
            : fmt::format("INCCL_NET_SECURITY={}, not none", Name(environment.net_security));
    json.push_back({{"port", fmt::format("{}:{}", port.device, port.port)},
                    {"state", port.state},
                    {"link", port.ethernet ? "Ethernet" : "InfiniBand"},
                    {"mtu", port.mtu},
                    {"gid_index", port.gid_index < 0 ? Json() : Json(port.gid_index)},
                    {"gid", port.gid_index < 0 ? Json() : Json(port.gid)},
                    {"why_not", port.why_not.empty() ? Json() : Json(port.why_not)},
                    {"gpu_memory_why_not", gpus.empty() ? Json() : Json(gpus)}});
  }
  return json;
}

}  // namespace

Json TransportsSection() {
  Result<Environment> environment =
      ReadEnvironment([](const char* name) { return secure_getenv(name); });
  Json json = Json::array();
  for (const auto& [name, joins] :
       {std::pair("loopback", "threads of one process"), std::pair("shm", "processes of one host"),
        std::pair("verbs", "processes of any hosts"), std::pair("ucx", "processes of one host"),
        std::pair("tcp", "processes of any hosts")}) {
    const Environment used = environment.ok() ? *environment : Environment();
    json.push_back(Probe(name, joins, used));
    if (name == std::string_view("verbs")) json.back()["ports"] = Ports(used);
  }
  return json;
}

}  // namespace inccl::tools
