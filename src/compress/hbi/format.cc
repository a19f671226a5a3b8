// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/format.h"

#include <cmath>

namespace inccl::hbi {

double Magnitude(int code) {
  const int q = QuarterOctaves(code);
  return std::ldexp(double{std::bit_cast<float>(kMantissaBits[q & 3])}, q >> 2);
}

}  // namespace inccl::hbi
