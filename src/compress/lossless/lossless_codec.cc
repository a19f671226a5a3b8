// SPDX-License-Identifier: Apache-2.0
//
// The codec "lossless": the results of "none", bit for bit, in fewer bytes. It unpacks payloads,
// folds them by the codec "none" in the call's type and operation, and packs them again; it
// forwards results unchanged. A payload consists of the range's packed superblocks
// (exponent_pack.h) or, if these would not be shorter, of the elements themselves: a payload with
// the elements' length is unpacked.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "compress/checked_state.h"
#include "compress/codecs.h"
#include "compress/identity_codec.h"
#include "compress/lossless/exponent_pack.h"

namespace inccl {
namespace {

constexpr uint32_t kTile = 4 * kSuperblock;
constexpr int kFormat = 2;  // of payloads; 1 had no bit planes

Status CheckLossless(Collective collective, DataType type, ReduceOp op, int nranks) {
  // kSum stands for any operation here; "none" checks the call's own one.
  Status status = CheckFloatCall("lossless", collective, type, ReduceOp::kSum, nranks);
  return status.ok() ? IdentityCodec()->Supports(collective, type, op, nranks) : status;
}

// Reads a payload tile by tile.
struct Cursor {
  const std::byte* at = nullptr;
  uint64_t left = 0;
  bool packed = false;
};

class LosslessState final : public CheckedState {
 public:
  LosslessState() : CheckedState("lossless") {}

  void Finish(CodecStats* stats) override {
    if (stats != nullptr) *stats = {};
  }

 protected:
  Status OnBegin() override;
  uint64_t PayloadBytes(const Range& /*range*/, const Format& /*format*/) const override {
    return kSelfDescribing;
  }
  Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
              std::span<Term> outputs) override;
  Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) override;

 private:
  Cursor Open(const Range& range, const Term& payload) const {
    return {payload.data, payload.bytes, payload.bytes != ElementBytes(range)};
  }
  Status Read(const Range& range, const Term& payload, uint32_t count, Cursor* cursor,
              std::byte* elements) const;
  Status CheckEnd(const Range& range, const Term& payload, const Cursor& cursor) const;
  Status FoldTiles(const Range& range, std::span<const Term> inputs, std::byte* elements);
  Status Pack(const Range& range, const std::byte* elements, Term* output);

  IdentityState none_;
  std::optional<ExponentPacker> packer_;
  DataType packs_ = DataType::kInt8;
  size_t size_ = 0;
  std::vector<std::byte> folded_;  // elements of a range that has no kOutput
  std::vector<std::byte> tiles_;   // one per rank
  std::vector<Cursor> cursors_;
  std::vector<Term> terms_;
};

Status LosslessState::OnBegin() {
  const CollectiveArgs& c = call();
  Status status = CheckLossless(c.collective, c.type, c.op, c.nranks);
  if (!status.ok()) return status;
  if (!packer_ || packs_ != c.type) packer_.emplace(c.type);
  packs_ = c.type;
  size_ = SizeOf(c.type);
  const auto n = static_cast<size_t>(c.nranks);
  tiles_.resize(n * kTile * size_);
  cursors_.reserve(n);
  terms_.reserve(n);
  return none_.Begin(c);
}

// Reads `count` elements: whole superblocks, or the rest of the range.
Status LosslessState::Read(const Range& range, const Term& payload, uint32_t count, Cursor* cursor,
                           std::byte* elements) const {
  if (!cursor->packed) {
    std::memcpy(elements, cursor->at, count * size_);
    cursor->at += count * size_;
    cursor->left -= count * size_;
    return Status::Ok();
  }
  uint64_t read = 0;
  const bool valid = packer_->UnpackAll(cursor->at, cursor->left, count, elements, &read);
  cursor->at += read;
  cursor->left -= read;
  if (valid) return Status::Ok();
  return Error(range,
               fmt::format("{} payload of {} bytes is not packed elements at byte {}",
                           Name(payload.format.form), payload.bytes, payload.bytes - cursor->left));
}

Status LosslessState::CheckEnd(const Range& range, const Term& payload,
                               const Cursor& cursor) const {
  if (cursor.left == 0) return Status::Ok();
  return WrongLength(range, payload, payload.bytes - cursor.left);
}

