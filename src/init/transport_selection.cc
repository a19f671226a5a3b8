// SPDX-License-Identifier: Apache-2.0
#include "init/transport_selection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/mesh.h"
#include "device/runtime.h"
#include "init/options.h"
#include "topology/processors.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/verbs/verbs_transport.h"

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
     .connects = false,
     .cheap = [] { return true; }},
    {.name = "shm",
     .make = MakeShm,
     .caps = [] { return ShmTransport::CapsOf(ShmOptions{}); },
     .unusable = OneHostOnly,
     .attach_needs_peers = false,
     .tries_paths = false,
     .connects = false,
     .cheap = [] { return true; }},
    {.name = "verbs",
     .make = MakeVerbs,
     .caps = VerbsTransport::CapsOf,
     .unusable = [](const Places&, int, int) { return std::string(); },
     .attach_needs_peers = true,
     .tries_paths = true,
     .connects = true,
     .cheap = [] { return access("/sys/class/infiniband", F_OK) != 0; }},
    {.name = "ucx",
     .make = MakeUcx,
     .caps = [] { return Caps{.name = "ucx"}; },
     .unusable = UcxBetween,
     .attach_needs_peers = true,
     .tries_paths = false,
     .connects = false,
     .cheap = [] { return false; }},
    {.name = "tcp",
     .make = MakeTcp,
     .caps = TcpTransport::CapsOf,
     .unusable = [](const Places&, int, int) { return std::string(); },
     .attach_needs_peers = true,
     .tries_paths = false,
     .connects = true,
     .cheap = [] { return true; }},
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

namespace {

constexpr uint32_t kOfferMagic = 0x33666f69;  // "iof3"
constexpr size_t kMaxName = 32, kMaxReason = 2048, kMaxPathReason = 512;

}  // namespace

std::vector<std::byte> TransportOffer::Encode() const {
  ByteWriter writer;
  writer.U32(kOfferMagic);
  writer.String(transport);
  writer.U32(static_cast<uint32_t>(status.code()));
  writer.String(std::string_view(status.message()).substr(0, kMaxReason));
  writer.String({reinterpret_cast<const char*>(payload.data()), payload.size()});
  writer.U8(device_slices ? 1 : 0);
  writer.U32(link_mbps);
  return writer.bytes();
}

Result<TransportOffer> TransportOffer::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  TransportOffer offer;
  uint32_t magic = 0, code = 0;
  uint8_t device_slices = 0;
  std::string reason, payload;
  if (!reader.U32(&magic) || magic != kOfferMagic || !reader.String(&offer.transport, kMaxName) ||
      !reader.U32(&code) || code > static_cast<uint32_t>(Code::kTimeout) ||
      !reader.String(&reason, kMaxReason) || !reader.String(&payload, kMaxBlob) ||
      !reader.U8(&device_slices) || device_slices > 1 || !reader.U32(&offer.link_mbps) ||
      reader.remaining() != 0) {
    return InternalError("malformed offer of a transport");
  }
  offer.status = Status(static_cast<Code>(code), Escaped(reason));
  offer.device_slices = device_slices == 1;
  const auto content = std::as_bytes(std::span(payload));
  offer.payload.assign(content.begin(), content.end());
  return offer;
}

std::vector<std::byte> EncodePathFailures(std::span<const PathFailure> failures) {
  if (failures.empty()) return {};
  ByteWriter writer;
  writer.String(std::string_view(failures.front().why).substr(0, kMaxPathReason));
  for (const PathFailure& failure : failures) writer.U16(static_cast<uint16_t>(failure.peer));
  return writer.bytes();
}

Result<std::vector<PathFailure>> DecodePathFailures(std::span<const std::byte> bytes, int nranks) {
  std::vector<PathFailure> failures;
  if (bytes.empty()) return failures;
  ByteReader reader(bytes);
  std::string why;
  if (!reader.String(&why, kMaxPathReason)) return InternalError("malformed failures of paths");
  while (reader.remaining() > 0) {
    uint16_t peer = 0;
    if (!reader.U16(&peer) || peer >= nranks) return InternalError("malformed failures of paths");
    failures.push_back({.peer = peer, .why = Escaped(why)});
  }
  return failures;
}

namespace {

bool OnDevice() {
  Device* const device = CurrentDevice();
  return device != nullptr && device->InUse();
}

}  // namespace

TransportSelection::TransportSelection(int rank, int nranks, const Environment& environment,
                                       bool device_slices)
    : rank_(rank),
      nranks_(nranks),
      environment_(environment),
      device_slices_(device_slices),
      link_mbps_(bootstrap::LinkMbps(environment.socket_ifname)),
      names_(TransportNames(environment, {"shm", "verbs", "ucx", "tcp"})),
      table_(nranks) {}

