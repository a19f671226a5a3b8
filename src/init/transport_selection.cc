// SPDX-License-Identifier: Apache-2.0
#include "init/transport_selection.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/escaped.h"
#include "base/log.h"
#include "device/runtime.h"
#include "init/options.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace inccl {
namespace {

constexpr uint32_t kOfferMagic = 0x32666f69;  // "iof2"
constexpr size_t kMaxName = 32, kMaxReason = 2048;

// Enough for the first small calls of a communicator: two lanes of slots of default size.
constexpr size_t kCommitAhead = 1088 * 1024;

// For a rank that works on a device, all slots of a direct call. The device registers slots before
// the first call, because registration might wait for streams that wait for the call.
constexpr size_t kDeviceLane = 4 * size_t{kDeviceSliceBytes} + 128 * 1024;  // with side information
constexpr int kMostDeviceLanes = 17;

size_t CommitAhead(int nranks, bool for_device) {
  if (!for_device) return kCommitAhead;
  return static_cast<size_t>(std::min(nranks + 1, kMostDeviceLanes)) * kDeviceLane;
}

bool OnDevice() {
  Device* const device = CurrentDevice();
  return device != nullptr && device->InUse();
}

class ShmFactory final : public TransportFactory {
 public:
  ShmFactory(int rank, int nranks, std::unique_ptr<ShmTransport> shm)
      : rank_(rank), nranks_(nranks), shm_(std::move(shm)) {}
  std::vector<int> fds_to_share() const override { return shm_->fds_to_share(); }
  Status Attach(Peer* peer, std::span<const std::byte> /*payload*/) override {
    if (peer->fds.size() != 4) {
      return InternalError(fmt::format("rank {}/{}: peer {} shared {} descriptors instead of 4",
                                       rank_, nranks_, peer->info.rank, peer->fds.size()));
    }
    return shm_->Attach(peer->info.rank, std::move(peer->fds[0]), std::move(peer->fds[1]),
                        std::move(peer->fds[2]), std::move(peer->fds[3]));
  }
  std::unique_ptr<Transport> Take() override {
    shm_->CloseEventFds();
    return std::move(shm_);
  }

 private:
  const int rank_, nranks_;
  std::unique_ptr<ShmTransport> shm_;
};

class UcxFactory final : public TransportFactory {
 public:
  explicit UcxFactory(std::unique_ptr<UcxTransport> ucx) : ucx_(std::move(ucx)) {}
  std::vector<std::byte> payload() const override {
    return {ucx_->address().begin(), ucx_->address().end()};
  }
  Status Attach(Peer* peer, std::span<const std::byte> payload) override {
    return ucx_->Attach(peer->info.rank, payload);
  }
  bool attach_needs_peers() const override { return true; }
  std::unique_ptr<Transport> Take() override { return std::move(ucx_); }

