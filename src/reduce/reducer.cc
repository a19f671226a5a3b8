// SPDX-License-Identifier: Apache-2.0
//
// The list of all methods.
#include "reduce/reducer.h"

#include <fmt/format.h>

#include "reduce/methods.h"

namespace inccl {
namespace {

struct Entry {
  std::string_view name;
  MadeReducer (*make)(const CodecSpec& spec, RoundCodec codec);
};

constexpr Entry kMethods[] = {
    {"clt_k", MakeCltK},        {"count_sketch", MakeCountSketch},
    {"powersgd", MakePowerSgd}, {"random_k", MakeRandomK},
    {"topk", MakeTopk},
};

Result<RoundCodec> MakeRoundCodec(std::string_view spec) {
  Result<RoundCodec> codec = MakeCodec(spec);
  if (!codec.ok()) {
    return InvalidArgument(fmt::format("reducer spec: {}", codec.status().message()));
  }
  if ((*codec)->route().sums_hosts) {
    return InvalidArgument(fmt::format(
        "reducer spec: {}: the rounds of a reducer take no sums of hosts (local=fp32)", spec));
  }
  return codec;
}

}  // namespace

Result<bool> ParseResidual(const CodecSpec& spec, bool fallback) {
  Result<uint64_t> value = spec.Integer("residual", fallback ? 1 : 0, 0, 1);
  if (!value.ok()) return value.status();
  return *value == 1;
}

Result<uint64_t> ParseBlock(const CodecSpec& spec) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  return spec.Integer("block", 1, 1, kMost);
}

Result<std::shared_ptr<const Reducer>> MakeReducer(std::string_view spec) {
  const size_t bar = spec.find('|');
  Result<CodecSpec> method = CodecSpec::Parse(spec.substr(0, bar), "reducer");
  if (!method.ok()) return method.status();
  std::string names;
  for (const Entry& entry : kMethods) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
    if (entry.name != method->name()) continue;
    Result<RoundCodec> codec =
        MakeRoundCodec(bar == std::string_view::npos ? "none" : spec.substr(bar + 1));
    if (!codec.ok()) return codec.status();
    return entry.make(*method, *std::move(codec));
  }
  return InvalidArgument(
      fmt::format("reducer spec: unknown method {}; there are {}", method->name(), names));
}

}  // namespace inccl
