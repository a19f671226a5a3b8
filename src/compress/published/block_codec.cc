// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/checked_state.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/reduce.h"
#include "compress/published/block_code.h"

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

// One call of a block code on one rank.

namespace {

// A code that is read superblock by superblock.
struct Piece {
  uint32_t rank = 0;
  const std::byte* at = nullptr;
  uint64_t left = 0;
  const Term* from = nullptr;  // nullptr: this rank's own
};

class BlockState final : public CheckedState {
 public:
  explicit BlockState(std::shared_ptr<const BlockCode> code)
      : CheckedState(code->name()),
        code_(std::move(code)),
        add_(FindReduce(DataType::kFloat32, ReduceOp::kSum)) {}

  Result<bool> Own(const Range& range, const std::byte* x, float* y) override;
  // No rank sees all contributions, so no rank knows a bound.
  void Finish(CodecStats* stats) override {
    if (stats == nullptr) return;
    *stats = {};
    stats->error_bound = std::numeric_limits<double>::infinity();
  }

 protected:
  Status OnBegin() override;
  uint64_t PayloadBytes(const Range& range, const Format& format) const override;
  Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
              std::span<Term> outputs) override;
  Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) override;

 private:
  // Calls body(first element of the superblock in the range, number) for each superblock until one
  // fails.
  template <typename Body>
  static Status ForEachSuperblock(const Range& range, const Body& body);
  uint64_t Most(const Range& range) const {
    return RangeBytes(*code_, range.count) + BlockCode::kSlack;
  }
  // The key of the random rounding of what `rank` encodes; nranks stands for the owner of a total.
  uint64_t KeyOf(const Range& range, int rank) const;
  static uint32_t Random(uint64_t key, const Range& range, uint32_t at) {
    return static_cast<uint32_t>(Mix64(key + (range.first + at) / kSuperblock));
  }
  // Elements of a superblock as floats, times the factor of an average: in place or in x.
  const float* Load(const std::byte* elements, uint32_t at, uint32_t count, float* x) const;
  // Writes a superblock of the result; `x` may change, and may be where it goes.
  void Store(float* x, uint32_t count, std::byte* to) const;
  uint64_t EncodeElements(const Range& range, const std::byte* elements, std::byte* out) const;
  // Collects the inputs' codes in the order of ranks, and the inputs of fp32 elements.
  Status Gather(const Range& range, std::span<const Term> inputs);
  Status OpenList(const Range& range, const Term& input);
  void AddPiece(const Piece& piece);
  Status Read(const Range& range, uint32_t count, bool first, Piece* piece, float* sum) const;
  Status CheckEnd(const Range& range, const Piece& piece) const;
  Status WriteList(const Range& range, std::span<Term> outputs);
  // Adds up all inputs; encodes the total into result_ if `encoded`, and decodes it again.
  Status AddUp(const Range& range, bool encoded, std::byte* elements, std::span<Term> outputs);
  Status SumOf(const Range& range, uint32_t at, uint32_t count, float* sum);
  Status WritePayloads(const Range& range, Form form, const std::byte* payload, uint64_t bytes,
                       std::span<Term> outputs) const;

  std::shared_ptr<const BlockCode> code_;
  ReduceFn add_;
  float scale_ = 1;
  float reach_ = 0;  // what may become the largest number of the type
  // Of the current Fold.
  std::vector<Piece> pieces_;
  std::vector<const Term*> floats_;
  std::vector<std::byte> codes_, list_, sums_, result_;
};

void Grow(std::vector<std::byte>* bytes, uint64_t size) {
  if (bytes->size() < size) bytes->resize(size);
}

Status BlockState::OnBegin() {
  const CollectiveArgs& c = call();
  const bool averages = Reduces(c.collective) && c.op == ReduceOp::kAvg;
  scale_ = averages ? 1.0f / static_cast<float>(c.nranks) : 1.0f;
  const double reach =
      (1 + RelativeError(*code_, c.collective, c.nranks)) * static_cast<double>(LargestOf(c.type));
  reach_ = static_cast<float>(std::min<double>(reach, kLargestFloat));
  return CheckFloatCall(code_->name(), c.collective, c.type, c.op, c.nranks);
}

