// SPDX-License-Identifier: Apache-2.0
#include "init/transport_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "bootstrap/interfaces.h"
#include "device/runtime.h"

namespace inccl {
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
  options->blob = Make(names_.front(), &first_).Encode();
  if (first_ != nullptr) options->share_fds = first_->fds_to_share();
  if (std::find(names_.begin() + 1, names_.end(), "shm") == names_.end()) return;
  later_offer_ = Make("shm", &later_shm_);
  if (later_shm_ != nullptr) options->share_fds = later_shm_->fds_to_share();
}

Status TransportSelection::Error(const Status& status) const {
  return {status.code(), fmt::format("rank {}/{}: init: {}", rank_, nranks_, status.message())};
}

Status TransportSelection::TakeOffers(const Mesh& mesh) {
  for (const Peer& peer : mesh.peers) {
    Result<TransportOffer> offer = TransportOffer::Decode(peer.info.blob);
    if (!offer.ok() || offer->transport != names_.front()) {
      return Error(InternalError(fmt::format("peer rank {} sent no offer of the transport {}",
                                             peer.info.rank, names_.front())));
    }
    device_slices_ = device_slices_ && offer->device_slices;
    link_mbps_ = std::min(link_mbps_, offer->link_mbps);
    first_offers_.push_back(*std::move(offer));
  }
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
  if (name != "shm") return Make(name, made);
  *made = std::move(later_shm_);
  return later_offer_;
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
  Offers offers = std::move(first_offers_);  // of a further one, they are exchanged below
  const auto number = static_cast<int>(attempts_.size());
  Attempt& attempt = attempts_.emplace_back();
  attempt.row = &RowOf(name);
  attempt.of_rank.resize(static_cast<size_t>(nranks_));
  if (!Needed(attempt, places)) return Status::Ok();  // no rank makes it
  if (number == 0) {
    attempt.factory = std::move(first_);
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
    if (attempt.row->attach_needs_peers) {
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
  first_.reset();
  later_shm_.reset();
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
