// SPDX-License-Identifier: Apache-2.0
//
// The random numbers of NumPy's default_rng(seed): so that an error that was computed in NumPy can
// be compared on the very same sample, where a sample's own luck would hide a difference of a few
// percent. SeedSequence with one 32-bit word of entropy and PCG64 (XSL-RR, O'Neill 2014) give
// NumPy's bits; values that go through libm may differ from NumPy's in the last bit of a double.
// Not thread-safe.
#ifndef INCCL_PERF_ACCURACY_NUMPY_RANDOM_H_
#define INCCL_PERF_ACCURACY_NUMPY_RANDOM_H_

#include <cstdint>

namespace inccl::tools {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);
  uint64_t Next();     // 64 bits
  double Uniform();    // random(): [0, 1)
  double Normal();     // standard_normal(): ziggurat, 256 layers (Marsaglia and Tsang 2000)
  double Laplace();    // laplace(): location 0, scale 1
  double StudentT3();  // standard_t(3)

 private:
  // Gamma of shape 3/2 and scale 1 (Marsaglia and Tsang 2000).
  double GammaThreeHalves();

  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_NUMPY_RANDOM_H_