 private:
  std::unique_ptr<UcxTransport> ucx_;
};

UcxOptions UcxOptionsOf(const Environment& environment) {
  UcxOptions options;
  options.tls = environment.ucx_tls;
  return options;
}

Result<std::unique_ptr<TransportFactory>> MakeFactory(const std::string& name, int rank, int nranks,
                                                      const Environment& environment,
                                                      bool for_device) {
  if (name == "shm") {
    Result<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(
        rank, nranks, {.commit_ahead = CommitAhead(nranks, for_device), .for_device = for_device});
    if (!shm.ok()) return shm.status();
    return std::unique_ptr<TransportFactory>(new ShmFactory(rank, nranks, *std::move(shm)));
  }
  if (name == "ucx") {
    Result<std::unique_ptr<UcxTransport>> ucx =
        UcxTransport::Create(rank, nranks, UcxOptionsOf(environment));
    if (!ucx.ok()) return ucx.status();
    return std::unique_ptr<TransportFactory>(new UcxFactory(*std::move(ucx)));
  }
  return InvalidUsage(fmt::format("{} joins threads of one process only", name));
}

std::vector<std::string> NamesIn(std::string_view list, std::vector<std::string> standard) {
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

// Records why `name` cannot be used, for the error that lists all reasons.
void AddReason(const std::string& name, const std::string& why, std::string* reasons) {
  if (!reasons->empty()) *reasons += "; ";
  *reasons += fmt::format("{}: {}", name, why);
}

std::string OfVariable(const Environment& environment) {
  return environment.transport.empty()
             ? std::string()
             : fmt::format(" of INCCL_TRANSPORT={}", environment.transport);
}

}  // namespace

std::vector<std::byte> TransportOffer::Encode() const {
  ByteWriter writer;
  writer.U32(kOfferMagic);
  writer.String(transport);
  writer.U32(static_cast<uint32_t>(status.code()));
  writer.String(std::string_view(status.message()).substr(0, kMaxReason));
  writer.String({reinterpret_cast<const char*>(payload.data()), payload.size()});
  writer.U8(device_slices ? 1 : 0);
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
      !reader.U8(&device_slices) || device_slices > 1 || reader.remaining() != 0) {
    return InternalError("malformed offer of a transport");
  }
  offer.status = Status(static_cast<Code>(code), Escaped(reason));
  offer.device_slices = device_slices == 1;
  const auto content = std::as_bytes(std::span(payload));
  offer.payload.assign(content.begin(), content.end());
  return offer;
}

TransportSelection::TransportSelection(int rank, int nranks, const Environment& environment,
                                       bool device_slices)
    : rank_(rank),
      nranks_(nranks),
      environment_(environment),
      device_slices_(device_slices),
      names_(NamesIn(environment.transport, {"shm", "ucx"})) {}

TransportOffer TransportSelection::Make(const std::string& name,
                                        std::unique_ptr<TransportFactory>* made) const {
  TransportOffer offer;
  offer.transport = name;
  offer.device_slices = device_slices_;
  Result<std::unique_ptr<TransportFactory>> result =
      MakeFactory(name, rank_, nranks_, environment_, device_slices_ && OnDevice());
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
  options->blob = Make(names_.front(), &current_).Encode();
  if (current_ != nullptr) options->share_fds = current_->fds_to_share();
  if (std::find(names_.begin() + 1, names_.end(), "shm") == names_.end()) return;
  later_offer_ = Make("shm", &later_shm_);
  if (later_shm_ != nullptr) options->share_fds = later_shm_->fds_to_share();
}

Status TransportSelection::Error(const Status& status) const {
  return {status.code(), fmt::format("rank {}/{}: init: {}", rank_, nranks_, status.message())};
}

Status TransportSelection::NoneLeft() const {
  return Error(
      {code_, fmt::format("no common transport{}: {}", OfVariable(environment_), reasons_)});
}

Status TransportSelection::CheckAll(const std::string& name,
                                    std::span<const TransportOffer> offers) {
  const TransportOffer* first = nullptr;
  size_t first_rank = 0, failed = 0;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].status.ok()) continue;
    if (failed++ > 0) continue;
    first = &offers[rank];
    first_rank = rank;
  }
  if (first == nullptr) return Status::Ok();
  code_ = first->status.code();
  std::string why = fmt::format("on rank {}: {}", first_rank, first->status.message());
  if (failed > 1)
    why += fmt::format(" (and on {} other rank{})", failed - 1, failed > 2 ? "s" : "");
  AddReason(name, why, &reasons_);
  return first->status;
}

