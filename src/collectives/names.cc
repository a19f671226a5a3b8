// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.h"

namespace inccl {

const char* Name(Algorithm algorithm) {
  const AlgorithmTraits* traits = FindTraits(algorithm);
  return traits == nullptr ? "unknown" : traits->name;
}

}  // namespace inccl
