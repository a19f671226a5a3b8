// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// A chain from the root through all others, through which slices are pipelined.
void BroadcastRing(PhaseBuilder* phase) {
  const bool first = phase->rank() == phase->root();
  const HostOrder chain = HostOrder::From(*phase, phase->root());
  const bool last = chain.Shifted(1) == phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const Operand input = first ? phase->Input()
                                : phase->Result(phase->AddLane(channel, kResultPlane,
                                                               chain.Shifted(-1), {phase->rank()}));
    std::vector<Operand> outputs;
    if (!last) {
      outputs.push_back(
          phase->Result(phase->AddLane(channel, kResultPlane, phase->rank(), {chain.Shifted(1)})));
    }
    outputs.push_back(phase->Output());
    phase->AddStep(phase->AddStrand(channel), 0, {input}, outputs);
  }
}

}  // namespace inccl
