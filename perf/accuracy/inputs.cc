// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/inputs.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
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

Result<std::vector<Layer>> ReadLayers(const std::string& path) {
  std::ifstream file(path);
  if (!file) return InvalidArgument(fmt::format("{}: cannot be read", path));
  std::vector<Layer> layers;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream text(line);
    Layer layer;
    std::string rest;
    const bool sized = static_cast<bool>(text >> layer.name >> layer.count) && layer.count > 0;
    const bool shaped = static_cast<bool>(text >> layer.cols);
    if (!sized || (shaped && (layer.cols == 0 || layer.count % layer.cols != 0)) ||
        (!shaped && !text.eof()) || (shaped && text >> rest)) {
      return InvalidArgument(fmt::format(
          "{}: expected a name, a number of elements and perhaps a number of columns, got '{}'",
          path, line));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace inccl::tools
