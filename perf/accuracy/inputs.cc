// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/inputs.h"

#include <utility>
#include <vector>

#include "perf/support/datasets.h"

namespace inccl::tools {

Result<Vectors> MakeInputs(const std::string& data, int nranks, uint64_t count, uint64_t seed) {
  if (count == 0) {
    Result<uint64_t> natural = perf::NaturalCount(data);
    if (!natural.ok()) return natural.status();
    count = *natural != 0 ? *natural : uint64_t{1} << 17;
  }
  Vectors inputs;
  for (int r = 0; r < nranks; ++r) {
    Result<std::vector<float>> input = perf::MakeData(data, r, nranks, count, seed);
    if (!input.ok()) return input.status();
    inputs.push_back(*std::move(input));
  }
  return inputs;
}

}  // namespace inccl::tools
