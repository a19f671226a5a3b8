// SPDX-License-Identifier: Apache-2.0
//
// The codec "onebit": of each element its sign, of each block the mean of the magnitudes. A
// superblock is its blocks' scales (fp32), then the sign bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "compress/codecs.h"
#include "compress/kernels/published_kernels.h"
#include "compress/published/block_code.h"

namespace inccl {
namespace {

class OnebitCode final : public BlockCode {
 public:
  explicit OnebitCode(uint32_t block)
      : block_(block), spec_(fmt::format("onebit:block={}", block)) {}

  const char* name() const override { return "onebit"; }
  const std::string& spec() const override { return spec_; }
  double bits() const override { return 1 + 32.0 / block_; }
  // The mean lies between 0 and the largest magnitude.
  double unit() const override { return 1; }
  double reach() const override { return 1; }
  bool needs_residual() const override { return true; }
  uint32_t Bytes(uint32_t count) const override { return ScaleBytes(count) + (count + 7) / 8; }
  uint32_t Encode(const float* x, uint32_t count, uint32_t /*random*/,
                  std::byte* out) const override {
    float sums[kMostBlocks];
    const uint32_t scales = ScaleBytes(count);
    onebit::BestKernels().encode(x, block_, reinterpret_cast<uint8_t*>(out + scales), sums);
    for (uint32_t b = 0; b * block_ < count; ++b) {
      const float elements = static_cast<float>(std::min(block_, count - b * block_));
      const float scale =
          std::isfinite(sums[b]) ? sums[b] / elements : ScaleOfLarge(x + b * block_, elements);
      std::memcpy(out + b * sizeof scale, &scale, sizeof scale);
    }
    return Bytes(count);
  }
  uint32_t Add(const std::byte* in, uint64_t left, uint32_t count, bool first,
               float* sum) const override;

 private:
  uint32_t ScaleBytes(uint32_t count) const {
    return (count + block_ - 1) / block_ * static_cast<uint32_t>(sizeof(float));
  }
  // Of a block whose magnitudes do not add up to a finite number. Those that are finite have a
  // mean.
  float ScaleOfLarge(const float* x, float elements) const;

  const uint32_t block_;
  const std::string spec_;
};

float OnebitCode::ScaleOfLarge(const float* x, float elements) const {
  double sum = 0;
  for (uint32_t i = 0; i < block_; ++i) sum += std::fabs(static_cast<double>(x[i]));
  return std::isfinite(sum) ? static_cast<float>(sum / static_cast<double>(elements)) : kNan;
}

uint32_t OnebitCode::Add(const std::byte* in, uint64_t left, uint32_t count, bool first,
                         float* sum) const {
  const uint32_t bytes = Bytes(count), scale_bytes = ScaleBytes(count);
  if (left < bytes) return 0;
  float scales[kMostBlocks] = {};
  std::memcpy(scales, in, scale_bytes);
  const auto* signs = reinterpret_cast<const uint8_t*>(in + scale_bytes);
  uint8_t padded[onebit::kSignBytes] = {};
  if (count < kSuperblock) {
    std::memcpy(padded, signs, bytes - scale_bytes);
    signs = padded;
  }
  uint32_t poisoned = 0;  // one bit per block
  for (uint32_t b = 0; b < scale_bytes / sizeof(float); ++b) {
    if (!std::isfinite(scales[b])) poisoned |= 1u << b;
  }
  onebit::BestKernels().add(signs, scales, block_, first, sum);
  FillPoisoned(poisoned, block_, sum);
  return bytes;
}

}  // namespace

MadeCodec MakeOnebitCodec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"block"}, kSizes[] = {"32", "64", "128", "256"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<size_t> size = spec.Choice("block", 3, kSizes);
  if (!size.ok()) return size.status();
  return MakeBlockCodec(std::make_shared<const OnebitCode>(kBlock << *size));
}

}  // namespace inccl
