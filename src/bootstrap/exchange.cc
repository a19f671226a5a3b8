// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/exchange.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/gathering.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl {
namespace {

using bootstrap::IoResult;

constexpr size_t kLengthBytes = 4;
constexpr uint32_t kFailed = uint32_t{1} << 31;  // in a length
constexpr size_t kMostErrorBytes = 4096;

constexpr int kOthersMs = 10;

// The exchange with one peer.
struct Swap {
  Peer* peer = nullptr;
  bool receives = true;
  size_t most = kMaxBlob;  // bytes to receive
  bool may_fail = false;   // the peer may send an error
  bool failed = false;     // it has done so
  bool gone = false;
  std::vector<std::byte> message = {};  // what this rank sends
  size_t sent = 0;
  std::vector<std::byte> received = std::vector<std::byte>(kLengthBytes);  // length, then blob
  size_t have = 0;
  bool length_known = false;

  bool receiving() const { return receives && (!length_known || have < received.size()); }
  bool sending() const { return sent < message.size(); }
  size_t tag_bytes() const { return peer->cipher ? bootstrap::kTagBytes : 0; }
};

std::string NameOf(const Peer& peer) {
  return fmt::format("{}@{}:{}", peer.info.rank, peer.info.host, peer.info.pid);
}

Status Gone(Swap* swap, int error) {
  swap->gone = true;
  return RemoteError(fmt::format("peer {} closed the connection while a transport was chosen{}{}",
                                 NameOf(*swap->peer), error != 0 ? ": " : " (process died?)",
                                 error != 0 ? SystemErrorErrno("socket", error).message() : ""));
}

// A peer may close its connection because another one has died, so this names all peers that have
// closed theirs.
Status WithOthersGone(const Status& status, const std::vector<Swap>& swaps) {
  std::vector<pollfd> fds;
  std::vector<const Peer*> peers;
  bool any = false;
  for (const Swap& swap : swaps) {
    any = any || swap.gone;
    if (swap.gone) continue;
    fds.push_back({.fd = swap.peer->control.get(), .events = POLLRDHUP, .revents = 0});
    peers.push_back(swap.peer);
  }
  if (!any) return status;
  poll(fds.data(), fds.size(), kOthersMs);
  std::string others;
  for (size_t i = 0; i < fds.size(); ++i) {
    if ((fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
    others += (others.empty() ? "; so did peer " : ", peer ") + NameOf(*peers[i]);
  }
  return others.empty() ? status : Status(status.code(), status.message() + others);
}

Status Seal(std::span<const std::byte> mine, uint32_t flag, Swap* swap) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(mine.size()) | flag);
  writer.Raw(mine);
  swap->message = writer.bytes();
  if (!swap->peer->cipher) return Status::Ok();
  swap->message.resize(kLengthBytes + mine.size() + bootstrap::kTagBytes);
  const std::span<std::byte> message(swap->message);
  const bool sealed = swap->peer->cipher->seal.Seal(message.first(kLengthBytes),
                                                    message.subspan(kLengthBytes, mine.size()),
                                                    message.last<bootstrap::kTagBytes>());
  return sealed ? Status::Ok() : SystemError("libcrypto cannot seal a message");
}

// The blob that has arrived.
Result<std::vector<std::byte>> Open(Swap* swap) {
  const std::span<std::byte> message(swap->received);
  const std::span<std::byte> blob =
      message.subspan(kLengthBytes, message.size() - kLengthBytes - swap->tag_bytes());
  if (swap->peer->cipher && !swap->peer->cipher->open.Open(message.first(kLengthBytes), blob,
                                                           message.last<bootstrap::kTagBytes>())) {
    return InternalError(
        fmt::format("peer {}: a message was changed on its way", NameOf(*swap->peer)));
  }
  return std::vector<std::byte>(blob.begin(), blob.end());
}

Status Send(Swap* swap) {
  while (swap->sending()) {
    const IoResult put = bootstrap::WriteSome(swap->peer->control.get(),
                                              std::span(swap->message).subspan(swap->sent));
    swap->sent += put.bytes;
    if (put.error == EAGAIN) break;
    if (put.error != 0) return Gone(swap, put.error);
  }
  return Status::Ok();
}

Status Receive(Swap* swap) {
  while (swap->receiving()) {
    const IoResult got = bootstrap::ReadSome(swap->peer->control.get(),
                                             std::span(swap->received).subspan(swap->have));
    swap->have += got.bytes;
    if (got.error == EAGAIN) break;
    if (got.error != 0 || got.closed) return Gone(swap, got.error);
    if (swap->length_known || swap->have < kLengthBytes) continue;
    uint32_t length = 0;
    ByteReader(swap->received).U32(&length);
    swap->failed = swap->may_fail && (length & kFailed) != 0;
    if (swap->failed) length &= ~kFailed;
    if (const size_t most = swap->failed ? kMostErrorBytes : swap->most; length > most) {
      return InternalError(fmt::format("peer {} announces a blob of {} bytes, at most {}",
                                       NameOf(*swap->peer), length, most));
    }
    swap->length_known = true;
    swap->received.resize(kLengthBytes + length + swap->tag_bytes());
  }
  return Status::Ok();
}

// Waits for the unfinished exchanges; kTimeout names the late peers. Logs them once, at *warn_at.
Status Wait(const std::vector<Swap>& swaps, const ExchangeTerms& terms, Time* warn_at) {
  if (terms.cancelled != nullptr && terms.cancelled->load()) {
    return RemoteError("this rank ended the creation of the communicator");
  }
  const Time now = SystemClock().Now();
  std::vector<pollfd> fds;
  std::vector<int> late;
  for (const Swap& swap : swaps) {
    const int events = (swap.receiving() ? POLLIN : 0) | (swap.sending() ? POLLOUT : 0);
    if (events == 0) continue;
    fds.push_back({.fd = swap.peer->control.get(),
                   .events = static_cast<decltype(pollfd::events)>(events),
                   .revents = 0});
    late.push_back(swap.peer->info.rank);
  }
  if (now >= terms.deadline) {
    return TimeoutError(fmt::format("no word from {} about the transport within {} ms",
                                    bootstrap::ListRanks(late), terms.timeout_ms));
  }
  if (now >= *warn_at) {
    *warn_at = kNever;
    Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
        "init: still waiting, after {} ms, for {} to say something about the transport; the "
        "limit is {} ms",
        terms.patience / kMillisecond, bootstrap::ListRanks(late), terms.timeout_ms);
  }
  bootstrap::PollUntil(fds, std::min(terms.deadline, now + bootstrap::kCancelLag));
  return Status::Ok();
}

