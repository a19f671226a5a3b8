// SPDX-License-Identifier: Apache-2.0
#include "compress/warm_up.h"

#include <algorithm>
#include <array>
#include <vector>

namespace inccl {
namespace {

constexpr int kMostRanks = 16;  // calls of more ranks take longer than what is saved
constexpr uint32_t kElements = 4 * kSuperblock;
constexpr Range kRange{.segment = 0, .first = 0, .count = kElements};

// What the owner of a chunk and another rank do with it. The owner takes the other's payload for
// that of every other rank.
class SmallCall {
 public:
  SmallCall(const Codec& codec, int nranks)
      : codec_(codec),
        nranks_(nranks),
        owner_(codec.NewState()),
        other_(codec.NewState()),
        input_(kElements),
        output_(kElements),
        payload_(std::max(codec.MaxBytes(DataType::kFloat32, nranks, kElements),
                          codec.SideBytes(kElements))),
        result_(payload_.size()) {
    for (uint32_t i = 0; i < kElements; ++i) input_[i] = 1.0f / static_cast<float>(1 + i % 8);
  }

  Status Run() {
    CollectiveArgs args;
    args.count = kElements;
    args.nranks = nranks_;
    Status status = owner_->Begin(args);
    args.rank = 1;
    if (status.ok()) status = other_->Begin(args);
    for (uint16_t phase = 0; status.ok() && phase < codec_.side_phases().size(); ++phase) {
      status = Exchange({Form::kSide, phase}, {Form::kSide, phase}, {Form::kSide, phase});
    }
    if (status.ok()) status = Exchange({Form::kSum, 1}, {Form::kResult}, {Form::kOutput});
    return status;  // No Finish: this call needs neither statistics nor warnings.
  }

 private:
  static Term Elements(Form form, std::vector<float>* of) {
    return {{form}, reinterpret_cast<std::byte*>(of->data()), kElements * sizeof(float)};
  }
  static Term Payload(Format format, std::vector<std::byte>* in) {
    return {format, in->data(), static_cast<uint32_t>(in->size())};
  }
  // The final value in this rank's memory: side information belongs to the state.
  Term Final(Format format) {
    return format.form == Form::kSide ? Term{format} : Elements(format.form, &output_);
  }

  // The other ranks send `sent`, and the owner combines it with its elements and returns
  // `returned`. All have `final` in the end.
  Status Exchange(Format sent, Format returned, Format final) {
    const Term input = Elements(Form::kInput, &input_);
    std::array<Term, 1> to_owner{Payload(sent, &payload_)};
    Status status = other_->Combine(kRange, {&input, 1}, to_owner);
    if (!status.ok()) return status;
    std::vector<Term> inputs(static_cast<size_t>(nranks_) - 1, to_owner[0]);
    inputs.push_back(input);
    std::array<Term, 2> made{Payload(returned, &result_), Final(final)};
    status = owner_->Combine(kRange, inputs, made);
    if (!status.ok()) return status;
    std::array<Term, 1> last{Final(final)};
    return other_->Combine(kRange, {made.data(), 1}, last);
  }

  const Codec& codec_;
  const int nranks_;
  const std::unique_ptr<CodecState> owner_, other_;
  std::vector<float> input_, output_;
  std::vector<std::byte> payload_, result_;
};

}  // namespace

void WarmUp(const Codec& codec, int nranks) {
  (void)CatchOutOfMemory([&] { return SmallCall(codec, std::clamp(nranks, 2, kMostRanks)).Run(); });
}

}  // namespace inccl
