// SPDX-License-Identifier: Apache-2.0
#include "init/transport_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "init/options.h"
#include "topology/processors.h"
#include "transport/shm/shm_factory.h"
#include "transport/tcp/tcp_factory.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_factory.h"
#include "transport/verbs/verbs_factory.h"

namespace inccl {
namespace {

// The slots of default size that the two-shot lanes of a rank make when they open, together. Fewer
// lanes make more each, since a rank that finds no free slot must look at its peers' credits.
constexpr int kSlotsAtOpening = 8;
constexpr size_t kSlotBytes = 128 * 1024;
// For headers, credits and side information.
constexpr size_t kSmallThings = 96 * 1024;

// For a rank that works on a device, all slots of a direct call. The device registers slots before
// the first call, because registration might wait for streams that wait for the call.
constexpr size_t kDeviceLane = 4 * size_t{kDeviceSliceBytes} + 128 * 1024;  // with side information
constexpr int kMostDeviceLanes = 17;

using MadeFactory = Result<std::unique_ptr<TransportFactory>>;

MadeFactory MakeShm(const FactoryArgs& args) {
  return MakeShmFactory(args.rank, args.nranks,
                        {.commit_ahead = CommitAhead(args.nranks, args.for_device),
                         .slots_at_opening = static_cast<uint32_t>(kSlotsAtOpening / args.nranks),
                         .for_device = args.for_device});
}

MadeFactory MakeUcx(const FactoryArgs& args) {
  UcxOptions options;
  options.tls = args.environment->ucx_tls;
  return MakeUcxFactory(args.rank, args.nranks, options);
}

constexpr int64_t kTwoShotSlots = 16;  // per peer, of a two-shot call over a network

constexpr const char* kThreadsOnly = "loopback joins threads of one process only";

tcp::Protection ProtectionOf(NetSecurity security) {
  switch (security) {
    case NetSecurity::kAuth: return tcp::Protection::kAuth;
    case NetSecurity::kEncrypt: return tcp::Protection::kEncrypt;
    case NetSecurity::kNone: break;
  }
  return tcp::Protection::kNone;
}

MadeFactory MakeTcp(const FactoryArgs& args) {
  const Environment& environment = *args.environment;
  Result<ListenRules> listen = ListenRules::Of(environment);
  if (!listen.ok()) return listen.status();
  TcpOptions options;
  options.listen = *std::move(listen);
  options.interfaces = environment.socket_ifname;
  options.sockets_per_peer = environment.sockets_per_peer;
  options.protection = ProtectionOf(environment.net_security);
  return MakeTcpFactory(args.rank, args.nranks, options);
}

MadeFactory MakeVerbs(const FactoryArgs& args) {
  const Environment& environment = *args.environment;
  VerbsOptions options;
  options.ports = {.hca = environment.ib_hca,
                   .gid_index = environment.ib_gid_index,
                   .nodes = BoundNodes(AllowedCpus())};
  options.traffic_class = environment.ib_tc;
  options.timeout = environment.ib_timeout;
  options.protection = ProtectionOf(environment.net_security);
  options.expected_bytes = static_cast<uint64_t>(std::min(
      kTwoShotSlots * (args.nranks - 1) * environment.slice_bytes, environment.slot_bytes_max));
  return MakeVerbsFactory(args.rank, args.nranks, options);
}

std::string OneHostOnly(const Places& places, int a, int b) {
  if (!places.hosts.SameHost(a, b)) {
    return fmt::format("ranks {} and {} are on different hosts", a, b);
  }
  if (places.machines.SameHost(a, b)) return "";
  return fmt::format("ranks {} and {} are on different machines, although INCCL_HOSTID is equal", a,
                     b);
}

std::string UcxBetween(const Places& places, int a, int b) {
  if (places.machines.SameHost(a, b) || !places.environment.ucx_tls.empty()) return "";
  return fmt::format(
      "ranks {} and {} are on different machines, and INCCL_UCX_TLS names no network", a, b);
}

constexpr TransportRow kRows[] = {
    {.name = "loopback",
     .make = [](const FactoryArgs&) { return MadeFactory(InvalidUsage(kThreadsOnly)); },
     .caps = [] { return Caps{.name = "loopback"}; },
     .unusable = [](const Places&, int, int) { return std::string(kThreadsOnly); },
     .attach_needs_peers = false,
     .tries_paths = false,
     .connects = false},
    {.name = "shm",
     .make = MakeShm,
     .caps = [] { return ShmTransport::CapsOf(ShmOptions{}); },
     .unusable = OneHostOnly,
     .attach_needs_peers = false,
     .tries_paths = false,
     .connects = false},
    {.name = "verbs",
     .make = MakeVerbs,
     .caps = VerbsTransport::CapsOf,
     .unusable = [](const Places&, int, int) { return std::string(); },
     .attach_needs_peers = true,
     .tries_paths = true,
     .connects = true},
    {.name = "ucx",
     .make = MakeUcx,
     .caps = [] { return Caps{.name = "ucx"}; },
     .unusable = UcxBetween,
     .attach_needs_peers = true,
     .tries_paths = false,
     .connects = false},
    {.name = "tcp",
     .make = MakeTcp,
     .caps = TcpTransport::CapsOf,
     .unusable = [](const Places&, int, int) { return std::string(); },
     .attach_needs_peers = true,
     .tries_paths = false,
     .connects = true},
};

}  // namespace

const TransportRow& RowOf(std::string_view name) {
  return *std::find_if(std::begin(kRows), std::end(kRows),
                       [&](const TransportRow& row) { return row.name == name; });
}

size_t CommitAhead(int nranks, bool for_device) {
  if (!for_device) {
    // Those of the two-shot lanes and of the one-shot lane.
    const int slots =
        std::max(1, kSlotsAtOpening / nranks) * (std::min(nranks, kSlotsAtOpening) + 1);
    return static_cast<size_t>(slots) * kSlotBytes + kSmallThings;
  }
  return static_cast<size_t>(std::min(nranks + 1, kMostDeviceLanes)) * kDeviceLane;
}

std::vector<std::string> TransportNames(const Environment& environment,
                                        std::vector<std::string> standard) {
  std::string_view list = environment.transport;
  if (list.empty()) return standard;
  std::vector<std::string> names;
  while (true) {
    const size_t comma = list.find(',');
    std::string name(list.substr(0, comma));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    if (comma == std::string_view::npos) return names;
    list.remove_prefix(comma + 1);
  }
}

void AddReason(std::string_view name, const std::string& why, std::string* reasons) {
  if (!reasons->empty()) *reasons += "; ";
  *reasons += fmt::format("{}: {}", name, why);
}

std::string OfVariable(const Environment& environment) {
  return environment.transport.empty()
             ? std::string()
             : fmt::format(" of INCCL_TRANSPORT={}", environment.transport);
}

}  // namespace inccl
