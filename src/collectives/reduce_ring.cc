// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// A chain through all others to the root; on one host it begins with the rank after the root. With
// root n-1 the sum is then folded in rank order.
void ReduceRing(PhaseBuilder* phase) {
  const int n = phase->nranks();
  const HostOrder chain = HostOrder::To(*phase, phase->root());
  const int place = chain.place();  // 0 .. n-1 (the root)
  for (int channel = 0; channel < phase->channels(); ++channel) {
    std::vector<Operand> inputs;
    if (place > 0) {
      const int from = phase->AddLane(channel, kSumPlane, chain.Shifted(-1), {phase->rank()});
      inputs.push_back(phase->Sum(from, place));
    }
    inputs.push_back(phase->Input());
    Operand output = phase->Output();
    if (place < n - 1) {
      const int to = phase->AddLane(channel, kSumPlane, phase->rank(), {chain.Shifted(1)});
      output = phase->Sum(to, place + 1);
    }
    phase->AddStep(phase->AddStrand(channel), 0, inputs, {output});
  }
}

}  // namespace inccl