Status LosslessState::DecodeResult(const Range& range, const Term& payload, std::byte* elements) {
  Cursor cursor = Open(range, payload);
  Status status = Read(range, payload, range.count, &cursor, elements);
  return status.ok() ? CheckEnd(range, payload, cursor) : status;
}

Status LosslessState::FoldTiles(const Range& range, std::span<const Term> inputs,
                                std::byte* elements) {
  cursors_.clear();
  for (const Term& input : inputs) cursors_.push_back(Open(range, input));
  for (uint32_t at = 0; at < range.count; at += kTile) {
    const uint32_t count = std::min(kTile, range.count - at);
    const auto bytes = static_cast<uint32_t>(count * size_);
    terms_.clear();
    for (size_t i = 0; i < inputs.size(); ++i) {
      Term term{inputs[i].format, inputs[i].data + at * size_, bytes};
      if (term.format.form == Form::kSum) {
        term.data = tiles_.data() + i * kTile * size_;
        Status status = Read(range, inputs[i], count, &cursors_[i], term.data);
        if (!status.ok()) return status;
      }
      terms_.push_back(term);
    }
    Term output{{Form::kOutput}, elements + at * size_, bytes};
    const Range tile{range.segment, range.first + at, count};
    if (Status s = none_.Combine(tile, terms_, {&output, 1}); !s.ok()) return s;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].format.form != Form::kSum) continue;
    if (Status s = CheckEnd(range, inputs[i], cursors_[i]); !s.ok()) return s;
  }
  return Status::Ok();
}

Status LosslessState::Pack(const Range& range, const std::byte* elements, Term* output) {
  const uint64_t raw = ElementBytes(range);
  const uint64_t length =
      std::min(raw, packer_->PackAll(elements, range.count, output->data, output->bytes));
  if (Status s = CheckCapacity(range, *output, length); !s.ok()) return s;
  if (length == raw) std::memcpy(output->data, elements, raw);
  output->bytes = static_cast<uint32_t>(length);
  return Status::Ok();
}

Status LosslessState::Fold(const Range& range, uint32_t /*contributions*/,
                           std::span<const Term> inputs, std::span<Term> outputs) {
  Term* output = FindOutput(Form::kOutput, outputs);
  const std::byte* elements = inputs[0].data;
  const bool scales = Reduces(call().collective) &&
                      (call().op == ReduceOp::kAvg || call().op == ReduceOp::kPreMulSum);
  if (output != nullptr || inputs.size() > 1 || inputs[0].format.form != Form::kInput || scales) {
    if (output == nullptr) folded_.resize(std::max<size_t>(folded_.size(), ElementBytes(range)));
    std::byte* to = output != nullptr ? output->data : folded_.data();
    if (Status s = FoldTiles(range, inputs, to); !s.ok()) return s;
    elements = to;
  }
  if (output != nullptr) CopyToOthers(Form::kOutput, outputs);
  const Term* packed = nullptr;
  for (Term& one : outputs) {
    if (one.format.form == Form::kOutput) continue;
    if (packed == nullptr) {
      if (Status s = Pack(range, elements, &one); !s.ok()) return s;
      packed = &one;
      continue;
    }
    if (Status s = CheckCapacity(range, one, packed->bytes); !s.ok()) return s;
    one.bytes = packed->bytes;
    std::memcpy(one.data, packed->data, packed->bytes);
  }
  return Status::Ok();
}

class LosslessCodec final : public Codec {
 public:
  const std::string& spec() const override { return spec_; }
  const std::string& identity() const override { return identity_; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return CheckLossless(collective, type, op, nranks);
  }
  uint64_t window_elements() const override { return 0; }
  uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const override {
    return IdentityCodec()->MaxBytes(type, nranks, count);
  }
  // At most the bits of the type, as for "none".
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    IdentityCodec()->Bound(collective, nranks, bits, relative_error);
  }
  std::unique_ptr<CodecState> NewState() const override {
    return std::make_unique<LosslessState>();
  }

 private:
  const std::string spec_ = "lossless";
  const std::string identity_ = fmt::format("{} (format {})", spec_, kFormat);
};

}  // namespace

MadeCodec MakeLosslessCodec(const CodecSpec& spec) {
  if (Status status = spec.AllowOnly({}); !status.ok()) return status;
  return std::shared_ptr<const Codec>(std::make_shared<const LosslessCodec>());
}

}  // namespace inccl
