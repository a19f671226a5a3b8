// SPDX-License-Identifier: Apache-2.0
//
// Whatever a peer sends over a data connection without protection, a rank reads within its slots,
// sees the slices of a lane in their order, and never sends more than its peer has room for.
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "base/crc32c.h"
#include "base/rng.h"
#include "fuzz/fuzz.h"
#include "transport/tcp/tcp_transport.h"

namespace inccl::fuzz {
namespace {

using tcp::FrameHeader;
using tcp::FrameKind;

constexpr uint32_t kSlotBytes = 32;
constexpr uint16_t kDepth = 2;

LaneSpec SpecOf(int producer, int consumer) {
  return {.producer = producer, .consumers = {consumer}, .slot_bytes = kSlotBytes, .depth = kDepth};
}

void Append(FrameHeader header, size_t payload, std::vector<std::byte>* stream) {
  const std::vector<std::byte> bytes(payload, std::byte{7});
  header.bytes = static_cast<uint32_t>(payload);
  header.crc = payload == 0 ? 0 : Crc32c(bytes);
  const auto head = std::as_bytes(std::span(&header, 1));
  stream->insert(stream->end(), head.begin(), head.end());
  stream->insert(stream->end(), bytes.begin(), bytes.end());
}

void AppendSlice(uint64_t seq, size_t payload, uint64_t credit, std::vector<std::byte>* stream) {
  FrameHeader header;
  header.kind = FrameKind::kSlice;
  header.lane = 1;
  header.seq = seq;
  header.credit_lane = credit == 0 ? 0 : 1;
  header.credit = credit;
  Append(header, payload, stream);
}

std::vector<std::byte> Granted() {
  const LaneSpec spec = SpecOf(0, 1);
  FrameHeader header;
  header.kind = FrameKind::kGrant;
  header.lane = 1;
  header.slice = spec.slot_bytes;
  header.signature = spec.Key();
  header.seq = spec.depth;
  std::vector<std::byte> stream(1);  // the seed
  Append(header, 0, &stream);
  return stream;
}

}  // namespace

void Run(Data data) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  UniqueFd peer(ends[1]);
  std::vector<TcpSocket> sockets;
  sockets.push_back({UniqueFd(ends[0]), {}, {}});
  const std::unique_ptr<TcpTransport> end =
      TcpTransport::Create(0, 2, tcp::Protection::kNone).value();
  Require(end->Attach(1, std::move(sockets)).ok(), "a socket is attached");
  const std::unique_ptr<SendLane> out = end->OpenSend(SpecOf(0, 1)).value();
  const std::unique_ptr<RecvLane> in = end->OpenRecv(SpecOf(1, 0)).value();
  uint64_t published = 0;
  Input input(data);
  Rng rng(input.Byte());  // sizes of portions, and when the rank releases slices
  bool alive = true;
  for (Time now = 1; alive && !input.empty(); ++now) {
    const Data portion = input.Take(1 + rng.Below(200));
    if (send(peer.get(), portion.data(), portion.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    alive = end->Progress(now).ok();
    RecvLane::Incoming incoming;
    const Result<bool> arrived = in->TryPeek(&incoming);
    if (arrived.ok() && *arrived) {
      Require(incoming.header.bytes <= kSlotBytes, "a slice fits its slot");
      Require(incoming.header.source.region == 0 && incoming.header.target.region == 0,
              "no region is reached over TCP");
      const std::vector<std::byte> copy = Exact({incoming.payload, incoming.header.bytes});
      if (rng.Below(2) == 0) Require(in->Release().ok(), "a peeked slice is released");
    }
    const Result<Span> slot = out->TryAcquire();
    if (!slot.ok() || slot->data == nullptr) continue;
    Require(published < kDepth + data.size() / sizeof(FrameHeader),
            "each further slice takes a credit frame");
    if (!out->Publish({.bytes = kSlotBytes}).ok()) break;
    ++published;
  }
  peer.Reset();  // so that the end waits for nothing
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::byte> slices = Granted();
  AppendSlice(1, 32, 0, &slices);
  AppendSlice(2, 0, 3, &slices);
  AppendSlice(3, 5, 4, &slices);
  std::vector<std::byte> too_long = Granted();
  AppendSlice(1, 33, 0, &too_long);
  std::vector<std::byte> too_many = Granted();
  for (uint64_t seq = 1; seq <= 4; ++seq) AppendSlice(seq, 8, 0, &too_many);
  std::vector<std::byte> credits = Granted();
  for (uint64_t credit = 3; credit < 6; ++credit) {
    FrameHeader header;
    header.credit_lane = 1;
    header.credit = credit;
    Append(header, 0, &credits);
  }
  return {Granted(), slices, too_long, too_many, credits};
}

}  // namespace inccl::fuzz
