// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// The root sends to all others at once.
void BroadcastDirect(PhaseBuilder* phase) {
  const int root = phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const Operand lane =
        phase->Result(phase->AddLane(channel, kResultPlane, root, phase->AllBut(root)));
    const int strand = phase->AddStrand(channel);
    if (phase->rank() == root) {
      phase->AddStep(strand, 0, {phase->Input()}, {lane, phase->Output()});
    } else {
      phase->AddStep(strand, 0, {lane}, {phase->Output()});
    }
  }
}

}  // namespace inccl