Status Run(const ExchangeTerms& terms, std::vector<Swap>* swaps) {
  Time warn_at = SystemClock().Now() + terms.patience;
  while (true) {
    bool open = false;
    for (Swap& swap : *swaps) {
      if (Status status = Send(&swap); !status.ok()) return status;
      if (Status status = Receive(&swap); !status.ok()) return status;
      open = open || swap.receiving() || swap.sending();
    }
    if (!open) return Status::Ok();
    if (Status status = Wait(*swaps, terms, &warn_at); !status.ok()) return status;
  }
}

class Exchange {
 public:
  Exchange(Mesh* mesh, const ExchangeTerms& terms)
      : mesh_(*mesh), terms_(terms), blobs_(mesh->peers.size()) {}

  Status Run(std::span<const std::byte> mine) {
    blobs_[static_cast<size_t>(mesh_.rank)].assign(mine.begin(), mine.end());
    return mesh_.graph.complete() ? WithAll(mine) : InSteps();
  }
  std::vector<std::vector<std::byte>> TakeBlobs() { return std::move(blobs_); }
  // To those that wait for this rank, or for one that does.
  void Report(const Status& own);

 private:
  Status WithAll(std::span<const std::byte> mine);
  Status InSteps();
  Status Step(int distance);
  // The error that a peer has sent, which this rank sends on.
  Status PassOn(const Peer& peer, std::span<const std::byte> error);
  // The same of a peer that has closed the connection, perhaps after blobs; OK: there is none.
  Status LastWords(Peer* peer);
  Swap& SwapWith(int rank) { return swaps_.emplace_back(Swap{.peer = &mesh_.peers[At(rank)]}); }
  size_t At(int rank) const { return static_cast<size_t>((rank + mesh_.nranks) % mesh_.nranks); }

  Mesh& mesh_;
  const ExchangeTerms& terms_;
  std::vector<std::vector<std::byte>> blobs_;
  std::vector<Swap> swaps_;  // of this step
  Status passed_on_;         // the error that a peer has sent in place of blobs
};

Status Exchange::WithAll(std::span<const std::byte> mine) {
  for (const Peer& peer : mesh_.peers) {
    if (peer.info.rank == mesh_.rank) continue;
    if (Status status = Seal(mine, 0, &SwapWith(peer.info.rank)); !status.ok()) return status;
  }
  if (Status status = inccl::Run(terms_, &swaps_); !status.ok()) {
    return WithOthersGone(status, swaps_);
  }
  for (Swap& swap : swaps_) {
    Result<std::vector<std::byte>> blob = Open(&swap);
    if (!blob.ok()) return blob.status();
    blobs_[static_cast<size_t>(swap.peer->info.rank)] = *std::move(blob);
  }
  return Status::Ok();
}

