// SPDX-License-Identifier: Apache-2.0
//
// What peers send while the ranks exchange offers of transports: a blob from each, or an error that
// names one; never a wait for more than has been sent.
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "bootstrap/exchange.h"
#include "fuzz/fuzz.h"
#include "init/transport_selection.h"

namespace inccl::fuzz {
namespace {

constexpr int kRanks = 3;

}  // namespace

void Run(Data data) {
  Input input(data);
  Mesh mesh;
  mesh.rank = 0;
  mesh.nranks = kRanks;
  mesh.peers.resize(kRanks);
  UniqueFd ends[kRanks];
  for (int rank = 1; rank < kRanks; ++rank) {
    int fds[2];
    Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "there are sockets");
    Peer& peer = mesh.peers[static_cast<size_t>(rank)];
    peer.info.rank = rank;
    peer.info.host = std::string(1, 'h');
    peer.control.Reset(fds[0]);
    ends[rank].Reset(fds[1]);
    const Data sent = rank == 1 ? input.Take(input.Below(2048)) : input.Rest();
    const size_t fits = std::min<size_t>(sent.size(), 32768);
    Require(send(fds[1], sent.data(), fits, MSG_DONTWAIT) == static_cast<ssize_t>(fits),
            "a socket takes this much");
    // It stays open for what this rank sends.
    Require(shutdown(fds[1], SHUT_WR) == 0, "a socket can be half closed");
  }
  const std::byte mine[16] = {};
  const Result<std::vector<std::vector<std::byte>>> blobs = ExchangeBlobs(
      &mesh, mine, {.deadline = SystemClock().Now() + 10 * kSecond, .timeout_ms = 10000});
  if (!blobs.ok()) {
    Require(blobs.status().code() != Code::kTimeout, "what is closed is not waited for");
    Require(blobs.status().message().starts_with("rank 0/3: init: peer "), "a peer is named");
    return;
  }
  Require(blobs.value().size() == kRanks, "a blob from each");
  for (const std::vector<std::byte>& blob : blobs.value()) {
    Require(blob.size() <= kMaxBlob, "no blob above the limit");
    (void)TransportOffer::Decode(Exact(blob));
  }
}

std::vector<std::vector<std::byte>> Examples() {
  const std::vector<std::byte> offer =
      TransportOffer{"shm", Status::Ok(), std::vector<std::byte>(16)}.Encode();
  ByteWriter message;
  message.U32(static_cast<uint32_t>(offer.size()));
  message.Raw(offer);
  std::vector<std::byte> both = {static_cast<std::byte>(message.bytes().size()), std::byte{0}};
  for (int i = 0; i < 2; ++i) {
    both.insert(both.end(), message.bytes().begin(), message.bytes().end());
  }
  std::vector<std::byte> cut(both.begin(), both.end() - 5);
  std::vector<std::byte> large = {std::byte{4}, std::byte{0}};
  large.resize(6, std::byte{0xff});
  return {both, cut, large};
}

}  // namespace inccl::fuzz
