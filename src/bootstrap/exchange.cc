// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/exchange.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/gathering.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl {
namespace {

using bootstrap::IoResult;

constexpr size_t kLengthBytes = 4;

constexpr int kOthersMs = 10;

// The exchange with one peer.
struct Swap {
  const Peer* peer = nullptr;
  bool gone = false;
  size_t sent = 0;
  std::vector<std::byte> received;  // length, then blob
  size_t have = 0;
  bool length_known = false;

  bool receiving() const { return !length_known || have < received.size(); }
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
    others += (others.empty() ? "; so did " : ", ") + NameOf(*peers[i]);
  }
  return others.empty() ? status : Status(status.code(), status.message() + others);
}

Status Send(std::span<const std::byte> message, Swap* swap) {
  while (swap->sent < message.size()) {
    const IoResult put =
        bootstrap::WriteSome(swap->peer->control.get(), message.subspan(swap->sent));
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
    if (length > kMaxBlob) {
      return InternalError(fmt::format("peer {} announces a blob of {} bytes, at most {}",
                                       NameOf(*swap->peer), length, kMaxBlob));
    }
    swap->length_known = true;
    swap->received.resize(kLengthBytes + length);
  }
  return Status::Ok();
}

// Waits for the unfinished exchanges; kTimeout names the late peers. Logs them once, at *warn_at.
Status Wait(const std::vector<Swap>& swaps, size_t message_bytes, const ExchangeTerms& terms,
            Time* warn_at) {
  if (terms.cancelled != nullptr && terms.cancelled->load()) {
    return RemoteError("this rank ended the creation of the communicator");
  }
  const Time now = SystemClock().Now();
  std::vector<pollfd> fds;
  std::vector<int> late;
  for (const Swap& swap : swaps) {
    const int events = (swap.receiving() ? POLLIN : 0) | (swap.sent < message_bytes ? POLLOUT : 0);
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

Status Run(std::span<const std::byte> message, const ExchangeTerms& terms,
           std::vector<Swap>* swaps) {
  Time warn_at = SystemClock().Now() + terms.patience;
  while (true) {
    bool open = false;
    for (Swap& swap : *swaps) {
      if (Status status = Send(message, &swap); !status.ok()) return status;
      if (Status status = Receive(&swap); !status.ok()) return status;
      open = open || swap.receiving() || swap.sent < message.size();
    }
    if (!open) return Status::Ok();
    if (Status status = Wait(*swaps, message.size(), terms, &warn_at); !status.ok()) return status;
  }
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(const Mesh& mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms) {
  if (mine.size() > kMaxBlob) {
    return InvalidArgument(fmt::format("blob of {} bytes, at most {}", mine.size(), kMaxBlob));
  }
  ByteWriter message;
  message.U32(static_cast<uint32_t>(mine.size()));
  message.Raw(mine);
  std::vector<Swap> swaps;
  for (const Peer& peer : mesh.peers) {
    if (peer.info.rank == mesh.rank) continue;
    swaps.push_back({.peer = &peer, .received = std::vector<std::byte>(kLengthBytes)});
  }
  if (Status status = Run(message.bytes(), terms, &swaps); !status.ok()) {
    return Status(status.code(), fmt::format("rank {}/{}: init: {}", mesh.rank, mesh.nranks,
                                             WithOthersGone(status, swaps).message()));
  }
  std::vector<std::vector<std::byte>> blobs(mesh.peers.size());
  blobs[static_cast<size_t>(mesh.rank)].assign(mine.begin(), mine.end());
  for (const Swap& swap : swaps) {
    blobs[static_cast<size_t>(swap.peer->info.rank)].assign(swap.received.begin() + kLengthBytes,
                                                            swap.received.end());
  }
  return blobs;
}

}  // namespace inccl