Status Exchange::InSteps() {
  for (int distance = 1; distance < mesh_.nranks; distance *= 2) {
    if (Status status = Step(distance); !status.ok()) return status;
  }
  return Status::Ok();
}

Status Exchange::Step(int distance) {
  const int count = std::min(distance, mesh_.nranks - distance);
  ByteWriter writer;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::byte>& blob = blobs_[At(mesh_.rank + i)];
    writer.U32(static_cast<uint32_t>(blob.size()));
    writer.Raw(blob);
  }
  const int above = mesh_.rank + distance, below = mesh_.rank - distance;
  swaps_.clear();
  swaps_.reserve(2);
  Swap& in = SwapWith(above);
  in.may_fail = true;
  in.most = static_cast<size_t>(count) * (kLengthBytes + kMaxBlob);
  Swap& out = At(above) == At(below) ? in : SwapWith(below);
  if (&out != &in) out.receives = false;
  if (Status status = Seal(writer.bytes(), 0, &out); !status.ok()) return status;
  if (Status status = inccl::Run(terms_, &swaps_); !status.ok()) {
    if (!out.gone || out.have > 0) return status;
    const Status why = LastWords(out.peer);
    return why.ok() ? status : why;
  }
  Result<std::vector<std::byte>> got = Open(&in);
  if (!got.ok()) return got.status();
  if (in.failed) return PassOn(*in.peer, *got);
  ByteReader reader(*got);
  for (int i = 0; i < count; ++i) {
    uint32_t length = 0;
    std::vector<std::byte>& blob = blobs_[At(above + i)];
    bool good = reader.U32(&length) && length <= kMaxBlob && length <= reader.remaining();
    if (good) blob.resize(length);
    good = good && (length == 0 || reader.Raw(blob));
    if (!good || (i + 1 == count && reader.remaining() != 0)) {
      return InternalError(fmt::format("peer {} sent malformed blobs", NameOf(*in.peer)));
    }
  }
  return Status::Ok();
}

Status Exchange::PassOn(const Peer& peer, std::span<const std::byte> error) {
  passed_on_ = bootstrap::DecodeError(error);
  return {passed_on_.code(),
          fmt::format("peer {} reports: {}", NameOf(peer), passed_on_.message())};
}

Status Exchange::LastWords(Peer* peer) {
  while (true) {
    Swap swap{.peer = peer, .most = blobs_.size() * (kLengthBytes + kMaxBlob), .may_fail = true};
    if (!Receive(&swap).ok() || swap.receiving()) return Status::Ok();
    const Result<std::vector<std::byte>> got = Open(&swap);
    if (!got.ok()) return Status::Ok();
    if (swap.failed) return PassOn(*peer, *got);
  }
}

void Exchange::Report(const Status& own) {
  if (mesh_.graph.complete()) return;
  const Status& failure = passed_on_.ok() ? own : passed_on_;
  const std::string_view text = std::string_view(failure.message()).substr(0, kMostErrorBytes / 2);
  const std::vector<std::byte> body =
      bootstrap::EncodeError(Status(failure.code(), std::string(text)));
  for (Peer& peer : mesh_.peers) {
    if (!peer.control.valid()) continue;
    // After the message that is under way, if it can be finished.
    const auto under_way = std::find_if(swaps_.begin(), swaps_.end(), [&](const Swap& swap) {
      return swap.peer == &peer && swap.sending();
    });
    if (under_way != swaps_.end() &&
        (under_way->gone || !Send(&*under_way).ok() || under_way->sending())) {
      continue;
    }
    Swap report{.peer = &peer};
    if (Seal(body, kFailed, &report).ok()) (void)Send(&report);
  }
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(Mesh* mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms) {
  if (mine.size() > kMaxBlob) {
    return InvalidArgument(fmt::format("blob of {} bytes, at most {}", mine.size(), kMaxBlob));
  }
  Exchange exchange(mesh, terms);
  const Status status = exchange.Run(mine);
  if (status.ok()) return exchange.TakeBlobs();
  const Status named(status.code(), fmt::format("rank {}/{}: init: {}", mesh->rank, mesh->nranks,
                                                status.message()));
  exchange.Report(named);
  return named;
}

}  // namespace inccl
