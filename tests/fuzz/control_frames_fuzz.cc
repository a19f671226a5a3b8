// SPDX-License-Identifier: Apache-2.0
//
// Frames that a neighbour sends to a rank that passes messages on: it reads nothing beyond them,
// passes on a bounded number of them, to neighbours only, and reports each rank's end once.
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "control/control.h"
#include "control/router.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

using control::Router;

constexpr int kRanks = 12;
constexpr size_t kMostFrame = 4096;

Router::Terms TermsOf(int rank) {
  static const std::vector<std::shared_ptr<const bootstrap::ServerKey>> keys = [] {
    std::vector<std::shared_ptr<const bootstrap::ServerKey>> made;
    for (int i = 0; i < kRanks; ++i) {
      Result<std::shared_ptr<bootstrap::ServerKey>> key = bootstrap::ServerKey::Create();
      Require(key.ok(), "there are keys");
      made.push_back(*std::move(key));
    }
    return made;
  }();
  std::vector<uint64_t> hosts;
  for (uint64_t i = 0; i < kRanks; ++i) hosts.push_back(i);
  Router::Terms terms{.rank = rank,
                      .nranks = kRanks,
                      .graph = ControlGraph(HostMap(hosts), 1),
                      .key = keys[static_cast<size_t>(rank)],
                      .keys = {},
                      .communicator = {}};
  for (const auto& key : keys) terms.keys.push_back(key->public_key());
  return terms;
}

}  // namespace

// A frame: neighbour, kind, length (2 bytes), body.
void Run(Data data) {
  Input input(data);
  size_t emitted = 0;
  Router::Terms terms = TermsOf(0);
  const ControlGraph graph = terms.graph;
  Router router(std::move(terms), [&](int neighbour, uint8_t kind, Data body) {
    Require(graph.Linked(0, neighbour), "frames go to neighbours");
    Require(Router::Owns(kind), "of kinds that these know");
    Require(body.size() <= kMostFrame + Router::kMostHeaderBytes, "not larger than they came");
    ++emitted;
  });
  router.Send(3, 1, std::vector<std::byte>(10), 0);
  std::vector<bool> gone(kRanks);
  emitted = 0;
  for (Time now = 0; !input.empty(); now += kSecond) {
    const int neighbour = 1 << (input.Byte() % 4);
    const auto kind = static_cast<uint8_t>(Router::kRouted + input.Byte() % 4);
    const std::vector<std::byte> body = Exact(input.Take(input.Below(kMostFrame)));
    Router::Message message;
    const bool good = router.OnFrame(neighbour, kind, body, now, &message);
    Require(good || message.from < 0, "a malformed frame brings no message");
    if (message.from >= 0) {
      Require(message.from > 0 && message.from < kRanks, "of another rank");
      Require(message.kind >= 1 && message.kind <= kMostControlKind, "of a kind for the handler");
      Require(message.body.size() <= body.size(), "with a body out of the frame");
      Require(!gone[static_cast<size_t>(message.from)], "that is not gone");
    }
    while (const auto next = router.NextGone()) {
      const auto rank = static_cast<size_t>(next->rank);
      Require(rank > 0 && rank < kRanks && !gone[rank], "each end is told once");
      gone[rank] = true;
    }
    router.OnTime(now);
    Require(emitted <= 64, "few frames for one frame");
    emitted = 0;
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> frames;
  const auto keep = [&](int to, uint8_t kind, Data body) {
    if (to != 1 && kind == Router::kFlood) return;
    std::vector<std::byte> frame = {std::byte{0}, static_cast<std::byte>(kind - Router::kRouted),
                                    static_cast<std::byte>(body.size()), std::byte{0}};
    frame.insert(frame.end(), body.begin(), body.end());
    frames.push_back(frame);
  };
  Router far(TermsOf(9), keep), near(TermsOf(1), keep);
  far.Send(0, 5, std::vector<std::byte>(20), 0);
  far.Send(6, 5, std::vector<std::byte>(20), 0);
  far.Broadcast(7, std::vector<std::byte>(8));
  near.Broadcast(7, std::vector<std::byte>(8));
  near.OnNeighbourGone(9, Router::End::kClosed, 0, 0);
  std::vector<std::byte> all;
  for (const std::vector<std::byte>& frame : frames) {
    all.insert(all.end(), frame.begin(), frame.end());
  }
  frames.push_back(all);
  return frames;
}

}  // namespace inccl::fuzz