uint64_t BlockState::PayloadBytes(const Range& range, const Format& format) const {
  uint64_t codes = 1, entries = 0;
  if (format.form == Form::kSum) {
    codes = format.contributions;
    if (!IsList(*code_, codes)) return uint64_t{range.count} * sizeof(float);
    entries = codes * sizeof(ListEntry);
  }
  return code_->fixed() ? entries + codes * RangeBytes(*code_, range.count) : kSelfDescribing;
}

template <typename Body>
Status BlockState::ForEachSuperblock(const Range& range, const Body& body) {
  for (uint32_t at = 0; at < range.count; at += kSuperblock) {
    Status status = body(at, std::min(kSuperblock, range.count - at));
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

uint64_t BlockState::KeyOf(const Range& range, int rank) const {
  const uint64_t place = Mix64(range.segment ^ Mix64(static_cast<uint64_t>(rank)));
  return Mix64(call().seed ^ Mix64(call().step ^ place));
}

const float* BlockState::Load(const std::byte* elements, uint32_t at, uint32_t count,
                              float* x) const {
  const DataType type = call().type;
  const std::byte* from = elements + at * SizeOf(type);
  if (type == DataType::kFloat32 && scale_ == 1.0f && count == kSuperblock) {
    return reinterpret_cast<const float*>(from);
  }
  ToFloat(type, from, x, count);
  if (scale_ != 1.0f) {
    for (uint32_t i = 0; i < count; ++i) x[i] *= scale_;
  }
  std::fill(x + count, x + kSuperblock, 0.0f);
  return x;
}

void BlockState::Store(float* x, uint32_t count, std::byte* to) const {
  SaturateTo(LargestOf(call().type), reach_, x, count);
  FromFloat(call().type, x, to, count);
}

uint64_t BlockState::EncodeElements(const Range& range, const std::byte* elements,
                                    std::byte* out) const {
  const uint64_t key = KeyOf(range, call().rank);
  uint64_t bytes = 0;
  float x[kSuperblock];
  // Cannot fail, because the body does not.
  (void)ForEachSuperblock(range, [&](uint32_t at, uint32_t count) {
    bytes +=
        code_->Encode(Load(elements, at, count, x), count, Random(key, range, at), out + bytes);
    return Status::Ok();
  });
  return bytes;
}

void BlockState::AddPiece(const Piece& piece) {
  const auto later =
      std::upper_bound(pieces_.begin(), pieces_.end(), piece,
                       [](const Piece& a, const Piece& b) { return a.rank < b.rank; });
  pieces_.insert(later, piece);
}

Status BlockState::OpenList(const Range& range, const Term& input) {
  const uint64_t codes = input.format.contributions, entries = codes * sizeof(ListEntry);
  if (input.bytes < entries) return WrongLength(range, input, entries);
  uint64_t bytes = entries;
  for (uint64_t i = 0; i < codes; ++i) {
    ListEntry entry;
    std::memcpy(&entry, input.data + i * sizeof entry, sizeof entry);
    if (entry.rank >= static_cast<uint32_t>(call().nranks)) {
      return Error(range, fmt::format("a code of rank {} of {}", entry.rank, call().nranks));
    }
    if (entry.bytes > input.bytes - bytes) return WrongLength(range, input, bytes + entry.bytes);
    AddPiece({entry.rank, input.data + bytes, entry.bytes, &input});
    bytes += entry.bytes;
  }
  return bytes == input.bytes ? Status::Ok() : WrongLength(range, input, bytes);
}

Status BlockState::Gather(const Range& range, std::span<const Term> inputs) {
  pieces_.clear();
  floats_.clear();
  const uint64_t most = Most(range);
  Grow(&codes_, inputs.size() * most);
  std::byte* own = codes_.data();
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      AddPiece({static_cast<uint32_t>(call().rank), own, EncodeElements(range, input.data, own),
                nullptr});
      own += most;
    } else if (IsList(*code_, input.format.contributions)) {
      if (Status status = OpenList(range, input); !status.ok()) return status;
    } else {
      floats_.push_back(&input);
    }
  }
  return Status::Ok();
}

