// SPDX-License-Identifier: Apache-2.0
//
// The codecs qsgd and randk.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/codecs.h"
#include "compress/qsgd/qsgd_config.h"

namespace inccl {
namespace {

using qsgd::Config;
using qsgd::Width;

constexpr uint64_t kMaxQ = 16;

class QsgdCodec final : public Codec {
 public:
  explicit QsgdCodec(Config config) : config_(std::make_shared<const Config>(std::move(config))) {}

  const std::string& spec() const override { return config_->spec; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return qsgd::CheckCall(*config_, collective, type, op, nranks);
  }
  bool has_side_phase() const override { return true; }
  uint32_t SideBytes(uint32_t /*count*/) const override { return qsgd::kSideBytes; }
  uint64_t row_elements() const override { return kWindow; }
  uint32_t MaxBytes(DataType /*type*/, int nranks, uint32_t count) const override {
    const uint32_t superblocks = count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0);
    const uint32_t width = Width(static_cast<uint32_t>(nranks), config_->levels);
    return superblocks * FieldBytes(std::min(config_->selected, count), width);
  }
  // Relative to the largest magnitude of the window. What is not selected is zero in the result;
  // unbiased, the others are that much too large.
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    const auto n = static_cast<uint32_t>(nranks);
    const double sum = Width(1, config_->levels), result = Width(n, config_->levels);
    const double share = double{kSuperblock} / config_->selected;
    *bits = sum;
    if (collective == Collective::kAllReduce) *bits = (sum + result) / 2;
    *bits /= share;
    const double unit = 1.0 / config_->levels + 0x1p-21;
    *relative_error = unit;
    if (config_->selected == kSuperblock) return;
    // The last slice of a sweep may be shorter.
    const uint32_t rest = kSuperblock % config_->selected;
    const double most = rest == 0 ? share : double{kSuperblock} / rest;
    *relative_error = config_->unbiased ? std::max(1.0, most * (1 + unit) - 1) : 1 + unit;
  }
  std::unique_ptr<CodecState> NewState() const override { return qsgd::NewState(config_); }

 private:
  std::shared_ptr<const Config> config_;
};

Status CheckWith(const CodecSpec& spec) {
  static constexpr std::string_view kQuantizers[] = {"qsgd"};
  return spec.Choice("with", 0, kQuantizers).status();
}

// A fraction of the elements, as places of a superblock.
Result<uint32_t> ParseFraction(const CodecSpec& spec) {
  const std::string* text = spec.Find("k");
  if (text == nullptr) return uint32_t{26};  // 0.1
  double fraction = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, fraction, std::chars_format::fixed);
  const double places = std::round(fraction * kSuperblock);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(places >= 1 && places <= kSuperblock)) {
    return InvalidArgument(
        fmt::format("codec {}: k={} is not a fraction between 1/256 and 1", spec.name(), *text));
  }
  return static_cast<uint32_t>(places);
}

}  // namespace

Status qsgd::CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                       int nranks) {
  Status status = CheckFloatCall(config.name, collective, type, op, nranks);
  if (!status.ok()) return status;
  if (uint64_t{2} * static_cast<uint64_t>(nranks) * config.levels < kFieldLimit) {
    return Status::Ok();
  }
  return InvalidArgument(fmt::format("codec {}: sums of {} ranks with {} levels need 32 bits",
                                     config.name, nranks, config.levels));
}

MadeCodec MakeQsgdCodec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"q"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<uint64_t> q = spec.Integer("q", 8, 1, kMaxQ);
  if (!q.ok()) return q.status();
  Config config;
  config.name = "qsgd";
  config.spec = fmt::format("qsgd:q={}", *q);
  config.levels = (1u << *q) - 1;
  return std::shared_ptr<const Codec>(std::make_shared<const QsgdCodec>(std::move(config)));
}

MadeCodec MakeRandkCodec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"k", "q", "unbiased", "with"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  if (Status status = CheckWith(spec); !status.ok()) return status;
  const Result<uint64_t> q = spec.Integer("q", 8, 1, kMaxQ);
  const Result<uint64_t> unbiased = spec.Integer("unbiased", 0, 0, 1);
  const Result<uint32_t> selected = ParseFraction(spec);
  if (!q.ok()) return q.status();
  if (!unbiased.ok()) return unbiased.status();
  if (!selected.ok()) return selected.status();
  Config config;
  config.name = "randk";
  config.spec =
      fmt::format("randk:k={},q={},unbiased={},with=qsgd", *selected / 256.0, *q, *unbiased);
  config.levels = (1u << *q) - 1;
  config.selected = *selected;
  config.unbiased = *unbiased != 0;
  return std::shared_ptr<const Codec>(std::make_shared<const QsgdCodec>(std::move(config)));
}

}  // namespace inccl
