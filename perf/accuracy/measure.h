// SPDX-License-Identifier: Apache-2.0
//
// How far a result is from the exact sum (docs/accuracy.md, "Measures").
#ifndef INCCL_PERF_ACCURACY_MEASURE_H_
#define INCCL_PERF_ACCURACY_MEASURE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace inccl::tools {

using Vectors = std::vector<std::vector<float>>;  // one per rank, of equal lengths

struct Errors {
  double square = 0;  // |result - sum|^2
  double vnmse = 0;   // over |sum|^2; of a sum that is zero: 0 if the result is too, else infinite
  double max_error = 0;  // largest |result - sum| of an element
  double cosine = 0;     // of the angle between them; 1 where both are zero
};

// The sum over the ranks in fp64.
std::vector<double> ExactSum(const Vectors& inputs);

// A result that is not finite gives errors that are NaN or infinite, never small ones.
Errors ErrorsOf(const std::vector<float>& result, const std::vector<double>& exact);
Errors ErrorsOf(const std::vector<double>& result, const std::vector<double>& exact);

// Consecutive elements of a vector, e.g. one tensor of a model.
struct Layer {
  std::string name;
  size_t count = 0;
  size_t cols = 0;  // of a row-major matrix; 0: a vector
};

// The vNMSE of each layer, relative to the layer's own sum. The layers cover the vector in order.
std::vector<double> LayerErrors(const std::vector<float>& result, const std::vector<double>& exact,
                                const std::vector<Layer>& layers);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_MEASURE_H_
