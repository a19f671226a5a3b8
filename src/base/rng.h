// SPDX-License-Identifier: Apache-2.0
//
// A small seeded generator (splitmix64; Steele, Lea and Flood 2014) and its mixing function.
#ifndef INCCL_BASE_RNG_H_
#define INCCL_BASE_RNG_H_

#include <cstdint>

namespace inccl {

// One splitmix64 output for state z: adds the golden-ratio increment, then mixes.
constexpr uint64_t Mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    const uint64_t value = Mix64(state_);
    state_ += 0x9E3779B97F4A7C15u;
    return value;
  }
  // Uniform in [0, bound), bound > 0; the bias of the multiply-shift is below 2^-32 for bounds that
  // fit 32 bits.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace inccl

#endif  // INCCL_BASE_RNG_H_