Result<std::vector<TransportOffer>> TransportSelection::Exchange(const Mesh& mesh,
                                                                 const TransportOffer& mine,
                                                                 const ExchangeTerms& terms) const {
  Result<std::vector<std::vector<std::byte>>> blobs = ExchangeBlobs(mesh, mine.Encode(), terms);
  if (!blobs.ok()) return blobs.status();
  std::vector<TransportOffer> offers;
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

Status TransportSelection::AttachAll(Mesh* mesh, std::span<const TransportOffer> offers) {
  for (Peer& peer : mesh->peers) {
    if (peer.info.rank == rank_) continue;
    Status status = current_->Attach(&peer, offers[static_cast<size_t>(peer.info.rank)].payload);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Result<std::unique_ptr<Transport>> TransportSelection::Choose(Mesh* mesh,
                                                              const ExchangeTerms& terms) {
  std::vector<TransportOffer> offers;
  for (const Peer& peer : mesh->peers) {
    Result<TransportOffer> offer = TransportOffer::Decode(peer.info.blob);
    if (!offer.ok() || offer->transport != names_.front()) {
      return Error(InternalError(fmt::format("peer rank {} sent no offer of the transport {}",
                                             peer.info.rank, names_.front())));
    }
    offers.push_back(*std::move(offer));
  }
  device_slices_ = std::all_of(offers.begin(), offers.end(),
                               [](const TransportOffer& offer) { return offer.device_slices; });
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::string& name = names_[i];
    if (i > 0) {
      TransportOffer offer;
      if (name == "shm") {
        offer = later_offer_;
        current_ = std::move(later_shm_);
      } else {
        offer = Make(name, &current_);
      }
      Result<std::vector<TransportOffer>> further = Exchange(*mesh, offer, terms);
      if (!further.ok()) return further.status();
      offers = *std::move(further);
    }
    if (!CheckAll(name, offers).ok()) continue;
    TransportOffer attached;
    attached.transport = name;
    attached.status = AttachAll(mesh, offers);
    if (current_->attach_needs_peers()) {
      Result<std::vector<TransportOffer>> all = Exchange(*mesh, attached, terms);
      if (!all.ok()) return all.status();
      if (!CheckAll(name, *all).ok()) continue;
    } else if (!attached.status.ok()) {
      return attached.status;
    }
    if (!reasons_.empty()) {
      Log(LogLevel::kWarn, LogSubsystem::kInit, "rank {}/{}: joined over {}, because {}", rank_,
          nranks_, name, reasons_);
    }
    return current_->Take();
  }
  current_.reset();
  return NoneLeft();
}

namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

// The ranks share one process, so their descriptors are duplicated, as a socket would do.
Result<Transports> JoinInProcess(const std::string& name, int nranks,
                                 const Environment& environment, bool for_device) {
  std::vector<std::unique_ptr<TransportFactory>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    Result<std::unique_ptr<TransportFactory>> end =
        MakeFactory(name, rank, nranks, environment, for_device);
    if (!end.ok()) return end.status();
    ends.push_back(*std::move(end));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    for (int other = 0; other < nranks; ++other) {
      if (other == rank) continue;
      Peer peer;
      peer.info.rank = other;
      for (const int fd : ends[static_cast<size_t>(other)]->fds_to_share()) {
        peer.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (!peer.fds.back().valid()) return SystemErrorErrno("dup of a memfd", errno);
      }
      Status status = ends[static_cast<size_t>(rank)]->Attach(
          &peer, ends[static_cast<size_t>(other)]->payload());
      if (!status.ok()) return status;
    }
  }
  Transports transports;
  for (std::unique_ptr<TransportFactory>& end : ends) transports.push_back(end->Take());
  return transports;
}

Result<Transports> MakeInProcess(const std::string& name, int nranks,
                                 const Environment& environment, bool for_device) {
  if (name != "loopback") return JoinInProcess(name, nranks, environment, for_device);
  Transports transports =
      MakeLoopback(nranks, {.commit_ahead = for_device ? CommitAhead(nranks, true) : 0});
  if (transports.empty()) return SystemError("no address space for the ranks' slots");
  return transports;
}

}  // namespace

Result<std::vector<std::unique_ptr<Transport>>> MakeThreadTransports(int nranks,
                                                                     const Environment& environment,
                                                                     bool for_device) {
  std::string reasons;
  Code code = Code::kSystemError;
  for (const std::string& name : NamesIn(environment.transport, {"loopback"})) {
    Result<Transports> made = MakeInProcess(name, nranks, environment, for_device);
    if (made.ok()) return made;
    code = made.status().code();
    AddReason(name, made.status().message(), &reasons);
  }
  return Status(code, fmt::format("no common transport{}: {}", OfVariable(environment), reasons));
}

}  // namespace inccl
