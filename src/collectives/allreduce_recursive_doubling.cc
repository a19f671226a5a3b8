// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

// Here ranks are numbered host by host, so neighbours share a host. The ranks that exchange have p
// places; p is the largest power of two that is not above the number of ranks. The first 2 * extra
// ranks form pairs whose odd half stays outside, so neighbouring places stand for neighbouring
// ranks, in order.
struct Places {
  int p;
  int extra;

  explicit Places(int nranks)
      : p(static_cast<int>(std::bit_floor(static_cast<unsigned>(nranks)))), extra(nranks - p) {}
  bool Paired(int rank) const { return rank < 2 * extra; }
  int PlaceOf(int rank) const { return Paired(rank) ? rank / 2 : rank - extra; }
  int RankOf(int place) const { return place < extra ? 2 * place : place + extra; }
  // Contributions of the aligned block of `size` places around `place`.
  int Contributions(int place, int size) const {
    const int first = place / size * size;
    return size + std::clamp(extra - first, 0, size);
  }
};

// A rank outside sends its part to the rank before it, and receives the result from there.
void Outside(PhaseBuilder* phase, const HostOrder& order, int channel) {
  const int rank = phase->rank(), partner = order.At(order.place() - 1);
  const int strand = phase->AddStrand(channel);
  const int to = phase->AddLane(channel, kSumPlane, rank, {partner});
  const int from = phase->AddLane(channel, kResultPlane, partner, {rank});
  phase->AddStep(strand, 0, {phase->Input()}, {phase->Sum(to, 1)});
  phase->AddStep(strand, 0, {phase->Result(from)}, {phase->Output()});
}

// Sends the sum so far to the partner at distance 1, 2, 4, ... and adds the partner's. One step
// combines the sum of a round and the send of the next; the running sum alternates between two
// scratch slots. The lower part in the order of hosts always comes first, so all ranks compute the
// same bits.
void Inside(PhaseBuilder* phase, const HostOrder& order, int channel, const Places& places) {
  const int rank = phase->rank(), place = places.PlaceOf(order.place());
  const int strand = phase->AddStrand(channel);
  std::vector<Operand> inputs = {phase->Input()};
  std::vector<Operand> last = {phase->Output()};
  if (places.Paired(order.place())) {
    const int outside = order.At(order.place() + 1);
    inputs.push_back(phase->Sum(phase->AddLane(channel, kSumPlane, outside, {rank}), 1));
    last.insert(last.begin(),
                phase->Result(phase->AddLane(channel, kResultPlane, rank, {outside})));
  }
  int scratch[2] = {-1, -1};
  int round = 0;
  for (int distance = 1; distance < places.p; distance *= 2, ++round) {
    const int partner = order.At(places.RankOf(place ^ distance));
    const int mine = places.Contributions(place, distance);
    const int theirs = places.Contributions(place ^ distance, distance);
    const int to = phase->AddLane(channel, kSumPlane, rank, {partner});
    const int from = phase->AddLane(channel, kSumPlane, partner, {rank});
    std::vector<Operand> outputs = {phase->Sum(to, mine)};
    Operand running = phase->Input();
    if (inputs.size() > 1) {
      int& slot = scratch[round & 1];
      if (slot < 0) slot = phase->AddScratch();
      running = phase->Scratch(slot, mine);
      outputs.push_back(running);
    }
    phase->AddStep(strand, 0, inputs, outputs);
    inputs = {running, phase->Sum(from, theirs)};
    if ((place & distance) != 0) std::swap(inputs[0], inputs[1]);
  }
  phase->AddStep(strand, 0, inputs, last);
}

}  // namespace

// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005),
// section 4.4, without the scatter.
void AllReduceRecursiveDoubling(PhaseBuilder* phase) {
  const Places places(phase->nranks());
  const HostOrder order(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    if (places.Paired(order.place()) && order.place() % 2 == 1) {
      Outside(phase, order, channel);
    } else {
      Inside(phase, order, channel, places);
    }
  }
}

}  // namespace inccl
