// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/way.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <thread>
#include <utility>

#include "perf/accuracy/reference_rings.h"

namespace inccl::tools {
namespace {

Status FromResult(ccl_result_t result, ccl_comm_t comm, const std::string& what) {
  if (result == CCL_SUCCESS) return {};
  return Status(
      static_cast<Code>(result),
      fmt::format("{}: {}: {}", what, ccl_get_error_string(result), ccl_get_last_error(comm)));
}

// Codecs with integer sums are summed where one payload is one contribution; the others are known
// from rings. The rounds of a reducer are short, but stand for those of large tensors.
std::string UsualAlgorithm(const std::string& spec) {
  if (spec.find('|') != std::string::npos) return "direct_two_shot";
  if (spec.find("ref=ring") != std::string::npos) return "ring";
  for (const char* sums : {"hbi", "qsgd", "onebit", "dither"}) {
    if (spec.starts_with(sums)) return "direct";
  }
  return "ring";
}

// A specification without what makes points of one line: bits and levels.
std::string SeriesOf(const std::string& spec, const std::string& algo) {
  static const std::regex variable("(^|[:,])(bits|k|k2|q)=[^,]*");
  std::string rest = std::regex_replace(spec, variable, "$1");
  while (!rest.empty() && (rest.back() == ',' || rest.back() == ':')) rest.pop_back();
  rest = std::regex_replace(rest, std::regex("([:,]),+"), "$1");
  return fmt::format("{} ({})", rest, algo);
}

}  // namespace

Way Bf16Reference() { return {Way::Kind::kBf16Ring, "bf16 ring", "-", "bf16 ring"}; }

Way Mxfp8Reference() { return {Way::Kind::kMxfp8Ring, "MXFP8 ring", "-", "MXFP8 ring"}; }

Way CodecWay(const std::string& spec, const std::string& algo) {
  const std::string carrier = algo.empty() ? UsualAlgorithm(spec) : algo;
  const bool reducer = spec.find('|') != std::string::npos;
  return {reducer ? Way::Kind::kReducer : Way::Kind::kCodec, spec, carrier,
          SeriesOf(spec, carrier)};
}

Status Available(const Way& way) {
  if (way.kind == Way::Kind::kReducer) {
    ccl_reducer_t reducer = nullptr;
    const ccl_result_t result = ccl_reducer_create(&reducer, way.name.c_str());
    Status status = FromResult(result, nullptr, way.name);
    ccl_reducer_destroy(reducer);
    return status;
  }
  if (way.kind != Way::Kind::kCodec) return {};
  ccl_codec_t codec = nullptr;
  const ccl_result_t result = ccl_codec_create(&codec, way.name.c_str());
  Status status = FromResult(result, nullptr, way.name);
  ccl_codec_destroy(codec);
  return status;
}

Result<std::unique_ptr<Ranks>> Ranks::Create(const Way& way, int nranks) {
  std::unique_ptr<Ranks> ranks(new Ranks(way));
  const bool reduces = way.kind == Way::Kind::kReducer;
  if (way.kind != Way::Kind::kCodec && !reduces) return ranks;
  if (setenv("INCCL_ALGO", way.algo.c_str(), 1) != 0) return SystemErrorErrno("INCCL_ALGO", errno);
  const ccl_result_t created = reduces ? ccl_reducer_create(&ranks->reducer_, way.name.c_str())
                                       : ccl_codec_create(&ranks->codec_, way.name.c_str());
  if (Status s = FromResult(created, nullptr, way.name); !s.ok()) return s;
  std::vector<ccl_comm_t> comms(static_cast<size_t>(nranks), nullptr);
  const ccl_result_t result = ccl_comm_init_all(comms.data(), nranks, nullptr);
  if (Status s = FromResult(result, nullptr, "ccl_comm_init_all"); !s.ok()) return s;
  ranks->comms_ = std::move(comms);
  return ranks;
}

Status Ranks::UseResiduals(size_t count) {
  if (reducer_ != nullptr) return {};
  for (size_t r = residuals_.size(); r < comms_.size(); ++r) {
    const ccl_result_t made =
        ccl_residual_create(&residuals_.emplace_back(nullptr), count, nullptr);
    if (Status s = FromResult(made, nullptr, "ccl_residual_create"); !s.ok()) return s;
  }
  return {};
}

Status Ranks::MakeStates(size_t count) {
  while (reducer_ != nullptr && states_.size() < comms_.size()) {
    const ccl_result_t made =
        ccl_reducer_state_create(&states_.emplace_back(nullptr), reducer_, 1, count, CCL_FLOAT32);
    if (Status s = FromResult(made, nullptr, "ccl_reducer_state_create"); !s.ok()) return s;
  }
  return {};
}

Ranks::~Ranks() {
  for (ccl_reducer_state_t state : states_) ccl_reducer_state_destroy(state);
  for (ccl_residual_t residual : residuals_) ccl_residual_destroy(residual);
  for (ccl_comm_t comm : comms_) ccl_comm_destroy(comm);
  ccl_codec_destroy(codec_);
  ccl_reducer_destroy(reducer_);
}

Status Ranks::CheckRanks(const Vectors& outputs,
                         const std::vector<ccl_compression_stats_t>& stats) const {
  const size_t bytes = outputs[0].size() * sizeof(float);
  for (size_t r = 0; r < outputs.size(); ++r) {
    if (bytes != 0 && std::memcmp(outputs[0].data(), outputs[r].data(), bytes) != 0) {
      return InternalError(fmt::format("{} over {}: ranks 0 and {} have different results",
                                       way_.name, way_.algo, r));
    }
    if (stats[r].compressed == 0 && way_.name != "none") {
      return InternalError(fmt::format("{}: the call ran uncompressed on rank {}", way_.name, r));
    }
  }
  return {};
}

Result<Sum> Ranks::Take(const Vectors& inputs, uint64_t step) {
  if (way_.kind == Way::Kind::kBf16Ring) return Sum{Bf16Ring(inputs), kBf16Bits};
  if (way_.kind == Way::Kind::kMxfp8Ring) return Sum{Mxfp8Ring(inputs), kMxfp8Bits};
  if (Status s = MakeStates(inputs[0].size()); !s.ok()) return s;
  const size_t n = comms_.size();
  Vectors outputs(n, std::vector<float>(inputs[0].size()));
  std::vector<ccl_compression_stats_t> stats(n, CCL_COMPRESSION_STATS_INIT);
  std::vector<Status> statuses(n);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = codec_;
      how.step = step;
      how.stats = &stats[r];
      if (!residuals_.empty()) how.residual = residuals_[r];
      const ccl_result_t result =
          reducer_ != nullptr
              ? ccl_allreduce_reduced(inputs[r].data(), outputs[r].data(), states_[r], CCL_SUM,
                                      &how, comms_[r], nullptr)
              : ccl_allreduce_compressed(inputs[r].data(), outputs[r].data(), inputs[r].size(),
                                         CCL_FLOAT32, CCL_SUM, &how, comms_[r], nullptr);
      statuses[r] = FromResult(result, comms_[r],
                               fmt::format("{} over {}, rank {}", way_.name, way_.algo, r));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  if (Status s = CheckRanks(outputs, stats); !s.ok()) return s;
  Sum sum{std::move(outputs[0])};
  for (const ccl_compression_stats_t& rank : stats) sum.bits += rank.bits / static_cast<double>(n);
  return sum;
}

}  // namespace inccl::tools
