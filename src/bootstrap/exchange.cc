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
  Peer* peer = nullptr;
  bool gone = false;
  std::vector<std::byte> message;  // what this rank sends
  size_t sent = 0;
  std::vector<std::byte> received;  // length, then blob
  size_t have = 0;
  bool length_known = false;

  bool receiving() const { return !length_known || have < received.size(); }
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

Status Seal(std::span<const std::byte> mine, Swap* swap) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(mine.size()));
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
    if (length > kMaxBlob) {
      return InternalError(fmt::format("peer {} announces a blob of {} bytes, at most {}",
                                       NameOf(*swap->peer), length, kMaxBlob));
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

}  // namespace

Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(Mesh* mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms) {
  if (mine.size() > kMaxBlob) {
    return InvalidArgument(fmt::format("blob of {} bytes, at most {}", mine.size(), kMaxBlob));
  }
  const auto named = [&](const Status& status) {
    return Status(status.code(),
                  fmt::format("rank {}/{}: init: {}", mesh->rank, mesh->nranks, status.message()));
  };
  std::vector<Swap> swaps;
  for (Peer& peer : mesh->peers) {
    if (peer.info.rank == mesh->rank) continue;
    Swap& swap = swaps.emplace_back();
    swap.peer = &peer;
    swap.received.resize(kLengthBytes);
    if (Status status = Seal(mine, &swap); !status.ok()) return named(status);
  }
  if (Status status = Run(terms, &swaps); !status.ok()) {
    return named(WithOthersGone(status, swaps));
  }
  std::vector<std::vector<std::byte>> blobs(mesh->peers.size());
  blobs[static_cast<size_t>(mesh->rank)].assign(mine.begin(), mine.end());
  for (Swap& swap : swaps) {
    Result<std::vector<std::byte>> blob = Open(&swap);
    if (!blob.ok()) return named(blob.status());
    blobs[static_cast<size_t>(swap.peer->info.rank)] = *std::move(blob);
  }
  return blobs;
}

}  // namespace inccl
