// SPDX-License-Identifier: Apache-2.0
//
// Environment variables and algorithm lists: any text as the value of any variable.
#include <map>

#include "config/variables.h"
#include "fuzz/fuzz.h"
#include "tuning/tuner.h"

namespace inccl::fuzz {

void Run(Data data) {
  Input input(data);
  const std::span<const VariableInfo> table = VariableTable();
  std::map<std::string, std::string> values;
  for (int i = 0; i < 3 && !input.empty(); ++i) {
    const VariableInfo& variable = table[input.Byte() % table.size()];
    std::string value = ToText(input.Take(input.Byte()));
    value = value.c_str();  // as the environment would hold it
    values[variable.name] = value;
  }
  const Result<Environment> env = ReadEnvironment([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
  if (!env.ok()) {
    const bool named = std::any_of(values.begin(), values.end(), [&](const auto& value) {
      return env.status().message().find(value.first) != std::string::npos;
    });
    Require(named, "an error names the variable");
    return;
  }
  const Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(env->algo);
  Require(filter.ok() || !filter.status().message().empty(), "a refusal says why");
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  const std::span<const VariableInfo> table = VariableTable();
  for (size_t i = 0; i < table.size(); ++i) {
    for (const char* value : {"1", "ring,tree;allreduce:^tree", "shm,ucx", "10.5", "INFO",
                              "^INIT,COLL", "host:4711", "%h-%p.log"}) {
      std::vector<std::byte> example{std::byte(static_cast<uint8_t>(i)),
                                     std::byte(static_cast<uint8_t>(std::string(value).size()))};
      const std::vector<std::byte> text = FromText(value);
      example.insert(example.end(), text.begin(), text.end());
      examples.push_back(std::move(example));
    }
  }
  return examples;
}

}  // namespace inccl::fuzz