TransportOffer TransportSelection::Make(const std::string& name,
                                        std::unique_ptr<TransportFactory>* made) const {
  TransportOffer offer;
  offer.transport = name;
  offer.device_slices = device_slices_;
  offer.link_mbps = link_mbps_;
  Result<std::unique_ptr<TransportFactory>> result =
      RowOf(name).make({.rank = rank_,
                        .nranks = nranks_,
                        .environment = &environment_,
                        .for_device = device_slices_ && OnDevice()});
  offer.status = result.status();
  if (result.ok()) {
    *made = *std::move(result);
    offer.payload = (*made)->payload();
  } else {
    made->reset();
  }
  return offer;
}

void TransportSelection::Advertise(JoinOptions* options) {
  for (const std::string& name : names_) {
    if (name != names_.front() && name != "shm") continue;
    Made& made = made_[name];
    made.offer = Make(name, &made.factory);
    made.advertised = name == names_.front();
    if (made.factory != nullptr) options->share_fds = made.factory->fds_to_share();
  }
  options->blob = Blob();
  options->network_blob = [this] {
    for (const std::string& name : names_) {
      if (!RowOf(name).cheap()) continue;
      const auto [place, is_new] = made_.try_emplace(name);
      if (is_new) place->second.offer = Make(name, &place->second.factory);
      place->second.advertised = true;
    }
    return Blob();
  };
}

std::vector<std::byte> TransportSelection::Blob() const {
  ByteWriter writer;
  for (const auto& [name, made] : made_) {
    if (!made.advertised) continue;
    const std::vector<std::byte> offer = made.offer.Encode();
    writer.String({reinterpret_cast<const char*>(offer.data()), offer.size()});
  }
  return writer.bytes();
}

JoinOptions::Alongside TransportSelection::Begin(const Mesh& mesh, const HostMap& hosts,
                                                 const ConnectLimits& limits) {
  std::vector<uint64_t> identities;
  for (const Peer& peer : mesh.peers) identities.push_back(peer.info.machine_id);
  const HostMap machines(identities);
  const Places places{.hosts = hosts, .machines = machines, .environment = environment_};
  // By transport, the peers for which nothing but what the ranks have offered decides. This rank
  // begins with the only transport that needs both ranks, if it has all of that one's peers.
  std::map<std::string, std::vector<int>> peers_of;
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == rank_) continue;
    const auto decides = [&](const std::string& name) {
      const auto offers = offers_.find(name);
      if (!RowOf(name).unusable(places, rank_, peer).empty()) return false;
      return offers == offers_.end() || (offers->second[static_cast<size_t>(rank_)].status.ok() &&
                                         offers->second[static_cast<size_t>(peer)].status.ok());
    };
    const auto chosen = std::find_if(names_.begin(), names_.end(), decides);
    if (chosen == names_.end() || !offers_.contains(*chosen)) return {};
    peers_of[*chosen].push_back(peer);
  }
  for (const auto& [name, peers] : peers_of) {
    const auto made = made_.find(name);
    if (!RowOf(name).connects || made == made_.end() || made->second.factory == nullptr) continue;
    TransportFactory* const factory = made->second.factory.get();
    const Offers& offers = offers_[name];
    for (const int peer : peers) {
      const PeerInfo& info = mesh.peers[static_cast<size_t>(peer)].info;
      if (!factory->Announce(info, offers[static_cast<size_t>(peer)].payload).ok()) return {};
    }
    const int fd = factory->Begin(mesh, limits);
    if (fd < 0) return {};
    return {.fd = fd, .advance = [factory] { factory->Advance(); }};
  }
  return {};
}

Status TransportSelection::Error(const Status& status) const {
  return {status.code(), fmt::format("rank {}/{}: init: {}", rank_, nranks_, status.message())};
}