Status BlockState::Read(const Range& range, uint32_t count, bool first, Piece* piece,
                        float* sum) const {
  const uint32_t read = code_->Add(piece->at, piece->left, count, first, sum);
  if (read == 0) {
    const uint64_t bytes = piece->from == nullptr ? 0 : piece->from->bytes;
    return Error(range, fmt::format("a payload of {} bytes has a part that is not a code of {}, "
                                    "{} bytes before the end of the rank's code",
                                    bytes, code_->name(), piece->left));
  }
  piece->at += read;
  piece->left -= read;
  return Status::Ok();
}

Status BlockState::CheckEnd(const Range& range, const Piece& piece) const {
  if (piece.left == 0 || piece.from == nullptr) return Status::Ok();
  return WrongLength(range, *piece.from, piece.from->bytes - piece.left);
}

Status BlockState::WritePayloads(const Range& range, Form form, const std::byte* payload,
                                 uint64_t bytes, std::span<Term> outputs) const {
  for (Term& output : outputs) {
    if (output.format.form != form) continue;
    if (Status status = CheckCapacity(range, output, bytes); !status.ok()) return status;
    std::memcpy(output.data, payload, bytes);
    output.bytes = static_cast<uint32_t>(bytes);
  }
  return Status::Ok();
}

// Codes are copied, not read; a consumer that adds them up finds out if they are none.
Status BlockState::WriteList(const Range& range, std::span<Term> outputs) {
  uint64_t bytes = pieces_.size() * sizeof(ListEntry), entries = 0;
  for (const Piece& piece : pieces_) bytes += piece.left;
  Grow(&list_, bytes);
  uint64_t at = pieces_.size() * sizeof(ListEntry);
  for (const Piece& piece : pieces_) {
    const ListEntry entry{piece.rank, static_cast<uint32_t>(piece.left)};
    std::memcpy(list_.data() + entries, &entry, sizeof entry);
    std::memcpy(list_.data() + at, piece.at, piece.left);
    entries += sizeof entry;
    at += piece.left;
  }
  return WritePayloads(range, Form::kSum, list_.data(), bytes, outputs);
}

Status BlockState::SumOf(const Range& range, uint32_t at, uint32_t count, float* sum) {
  if (!floats_.empty()) std::fill_n(sum, kSuperblock, 0.0f);
  for (const Term* term : floats_) {
    float next[kSuperblock];
    std::memcpy(next, term->data + at * sizeof(float), count * sizeof(float));
    const void* in[2] = {sum, next};
    void* out[1] = {sum};
    add_({.in = in, .inputs = 2, .out = out, .outputs = 1, .count = count});
  }
  bool first = floats_.empty();
  for (Piece& piece : pieces_) {
    if (Status status = Read(range, count, first, &piece, sum); !status.ok()) return status;
    first = false;
  }
  // Codes have no infinity, and what is not finite makes NaN. An average of numbers is a number.
  if (scale_ != 1.0f) {
    for (uint32_t i = 0; i < count; ++i) sum[i] = std::clamp(sum[i], -kLargestFloat, kLargestFloat);
  }
  std::fill(sum + count, sum + kSuperblock, 0.0f);
  return Status::Ok();
}

