// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compress/block_code/block_code.h"
#include "compress/checked_state.h"

namespace inccl {
namespace {

class BlockCodec final : public Codec {
 public:
  explicit BlockCodec(std::shared_ptr<const BlockCode> code) : code_(std::move(code)) {}

  const std::string& spec() const override { return code_->spec(); }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return CheckFloatCall(code_->name(), collective, type, op, nranks);
  }
  uint64_t window_elements() const override { return 0; }
  uint32_t UncountedBytes() const override { return sizeof(ListEntry); }
  uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const override;
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    *bits = code_->bits();
    *relative_error = RelativeError(*code_, collective, nranks);
  }
  bool needs_residual() const override { return code_->needs_residual(); }
  std::unique_ptr<CodecState> NewState() const override { return NewBlockState(code_); }

 private:
  std::shared_ptr<const BlockCode> code_;
};

// The longest list, or fp32 elements where sums become too many for a list.
uint32_t BlockCodec::MaxBytes(DataType /*type*/, int nranks, uint32_t count) const {
  const auto n = static_cast<uint64_t>(nranks);
  const uint64_t longest = (kSuperblock * sizeof(float) - 1) / code_->Bytes(kSuperblock);
  const uint64_t listed = std::min(n, std::max<uint64_t>(1, longest));
  const uint64_t list = listed * (sizeof(ListEntry) + RangeBytes(*code_, count));
  const uint64_t floats = n > listed ? uint64_t{count} * sizeof(float) : 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(std::max(list, floats), std::numeric_limits<uint32_t>::max()));
}

}  // namespace

double RelativeError(const BlockCode& code, Collective collective, int nranks) {
  const double rounding = std::pow(1 + 0x1p-23, nranks + 2);
  const double one = code.unit(), total = std::min(1 + one, code.reach()) * one;
  return (1 + one + (collective == Collective::kAllReduce ? total : 0)) * rounding - 1;
}

uint64_t RangeBytes(const BlockCode& code, uint64_t count) {
  const auto tail = static_cast<uint32_t>(count % kSuperblock);
  return count / kSuperblock * code.Bytes(kSuperblock) + (tail == 0 ? 0 : code.Bytes(tail));
}

void FillPoisoned(uint32_t blocks, uint32_t block, float* sum) {
  for (; blocks != 0; blocks >>= 1, sum += block) {
    if ((blocks & 1) != 0) std::fill_n(sum, block, std::numeric_limits<float>::quiet_NaN());
  }
}

std::shared_ptr<const Codec> MakeBlockCodec(std::shared_ptr<const BlockCode> code) {
  return std::make_shared<const BlockCodec>(std::move(code));
}

}  // namespace inccl