Status TransportSelection::TakeOffers(const Mesh& mesh) {
  for (const Peer& peer : mesh.peers) {
    ByteReader reader(peer.info.blob);
    std::string bytes;
    bool has_first = false, well_formed = true;
    while (reader.remaining() > 0) {
      Result<TransportOffer> offer = InternalError("cut");
      if (reader.String(&bytes, kMaxBlob))
        offer = TransportOffer::Decode(std::as_bytes(std::span(bytes)));
      well_formed = well_formed && offer.ok();
      if (!well_formed) break;
      if (offer->transport == names_.front()) {
        has_first = true;
        device_slices_ = device_slices_ && offer->device_slices;
        link_mbps_ = std::min(link_mbps_, offer->link_mbps);
      }
      Offers& of_all = offers_[offer->transport];
      const auto before = static_cast<size_t>(peer.info.rank);
      well_formed = of_all.size() <= before;  // not a second one
      if (of_all.size() == before) of_all.push_back(*std::move(offer));
    }
    if (!has_first || !well_formed) {
      return Error(InternalError(fmt::format("peer rank {} sent no offer of the transport {}",
                                             peer.info.rank, names_.front())));
    }
  }
  std::erase_if(offers_, [&](const auto& of) { return of.second.size() != mesh.peers.size(); });
  return Status::Ok();
}

Result<TransportSelection::Offers> TransportSelection::Exchange(const Joining& joining,
                                                                const TransportOffer& mine) const {
  Result<bootstrap::Blobs> blobs = joining.rendezvous->Exchange(mine.Encode());
  if (!blobs.ok()) return blobs.status();
  Offers offers;
  for (const std::vector<std::byte>& blob : *blobs) {
    Result<TransportOffer> offer = TransportOffer::Decode(blob);
    if (!offer.ok() || offer->transport != mine.transport) {
      return Error(InternalError(fmt::format("peer rank {} sent no offer of the transport {}",
                                             offers.size(), mine.transport)));
    }
    offers.push_back(*std::move(offer));
  }
  return offers;
}

bool TransportSelection::CanUse(const Attempt& attempt, const Places& places, int a, int b) const {
  return attempt.of_rank[static_cast<size_t>(a)].ok() &&
         attempt.of_rank[static_cast<size_t>(b)].ok() &&
         !attempt.no_path.contains(std::minmax(a, b)) &&
         attempt.row->unusable(places, a, b).empty();
}

bool TransportSelection::Needed(const Attempt& attempt, const Places& places, int rank) const {
  if (nranks_ == 1) return attempt.of_rank[0].ok();
  for (int a = 0; a < nranks_; ++a) {
    for (int b = a + 1; b < nranks_; ++b) {
      const bool asked = rank < 0 || rank == a || rank == b;
      if (asked && table_.Of(a, b) == PairTable::kNone && CanUse(attempt, places, a, b))
        return true;
    }
  }
  return false;
}

TransportOffer TransportSelection::OfferOf(const std::string& name, bool needed,
                                           std::unique_ptr<TransportFactory>* made) {
  if (!needed) {
    TransportOffer none;
    none.transport = name;
    return none;
  }
  const auto before = made_.find(name);
  if (before == made_.end()) return Make(name, made);
  *made = std::move(before->second.factory);
  return before->second.offer;
}

Status TransportSelection::Attach(const Attempt& attempt, const Joining& joining,
                                  const Places& places, const Offers& offers) const {
  for (Peer& peer : joining.mesh->peers) {
    const int other = peer.info.rank;
    if (other == rank_ || table_.Of(rank_, other) != PairTable::kNone ||
        !CanUse(attempt, places, rank_, other)) {
      continue;
    }
    Status status = attempt.factory->Attach(&peer, offers[static_cast<size_t>(other)].payload);
    if (!status.ok()) return status;
  }
  if (attempt.factory == nullptr) return Status::Ok();
  return attempt.factory->Connect(*joining.mesh, joining.limits);
}

Status TransportSelection::Try(const std::string& name, const Joining& joining,
                               const Places& places) {
  Offers offers;
  const auto number = static_cast<int>(attempts_.size());
  Attempt& attempt = attempts_.emplace_back();
  attempt.row = &RowOf(name);
  attempt.of_rank.resize(static_cast<size_t>(nranks_));
  if (!Needed(attempt, places)) return Status::Ok();  // no rank makes it
  if (const auto advertised = offers_.find(name); advertised != offers_.end()) {
    offers = std::move(advertised->second);
    if (number == 0 || Needed(attempt, places, rank_)) {
      attempt.factory = std::move(made_[name].factory);
    }
  } else {
    const TransportOffer mine = OfferOf(name, Needed(attempt, places, rank_), &attempt.factory);
    Result<Offers> further = Exchange(joining, mine);
    if (!further.ok()) return further.status();
    offers = *std::move(further);
  }
  for (size_t rank = 0; rank < offers.size(); ++rank) attempt.of_rank[rank] = offers[rank].status;
  if (Needed(attempt, places)) {
    TransportOffer attached;
    attached.transport = name;
    attached.status = Attach(attempt, joining, places, offers);
    // No other transport takes the place of the last one: the end of the join is where ranks wait
    // for each other then.
    const bool last = name == names_.back() && attempt.row->connects && !attempt.row->tries_paths;
    if (attempt.row->attach_needs_peers && !last) {
      Result<Offers> all = Exchange(joining, attached);
      if (!all.ok()) return all.status();
      for (size_t rank = 0; rank < all->size(); ++rank) {
        if (attempt.of_rank[rank].ok()) attempt.of_rank[rank] = (*all)[rank].status;
      }
      if (attempt.row->tries_paths && Needed(attempt, places)) {
        Status tried = TryPaths(&attempt, joining, places);
        if (!tried.ok()) return tried;
      }
    } else if (!attached.status.ok()) {
      return attached.status;
    }
  }
  Assign(number, places);
  return Status::Ok();
}

