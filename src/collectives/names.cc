// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.h"

namespace inccl {

const char* Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing: return "ring";
    case Algorithm::kTree: return "tree";
    case Algorithm::kRecursiveDoubling: return "recursive_doubling";
    case Algorithm::kDirectOneShot: return "direct_one_shot";
    case Algorithm::kDirect: return "direct";
  }
  return "unknown";
}

}  // namespace inccl
