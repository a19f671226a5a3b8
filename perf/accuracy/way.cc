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
// from rings.
std::string UsualAlgorithm(const std::string& spec) {
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
  return {Way::Kind::kCodec, spec, carrier, SeriesOf(spec, carrier)};
}

Way ReducerWay(const std::string& spec, const std::vector<Layer>& tensors) {
  return {Way::Kind::kReducer, spec, "-", SeriesOf(spec, "reducer"), tensors};
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
  ccl_result_t known = CCL_SUCCESS;
  if (way.kind == Way::Kind::kReducer) {
    // One shot sends each element n-1 times, which the reducer cannot help.
    if (setenv("INCCL_ALGO", "allreduce:direct_two_shot", 1) != 0) {
      return SystemErrorErrno("INCCL_ALGO", errno);
    }
    known = ccl_reducer_create(&ranks->reducer_, way.name.c_str());
  } else if (way.kind == Way::Kind::kCodec) {
    if (setenv("INCCL_ALGO", way.algo.c_str(), 1) != 0) {
      return SystemErrorErrno("INCCL_ALGO", errno);
    }
    known = ccl_codec_create(&ranks->codec_, way.name.c_str());
  } else {
    return ranks;
  }
  if (Status s = FromResult(known, nullptr, way.name); !s.ok()) return s;
  std::vector<ccl_comm_t> comms(static_cast<size_t>(nranks), nullptr);
  const ccl_result_t result = ccl_comm_init_all(comms.data(), nranks, nullptr);
  if (Status s = FromResult(result, nullptr, "ccl_comm_init_all"); !s.ok()) return s;
  ranks->comms_ = std::move(comms);
  return ranks;
}

Status Ranks::UseResiduals(size_t count) {
  for (size_t r = residuals_.size(); r < comms_.size(); ++r) {
    const ccl_result_t made =
        ccl_residual_create(&residuals_.emplace_back(nullptr), count, nullptr);
    if (Status s = FromResult(made, nullptr, "ccl_residual_create"); !s.ok()) return s;
  }
  return {};
}

Status Ranks::MakeStates(size_t count) {
  if (!states_.empty()) return {};
  tensors_ = way_.tensors;
  if (tensors_.empty()) tensors_.push_back({"all", count});
  for (size_t r = 0; r < comms_.size(); ++r) {
    states_.emplace_back();
    for (const Layer& tensor : tensors_) {
      const size_t cols = tensor.cols == 0 ? tensor.count : tensor.cols;
      const ccl_result_t made = ccl_reducer_state_create(
          &states_[r].emplace_back(nullptr), reducer_, tensor.count / cols, cols, CCL_FLOAT32);
      if (Status s = FromResult(made, nullptr, way_.name); !s.ok()) return s;
    }
  }
  return {};
}

Status Ranks::Reset() {
  for (const std::vector<ccl_reducer_state_t>& rank : states_) {
    for (ccl_reducer_state_t state : rank) {
      if (Status s = FromResult(ccl_reducer_state_reset(state), nullptr, way_.name); !s.ok()) {
        return s;
      }
    }
  }
  return {};
}

Ranks::~Ranks() {
  for (const std::vector<ccl_reducer_state_t>& rank : states_) {
    for (ccl_reducer_state_t state : rank) ccl_reducer_state_destroy(state);
  }
  ccl_reducer_destroy(reducer_);
  for (ccl_residual_t residual : residuals_) ccl_residual_destroy(residual);
  for (ccl_comm_t comm : comms_) ccl_comm_destroy(comm);
  ccl_codec_destroy(codec_);
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

ccl_result_t Ranks::CallReducer(size_t rank, const std::vector<float>& input, ccl_compression_t how,
                                std::vector<float>* output) {
  ccl_compression_stats_t* const all = how.stats;
  size_t first = 0;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    ccl_compression_stats_t one = CCL_COMPRESSION_STATS_INIT;
    how.stats = &one;
    const ccl_result_t result =
        ccl_allreduce_reduced(input.data() + first, output->data() + first, states_[rank][t],
                              CCL_SUM, &how, comms_[rank], nullptr);
    if (result != CCL_SUCCESS) return result;
    first += tensors_[t].count;
    all->compressed = one.compressed;
    all->bits +=
        one.bits * static_cast<double>(tensors_[t].count) / static_cast<double>(input.size());
  }
  return CCL_SUCCESS;
}

ccl_result_t Ranks::Call(size_t rank, const std::vector<float>& input, uint64_t step,
                         std::vector<float>* output, ccl_compression_stats_t* stats) {
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.step = step;
  how.stats = stats;
  if (reducer_ != nullptr) return CallReducer(rank, input, how, output);
  how.codec = codec_;
  if (!residuals_.empty()) how.residual = residuals_[rank];
  return ccl_allreduce_compressed(input.data(), output->data(), input.size(), CCL_FLOAT32, CCL_SUM,
                                  &how, comms_[rank], nullptr);
}

Result<Sum> Ranks::Take(const Vectors& inputs, uint64_t step) {
  if (way_.kind == Way::Kind::kBf16Ring) return Sum{Bf16Ring(inputs), kBf16Bits};
  if (way_.kind == Way::Kind::kMxfp8Ring) return Sum{Mxfp8Ring(inputs), kMxfp8Bits};
  if (reducer_ != nullptr) {
    if (Status s = MakeStates(inputs[0].size()); !s.ok()) return s;
  }
  const size_t n = comms_.size();
  Vectors outputs(n, std::vector<float>(inputs[0].size()));
  std::vector<ccl_compression_stats_t> stats(n, CCL_COMPRESSION_STATS_INIT);
  std::vector<Status> statuses(n);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      const ccl_result_t result = Call(r, inputs[r], step, &outputs[r], &stats[r]);
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