Status TransportSelection::TryPaths(Attempt* attempt, const Joining& joining,
                                    const Places& places) {
  std::vector<int> peers;
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer != rank_ && table_.Of(rank_, peer) == PairTable::kNone &&
        CanUse(*attempt, places, rank_, peer)) {
      peers.push_back(peer);
    }
  }
  std::vector<PathFailure> failures;
  if (!peers.empty()) {
    Result<std::vector<PathFailure>> tried = attempt->factory->TryPaths(peers, joining.limits);
    if (!tried.ok()) return Error(tried.status());
    failures = *std::move(tried);
  }
  TransportOffer mine;
  mine.transport = attempt->row->name;
  mine.payload = EncodePathFailures(failures);
  Result<Offers> all = Exchange(joining, mine);
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < nranks_; ++rank) {
    Result<std::vector<PathFailure>> of_rank =
        DecodePathFailures((*all)[static_cast<size_t>(rank)].payload, nranks_);
    if (!of_rank.ok()) {
      return Error(
          InternalError(fmt::format("peer rank {} sent {}", rank, of_rank.status().message())));
    }
    for (const PathFailure& failure : *of_rank) {
      if (failure.peer == rank) continue;
      attempt->no_path.try_emplace(
          std::minmax(rank, failure.peer),
          fmt::format("between ranks {} and {}: rank {}: {}", std::min(rank, failure.peer),
                      std::max(rank, failure.peer), rank, failure.why));
    }
  }
  return Status::Ok();
}

std::string TransportSelection::PathFailures(const Attempt& attempt) {
  const size_t others = attempt.no_path.size() - 1;
  std::string why = attempt.no_path.begin()->second;
  if (others > 0) why += fmt::format(" (and {} other pair{})", others, others > 1 ? "s" : "");
  return why;
}

void TransportSelection::Assign(int number, const Places& places) {
  Attempt& attempt = attempts_[static_cast<size_t>(number)];
  bool by_this_rank = attempt.used = nranks_ == 1 && attempt.of_rank[0].ok();
  for (int a = 0; a < nranks_; ++a) {
    for (int b = a + 1; b < nranks_; ++b) {
      if (table_.Of(a, b) != PairTable::kNone || !CanUse(attempt, places, a, b)) continue;
      table_.Set(a, b, number);
      attempt.used = true;
      by_this_rank = by_this_rank || a == rank_ || b == rank_;
    }
  }
  if (!by_this_rank) attempt.factory.reset();
}

std::string TransportSelection::Failure(const Attempt& attempt, int first) {
  std::string why =
      fmt::format("on rank {}: {}", first, attempt.of_rank[static_cast<size_t>(first)].message());
  const auto others = std::count_if(attempt.of_rank.begin(), attempt.of_rank.end(),
                                    [](const Status& status) { return !status.ok(); }) -
                      1;
  if (others > 0) why += fmt::format(" (and on {} other rank{})", others, others > 1 ? "s" : "");
  return why;
}

Status TransportSelection::NoneFor(int a, int b, int other_pairs, const Places& places) const {
  Code code = Code::kInvalidUsage;
  std::string reasons;
  for (const Attempt& attempt : attempts_) {
    std::string unusable = a == b ? "" : attempt.row->unusable(places, a, b);
    const auto no_path = attempt.no_path.find(std::minmax(a, b));
    if (no_path != attempt.no_path.end()) unusable = no_path->second;
    const int failed = attempt.of_rank[static_cast<size_t>(a)].ok() ? b : a;
    code = unusable.empty() ? attempt.of_rank[static_cast<size_t>(failed)].code()
                            : Code::kInvalidUsage;
    AddReason(attempt.row->name, unusable.empty() ? Failure(attempt, failed) : unusable, &reasons);
  }
  std::string pair = a == b ? "" : fmt::format(" for ranks {} and {}", a, b);
  if (other_pairs > 0) {
    pair += fmt::format(" (and {} other pair{})", other_pairs, other_pairs > 1 ? "s" : "");
  }
  return Error(
      {code, fmt::format("no common transport{}{}: {}", OfVariable(environment_), pair, reasons)});
}

