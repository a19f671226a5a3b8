// SPDX-License-Identifier: Apache-2.0
//
// The factory functions that reducer.cc lists. Each makes a reducer from the specification of its
// method and the codec of its rounds; errors name the key and the value.
#ifndef INCCL_REDUCE_METHODS_H_
#define INCCL_REDUCE_METHODS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/codec_spec.h"
#include "reduce/reducer.h"

namespace inccl {

using MadeReducer = Result<std::shared_ptr<const Reducer>>;
using RoundCodec = std::shared_ptr<const Codec>;

MadeReducer MakeCltK(const CodecSpec& spec, RoundCodec codec);         // clt_k.cc
MadeReducer MakeCountSketch(const CodecSpec& spec, RoundCodec codec);  // count_sketch.cc
MadeReducer MakePowerSgd(const CodecSpec& spec, RoundCodec codec);     // powersgd.cc
MadeReducer MakeRandomK(const CodecSpec& spec, RoundCodec codec);      // random_k.cc
MadeReducer MakeTopk(const CodecSpec& spec, RoundCodec codec);         // topk.cc

// What a method's keys say about residuals, and of how many elements its blocks are.
Result<bool> ParseResidual(const CodecSpec& spec, bool fallback);
Result<uint64_t> ParseBlock(const CodecSpec& spec);

// A reducer that makes states as State(identity, tensor, config, codec).
template <typename State, typename Config>
class MethodReducer final : public Reducer {
 public:
  MethodReducer(std::string method, Config config, RoundCodec codec)
      : Reducer(std::move(codec)), method_(std::move(method)), config_(std::move(config)) {}

  std::unique_ptr<ReducerState> NewState(const TensorDesc& tensor) const override {
    return std::make_unique<State>(identity(), tensor, config_, codec());
  }

 private:
  const std::string& method() const override { return method_; }

  const std::string method_;
  const Config config_;
};

// The number of elements that are k of `count`: rounded, at least 1 of a tensor that is not empty.
inline uint64_t SelectedOf(double k, uint64_t count) {
  const double wanted = std::round(k * static_cast<double>(count));
  if (count == 0) return 0;
  return wanted < 1 ? 1 : std::min(count, static_cast<uint64_t>(wanted));
}

// Elements of a round as bytes, and back.
template <typename T>
std::span<T> ResizeFor(std::vector<std::byte>* bytes, size_t count) {
  bytes->resize(count * sizeof(T));
  return {reinterpret_cast<T*>(bytes->data()), count};
}
template <typename T>
std::span<const T> ElementsOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace inccl

#endif  // INCCL_REDUCE_METHODS_H_
