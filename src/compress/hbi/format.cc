// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/format.h"

#include <cmath>

namespace inccl::hbi {

double Magnitude(int code) {
  const int q = FifthOctaves(code);
  const int octave = (q + 5 * 128) / 5 - 128;  // rounded down
  return std::ldexp(double{std::bit_cast<float>(kFifthBits[q - 5 * octave])}, octave);
}

}  // namespace inccl::hbi
