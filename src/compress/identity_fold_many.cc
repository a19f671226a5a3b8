// SPDX-License-Identifier: Apache-2.0
//
// IdentityState for folds with more operands than a kernel takes. Partial sums stay in a tile in
// the L1 cache: in the element type where sums are exact or rounded at every step anyway, and in
// fp32 for narrow floats, which a fold rounds once.
#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/identity_codec.h"
#include "compress/kernels/convert.h"

namespace inccl {
namespace {

constexpr uint32_t kFoldTileBytes = 8 * 1024;
constexpr uint32_t kNarrowTile = kFoldTileBytes / sizeof(float);  // elements

}  // namespace

void IdentityState::FoldTile(size_t offset, uint32_t count, std::span<const Term> inputs,
                             std::byte* sum) const {
  void* out[] = {sum};
  for (size_t next = 0; next < inputs.size();) {
    const void* in[kMaxReduceInputs];
    ReduceArgs args = {
        .in = in, .out = out, .outputs = 1, .count = count, .scale = scale_, .factor = factor_};
    if (next > 0) in[args.inputs++] = sum;
    for (; next < inputs.size() && args.inputs < kMaxReduceInputs; ++next) {
      if (IsScaled(inputs[next])) args.scaled |= uint64_t{1} << args.inputs;
      in[args.inputs++] = inputs[next].data + offset;
    }
    reduce_(args);
  }
}

void IdentityState::FoldNarrowTile(size_t offset, uint32_t count, std::span<const Term> inputs,
                                   std::byte* sum) const {
  alignas(64) float sum32[kNarrowTile];
  alignas(64) float part32[kNarrowTile];
  alignas(64) std::byte product[kFoldTileBytes / 2];
  const ReduceFn reduce32 = FindReduce(DataType::kFloat32, call_.op);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::byte* part = inputs[i].data + offset;
    if (IsScaled(inputs[i])) {
      FoldTile(offset, count, inputs.subspan(i, 1), product);
      part = product;
    }
    ToFloat(call_.type, part, i == 0 ? sum32 : part32, count);
    if (i == 0) continue;
    const void* in[] = {sum32, part32};
    void* out[] = {sum32};
    reduce32({.in = in, .inputs = 2, .out = out, .outputs = 1, .count = count});
  }
  if (call_.op == ReduceOp::kAvg) {
    SaturateTo(LargestOf(call_.type), std::numeric_limits<float>::max(), sum32, count);
  }
  FromFloat(call_.type, sum32, sum, count);
}

void IdentityState::FoldMany(uint32_t first, uint32_t end, bool divides,
                             std::span<const Term> inputs, std::span<const Term> outputs) const {
  alignas(64) std::byte sum[kFoldTileBytes];
  const size_t size = SizeOf(call_.type);
  const bool narrow = IsFloat(call_.type) && size < sizeof(float);
  const uint32_t tile = narrow ? kNarrowTile : kFoldTileBytes / static_cast<uint32_t>(size);
  for (uint32_t at = first; at < end; at += std::min(tile, end - at)) {
    const size_t offset = at * size;
    const uint32_t length = std::min(tile, end - at);
    (this->*(narrow ? &IdentityState::FoldNarrowTile : &IdentityState::FoldTile))(offset, length,
                                                                                  inputs, sum);
    for (const bool sums : {true, false}) {
      if (!sums && divides) DivideIntegers(call_.type, sum, length, call_.nranks);
      for (Term output : outputs) {
        if ((output.format.form == Form::kSum) != sums) continue;
        output.data += offset;
        Copy(sum, 0, length * static_cast<uint32_t>(size), {&output, 1});
      }
    }
  }
}

}  // namespace inccl
