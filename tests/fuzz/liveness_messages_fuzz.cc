// SPDX-License-Identifier: Apache-2.0
//
// What a peer may say on a control connection, of any kind, among this rank's own calls: an error
// that names this rank, or nothing.
#include "base/bytes.h"
#include "failure/liveness.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr int kRanks = 3;

// No peer listens.
class Silence final : public ControlPlane {
 public:
  Silence() : ControlPlane(kRanks) {}
  void Send(int /*peer*/, uint8_t /*kind*/, std::span<const std::byte> body) override {
    Require(body.size() <= kMaxControlBody, "what is sent fits");
  }
  void Close(Time /*flush_deadline*/) override {}
};

}  // namespace

void Run(Data data) {
  const std::vector<std::string> names = {"h:1", "h:2", "h:3"};
  Silence plane;
  ShrinkAgreement shrink_agreement(0, kRanks, names);
  Invitations invitations(kRanks);
  StickyError sticky_error(false, nullptr);
  Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, &sticky_error,
                    &shrink_agreement, &invitations);
  shrink_agreement.Attach(&plane);
  sticky_error.Attach(&plane);
  liveness.Attach(&plane);
  Input input(data);
  uint64_t sequence = 0;
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    const int peer = 1 + what % 2;
    if (what >= 0xf8) {
      liveness.OnPeerClosed(peer, what % 4 < 2);
    } else if (what >= 0xf0) {
      Call call;
      call.count = 1 + what % 3;
      uint64_t signature = 0;
      (void)liveness.BeginCall(++sequence, call, &signature);
      if (what % 4 < 2) liveness.EndCall();
    } else {
      const uint8_t kind = input.Byte() % 24;
      const size_t length = input.Below(400);
      liveness.OnMessage(peer, kind, Exact(input.Take(length)));
    }
    Require(sticky_error.failed() == !sticky_error.error().ok(), "who has failed has an error");
    if (sticky_error.failed()) {
      Require(sticky_error.error().message().starts_with("rank 0/3"), "an error names this rank");
    }
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> bodies(4);
  CallRecord record;
  record.sequence = 1;
  record.codec = "hbi:bits=6";
  bodies[0] = record.Encode();
  ByteWriter error, where, proposal;
  error.U32(6);
  error.String("rank 1/3 in op 2: peer 2@h:3 failed");
  bodies[1] = error.bytes();
  where.U64(4);
  where.U8(1);
  bodies[2] = where.bytes();
  proposal.U64(1);
  proposal.U8(1);
  proposal.U8(0b111);
  proposal.U64(2);
  bodies[3] = proposal.bytes();
  const uint8_t kinds[] = {1, 2, 3, 16};
  std::vector<std::vector<std::byte>> examples;
  for (size_t i = 0; i < bodies.size(); ++i) {
    std::vector<std::byte> example = {std::byte{0xf0}, std::byte{1}, std::byte{kinds[i]}};
    example.push_back(static_cast<std::byte>(bodies[i].size()));
    example.push_back(static_cast<std::byte>(bodies[i].size() >> 8));
    example.insert(example.end(), bodies[i].begin(), bodies[i].end());
    example.push_back(std::byte{0xf2});
    example.push_back(std::byte{0xfa});
    examples.push_back(std::move(example));
  }
  return examples;
}

}  // namespace inccl::fuzz
