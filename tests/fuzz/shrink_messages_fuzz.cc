// SPDX-License-Identifier: Apache-2.0
//
// Messages of a shrink from any peer, before this rank calls it, and while it makes the new id and
// joins: the call ends soon, with a communicator of this rank and living others, or with an error.
#include <algorithm>

#include "base/bytes.h"
#include "failure/shrink_agreement.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr uint8_t kFirstKind = 16, kKinds = 4;
constexpr Time kLimit = 100 * kMicrosecond;

// Each: a byte that chooses the peer, one that chooses the kind, one of length, the body.
void Feed(Input* input, int rank, int nranks, int most, ShrinkAgreement* shrink_agreement) {
  for (int i = 0; i < most && !input->empty(); ++i) {
    const auto peer = static_cast<int>(input->Byte() % nranks);
    const auto kind = static_cast<uint8_t>(kFirstKind + input->Byte() % kKinds);
    const Data body = input->Take(input->Byte());
    if (peer == rank) continue;
    if (input->Byte() == 0xdd) {
      shrink_agreement->OnPeerClosed(peer);
    } else {
      (void)shrink_agreement->OnMessage(peer, kind, Exact(body));
    }
  }
}

}  // namespace

void Run(Data data) {
  Input input(data);
  const uint8_t shape = input.Byte();
  const int nranks = shape == 0xff ? 300 : 1 + shape % 10;
  const int rank = static_cast<int>(input.Byte()) % nranks;
  ShrinkAgreement shrink_agreement(rank, nranks,
                                   std::vector<std::string>(static_cast<size_t>(nranks), "h:1"));
  ShrinkAgreement::Steps steps;
  steps.create_id = [&]() -> Result<UniqueId> {
    Feed(&input, rank, nranks, 2, &shrink_agreement);
    return UniqueId();
  };
  steps.join = [&](const UniqueId&, const ShrinkAgreement::Outcome&,
                   const std::atomic<bool>*) -> Status {
    Feed(&input, rank, nranks, 4, &shrink_agreement);
    return input.Byte() % 2 == 0 ? Status::Ok() : RemoteError("joining failed");
  };
  for (int call = 0; call < 3; ++call) {
    Feed(&input, rank, nranks, 8, &shrink_agreement);
    RankSet wanted(nranks);
    const uint8_t bits = input.Byte();
    for (int other = 0; other < std::min(nranks, 8); ++other) {
      if (other != rank && (bits >> other & 1) != 0) wanted.Add(other);
    }
    const Result<ShrinkAgreement::Outcome> outcome =
        shrink_agreement.Agree(wanted, 7, SystemClock().Now() + kLimit, steps);
    if (!outcome.ok()) {
      Require(!outcome.status().message().empty(), "an error says something");
      continue;
    }
    const std::vector<int>& members = outcome.value().members;
    Require(std::count(members.begin(), members.end(), rank) == 1, "this rank is a member once");
    Require(std::is_sorted(members.begin(), members.end()), "members are in order");
    for (const int member : members) {
      Require(member >= 0 && member < nranks, "members are ranks");
      Require(!wanted.Contains(member), "no member is a rank that the caller excludes");
    }
    Require(outcome.value().last_completed <= 7, "no more has completed than here");
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  const auto add = [](uint8_t peer, uint8_t kind, const ByteWriter& body,
                      std::vector<std::byte>* out) {
    out->push_back(std::byte{peer});
    out->push_back(std::byte{kind});
    out->push_back(static_cast<std::byte>(body.bytes().size()));
    out->insert(out->end(), body.bytes().begin(), body.bytes().end());
    out->push_back(std::byte{0});
  };
  // Three ranks, this one rank 0 or 1; the others propose these sets, have joined and are done.
  for (const uint8_t set : {0b000, 0b111, 0b100, 0b001}) {
    for (const uint8_t rank : {0, 1}) {
      std::vector<std::byte> example = {std::byte{2}, std::byte{rank}};
      for (uint8_t peer = 0; peer < 3; ++peer) {
        ByteWriter proposal, id, joined, done;
        proposal.U64(1);
        proposal.U8(1);
        proposal.U8(set);
        proposal.U64(3);
        add(peer, 0, proposal, &example);
        std::byte encoded[kUniqueIdBytes];
        UniqueId().Encode(encoded);
        id.U64(1);
        id.Raw(encoded);
        add(peer, 1, id, &example);
        joined.U64(1);
        add(peer, 2, joined, &example);
        done.U64(1);
        done.U8(set);
        add(peer, 3, done, &example);
      }
      examples.push_back(std::move(example));
    }
  }
  return examples;
}

}  // namespace inccl::fuzz