Status BlockState::AddUp(const Range& range, bool encoded, std::byte* elements,
                         std::span<Term> outputs) {
  const bool sums = FindOutput(Form::kSum, outputs) != nullptr;
  const uint64_t key = KeyOf(range, call().nranks),
                 sum_bytes = uint64_t{range.count} * sizeof(float);
  if (sums) Grow(&sums_, sum_bytes);
  if (encoded) Grow(&result_, Most(range));
  const bool sends = FindOutput(Form::kResult, outputs) != nullptr;
  TotalFeedback* const feedback = encoded && sends ? total_feedback() : nullptr;
  uint64_t bytes = 0;
  Status status = ForEachSuperblock(range, [&](uint32_t at, uint32_t count) {
    float sum[kSuperblock];
    if (Status s = SumOf(range, at, count, sum); !s.ok()) return s;
    if (sums) std::memcpy(sums_.data() + at * sizeof(float), sum, count * sizeof(float));
    if (encoded) {
      const Range part{range.segment, range.first + at, count};
      if (feedback != nullptr) feedback->Correct(part, scale_, sum);
      std::byte* code = result_.data() + bytes;
      const uint32_t length = code_->Encode(sum, count, Random(key, range, at), code);
      bytes += length;
      if (elements != nullptr || feedback != nullptr) {
        float sent[kSuperblock];
        code_->Add(code, length, count, true, sent);
        if (feedback != nullptr) feedback->Account(part, scale_, sum, sent);
        std::copy_n(sent, count, sum);
      }
    }
    if (elements != nullptr) Store(sum, count, elements + at * SizeOf(call().type));
    return Status::Ok();
  });
  for (const Piece& piece : pieces_) {
    if (status.ok()) status = CheckEnd(range, piece);
  }
  if (status.ok()) status = WritePayloads(range, Form::kSum, sums_.data(), sum_bytes, outputs);
  if (status.ok()) status = WritePayloads(range, Form::kResult, result_.data(), bytes, outputs);
  return status;
}

Status BlockState::Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
                        std::span<Term> outputs) {
  if (Status status = Gather(range, inputs); !status.ok()) return status;
  const Term* output = FindOutput(Form::kOutput, outputs);
  std::byte* elements = output == nullptr ? nullptr : output->data;
  const bool finished = elements != nullptr || FindOutput(Form::kResult, outputs) != nullptr;
  Status status = Status::Ok();
  if (!Reduces(call().collective)) {
    // The result is the contribution, which is encoded already.
    const Piece own = pieces_[0];
    const Term payload{{Form::kResult}, codes_.data(), static_cast<uint32_t>(own.left)};
    if (elements != nullptr) status = DecodeResult(range, payload, elements);
    if (status.ok()) status = WritePayloads(range, Form::kResult, own.at, own.left, outputs);
  } else if (!finished && IsList(*code_, contributions)) {
    return WriteList(range, outputs);
  } else {
    const bool encoded = finished && call().collective != Collective::kReduceScatter;
    status = AddUp(range, encoded, elements, outputs);
  }
  if (status.ok() && elements != nullptr) CopyToOthers(Form::kOutput, outputs);
  return status;
}

Status BlockState::DecodeResult(const Range& range, const Term& payload, std::byte* elements) {
  Piece piece{0, payload.data, payload.bytes, &payload};
  const DataType type = call().type;
  Status status = ForEachSuperblock(range, [&](uint32_t at, uint32_t count) {
    std::byte* to = elements + at * SizeOf(type);
    float y[kSuperblock];
    const bool in_place = type == DataType::kFloat32 && count == kSuperblock;
    float* const values = in_place ? reinterpret_cast<float*>(to) : y;
    Status s = Read(range, count, true, &piece, values);
    if (s.ok()) Store(values, count, to);
    return s;
  });
  return status.ok() ? CheckEnd(range, piece) : status;
}

// On its way a contribution is divided first and then encoded.
Result<bool> BlockState::Own(const Range& range, const std::byte* x, float* y) {
  Grow(&codes_, Most(range));
  Piece piece{0, codes_.data(), EncodeElements(range, x, codes_.data()), nullptr};
  Status status = ForEachSuperblock(range, [&](uint32_t at, uint32_t count) {
    float own[kSuperblock];
    if (Status s = Read(range, count, true, &piece, own); !s.ok()) return s;
    for (uint32_t i = 0; i < count; ++i) y[at + i] = own[i] / scale_;
    return Status::Ok();
  });
  if (!status.ok()) return status;
  return true;
}

}  // namespace

std::unique_ptr<CodecState> NewBlockState(std::shared_ptr<const BlockCode> code) {
  return std::make_unique<BlockState>(std::move(code));
}

}  // namespace inccl