Status TransportSelection::CheckComplete(const Places& places) const {
  if (nranks_ == 1) {
    return attempts_.back().used ? Status::Ok() : NoneFor(0, 0, 0, places);
  }
  int first_a = -1, first_b = -1, missing = 0;
  for (int a = 0; a < nranks_; ++a) {
    for (int b = a + 1; b < nranks_; ++b) {
      if (table_.Of(a, b) != PairTable::kNone) continue;
      if (missing++ == 0) first_a = a, first_b = b;
    }
  }
  return missing == 0 ? Status::Ok() : NoneFor(first_a, first_b, missing - 1, places);
}

Result<std::unique_ptr<Transport>> TransportSelection::Compose() {
  std::vector<size_t> used;
  for (size_t i = 0; i < attempts_.size(); ++i) {
    if (attempts_[i].used) used.push_back(i);
  }
  if (used.size() == 1) return attempts_[used[0]].factory->Take(/*alone=*/true);
  std::sort(used.begin(), used.end(),
            [&](size_t a, size_t b) { return attempts_[a].row < attempts_[b].row; });
  PairTable table(nranks_);
  for (int a = 0; a < nranks_; ++a) {
    for (int b = a + 1; b < nranks_; ++b) {
      const auto number = static_cast<size_t>(table_.Of(a, b));
      const auto place = std::find(used.begin(), used.end(), number) - used.begin();
      table.Set(a, b, static_cast<int>(place));
    }
  }
  std::vector<CompositeTransport::Part> parts;
  for (const size_t number : used) {
    Attempt& attempt = attempts_[number];
    CompositeTransport::Part& part = parts.emplace_back();
    part.caps = attempt.row->caps();
    if (attempt.factory != nullptr) part.transport = attempt.factory->Take(/*alone=*/false);
  }
  Result<std::unique_ptr<CompositeTransport>> made =
      CompositeTransport::Create(rank_, std::move(table), std::move(parts));
  if (!made.ok()) return Error(made.status());
  return std::unique_ptr<Transport>(*std::move(made));
}

// A transport that the user has not named, and that these machines or this build do not have.
bool TransportSelection::IsAbsent(const Attempt& attempt) const {
  return environment_.transport.empty() &&
         std::all_of(attempt.of_rank.begin(), attempt.of_rank.end(), [](const Status& status) {
           return status.ok() || status.code() == Code::kInvalidUsage;
         });
}

void TransportSelection::WarnOfFailures(const char* name) const {
  std::string reasons;
  for (const Attempt& attempt : attempts_) {
    if (!attempt.no_path.empty()) AddReason(attempt.row->name, PathFailures(attempt), &reasons);
    const auto failed = std::find_if(attempt.of_rank.begin(), attempt.of_rank.end(),
                                     [](const Status& status) { return !status.ok(); });
    if (failed == attempt.of_rank.end() || IsAbsent(attempt)) continue;
    AddReason(attempt.row->name,
              Failure(attempt, static_cast<int>(failed - attempt.of_rank.begin())), &reasons);
  }
  if (reasons.empty()) return;
  Log(LogLevel::kWarn, LogSubsystem::kInit, "rank {}/{}: joined over {}, because {}", rank_,
      nranks_, name, reasons);
}

Result<std::unique_ptr<Transport>> TransportSelection::Choose(const Joining& joining,
                                                              const HostMap& hosts) {
  Mesh* const mesh = joining.mesh;
  std::vector<uint64_t> identities;
  for (const Peer& peer : mesh->peers) identities.push_back(peer.info.machine_id);
  const HostMap machines(identities);
  const Places places{.hosts = hosts, .machines = machines, .environment = environment_};
  for (const std::string& name : names_) {
    if (!attempts_.empty() && CheckComplete(places).ok()) break;
    Status status = Try(name, joining, places);
    if (!status.ok()) return status;
  }
  for (Peer& peer : mesh->peers) peer.fds.clear();
  made_.clear();
  if (Status status = CheckComplete(places); !status.ok()) {
    // All ranks come to this: they wait for each other, so that none is blamed by those behind it.
    (void)joining.rendezvous->Exchange({});
    return status;
  }
  Result<std::unique_ptr<Transport>> made = Compose();
  if (made.ok()) WarnOfFailures((*made)->caps().name);
  return made;
}

}  // namespace inccl
