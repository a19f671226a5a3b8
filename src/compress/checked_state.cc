// SPDX-License-Identifier: Apache-2.0
#include "compress/checked_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace inccl {

const char* Name(Form form) {
  switch (form) {
    case Form::kInput: return "input";
    case Form::kOutput: return "output";
    case Form::kSum: return "sum";
    case Form::kResult: return "result";
    case Form::kSide: return "side";
  }
  return "unknown form";
}

bool Travels(Collective collective, Form form) {
  switch (form) {
    case Form::kSum: return Reduces(collective);
    case Form::kResult: return collective != Collective::kReduceScatter;
    case Form::kOutput: return true;
    case Form::kInput:
    case Form::kSide: break;
  }
  return false;
}

Status CheckFloatCall(const char* name, Collective collective, DataType type, ReduceOp op,
                      int nranks) {
  if (collective != Collective::kAllReduce && collective != Collective::kReduceScatter &&
      collective != Collective::kAllGather) {
    return InvalidArgument(
        fmt::format("codec {}: {} is not available in this version", name, Name(collective)));
  }
  if (type != DataType::kFloat32 && type != DataType::kFloat16 && type != DataType::kBfloat16 &&
      type != DataType::kFloat64) {
    return InvalidArgument(fmt::format(
        "codec {}: type {} is none of float32, float16, bfloat16, float64", name, Name(type)));
  }
  if (Reduces(collective) && op != ReduceOp::kSum && op != ReduceOp::kAvg) {
    return InvalidArgument(
        fmt::format("codec {}: reduction {} is neither sum nor avg", name, Name(op)));
  }
  if (nranks < 2) {
    return InvalidArgument(fmt::format("codec {}: {} ranks, at least 2", name, nranks));
  }
  return Status::Ok();
}

void CopyPayload(const std::byte* payload, std::span<Term> outputs) {
  for (const Term& output : outputs) {
    if (output.format.form == Form::kOutput || output.data == payload || output.bytes == 0)
      continue;
    std::memcpy(output.data, payload, output.bytes);
  }
}

Term* FindOutput(Form form, std::span<Term> outputs) {
  for (Term& output : outputs) {
    if (output.format.form == form) return &output;
  }
  return nullptr;
}

void CopyToOthers(Form form, std::span<Term> outputs) {
  const Term* first = FindOutput(form, outputs);
  for (Term& output : outputs) {
    if (output.format.form != form || &output == first) continue;
    output.bytes = first->bytes;
    if (output.data != first->data && first->bytes != 0) {
      std::memcpy(output.data, first->data, first->bytes);
    }
  }
}

Status CheckedState::Error(const Range& range, const std::string& what) const {
  return InternalError(fmt::format("codec {}: rank {}: {} of {} {} at segment {} element {}: {}",
                                   name_, call_.rank, Name(call_.collective), range.count,
                                   Name(call_.type), range.segment, range.first, what));
}

Status CheckedState::WrongLength(const Range& range, const Term& term, uint64_t expected) const {
  return Error(range, fmt::format("{} payload: expected {} bytes, got {}", Name(term.format.form),
                                  expected, term.bytes));
}

Status CheckedState::CheckCapacity(const Range& range, const Term& term, uint64_t needed) const {
  if (term.bytes >= needed && (term.data != nullptr || needed == 0)) return Status::Ok();
  return Error(range, fmt::format("room for {} bytes of {} where {} are needed", term.bytes,
                                  Name(term.format.form), needed));
}

Status CheckedState::CheckElements(const Range& range, const Term& input) const {
  if (input.bytes >= ElementBytes(range) && input.data != nullptr) return Status::Ok();
  return Error(range,
               fmt::format("input: expected {} bytes, got {}", ElementBytes(range), input.bytes));
}

Status CheckedState::Begin(const CollectiveArgs& call) {
  if (call.rank < 0 || call.rank >= call.nranks) {
    return InvalidArgument(
        fmt::format("codec {}: rank {} of {} ranks", name_, call.rank, call.nranks));
  }
  call_ = call;
  set_total_feedback(nullptr);  // the former call's
  segments_ = SegmentsOf(call.collective, static_cast<uint64_t>(call.nranks));
  return OnBegin();
}

Status CheckedState::CheckRange(const Range& range) const {
  const bool inside = range.first <= call_.count && range.count <= call_.count - range.first;
  if (range.segment >= segments_ || range.count == 0 || !inside) {
    return Error(range,
                 fmt::format("outside of {} segments of {} elements", segments_, call_.count));
  }
  const bool at_end = range.first + range.count == call_.count;
  if (range.first % kSuperblock != 0 || (range.count % kSuperblock != 0 && !at_end)) {
    return Error(range, fmt::format("not whole superblocks of {}", kSuperblock));
  }
  return Status::Ok();
}

Status CheckedState::CheckOperation(const Range& range, std::span<const Term> inputs,
                                    std::span<const Term> outputs) const {
  if (Status status = CheckRange(range); !status.ok()) return status;
  if (!inputs.empty() && !outputs.empty()) return Status::Ok();
  return Error(range, fmt::format("{} inputs and {} outputs", inputs.size(), outputs.size()));
}

Status CheckedState::CheckFold(const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs, uint32_t* contributions) const {
  if (Status status = CheckInputs(range, inputs, contributions); !status.ok()) return status;
  return CheckOutputs(range, *contributions, outputs);
}

Status CheckedState::Combine(const Range& range, std::span<const Term> inputs,
                             std::span<Term> outputs) {
  if (Status status = CheckOperation(range, inputs, outputs); !status.ok()) return status;
  if (outputs[0].format.form == Form::kSide) return Side(range, inputs, outputs);
  if (IsForward(inputs)) return Forward(range, inputs[0], outputs);
  uint32_t contributions = 0;
  Status status = CheckFold(range, inputs, outputs, &contributions);
  return status.ok() ? Fold(range, contributions, inputs, outputs) : status;
}

Status CheckedState::CheckInputs(const Range& range, std::span<const Term> inputs,
                                 uint32_t* contributions) const {
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(range, input); !status.ok()) return status;
      ++*contributions;
      continue;
    }
    if (input.format.form != Form::kSum || !Reduces(call_.collective)) {
      return Error(range, fmt::format("{} cannot be an input here", Name(input.format.form)));
    }
    const uint32_t h = input.format.contributions;
    if (h == 0 || h > complete()) {
      return Error(range, fmt::format("a sum of {} contributions among {} ranks", h, complete()));
    }
    *contributions += h;
    const uint64_t bytes = PayloadBytes(range, input.format);
    if (bytes != kSelfDescribing && input.bytes != bytes) return WrongLength(range, input, bytes);
  }
  if (*contributions > complete()) {
    return Error(range, fmt::format("{} contributions of {} ranks", *contributions, complete()));
  }
  return Status::Ok();
}

Status CheckedState::CheckOutput(const Range& range, Term* output) const {
  if (!Travels(call_.collective, output->format.form)) {
    return Error(range, fmt::format("{} cannot be an output here", Name(output->format.form)));
  }
  uint64_t bytes = ElementBytes(range);
  if (output->format.form != Form::kOutput) bytes = PayloadBytes(range, output->format);
  if (bytes == kSelfDescribing) return Status::Ok();
  if (Status status = CheckCapacity(range, *output, bytes); !status.ok()) return status;
  output->bytes = static_cast<uint32_t>(bytes);
  return Status::Ok();
}

Status CheckedState::CheckOutputs(const Range& range, uint32_t contributions,
                                  std::span<Term> outputs) const {
  for (Term& output : outputs) {
    const Form form = output.format.form;
    if ((form == Form::kResult || form == Form::kOutput) && contributions != complete()) {
      return Error(range, fmt::format("{} from {} of {} contributions", Name(form), contributions,
                                      complete()));
    }
    if (form == Form::kSum && output.format.contributions != contributions) {
      return Error(range, fmt::format("a sum of {} contributions from {}",
                                      output.format.contributions, contributions));
    }
    if (Status status = CheckOutput(range, &output); !status.ok()) return status;
  }
  return Status::Ok();
}

Status CheckedState::CheckForward(const Range& range, const Term& input,
                                  std::span<Term> outputs) const {
  if (!Travels(call_.collective, Form::kResult))
    return Error(range, "result cannot be an input here");
  const uint64_t bytes = PayloadBytes(range, input.format);
  if (bytes != kSelfDescribing && input.bytes != bytes) return WrongLength(range, input, bytes);
  for (Term& output : outputs) {
    if (output.format.form == Form::kSum) return Error(range, "sum cannot be an output here");
    if (Status status = CheckOutput(range, &output); !status.ok()) return status;
    if (output.format.form != Form::kResult) continue;
    if (Status status = CheckCapacity(range, output, input.bytes); !status.ok()) return status;
    output.bytes = input.bytes;
  }
  return Status::Ok();
}

Status CheckedState::Forward(const Range& range, const Term& input, std::span<Term> outputs) {
  if (Status status = CheckForward(range, input, outputs); !status.ok()) return status;
  if (Term* output = FindOutput(Form::kOutput, outputs); output != nullptr) {
    if (Status status = DecodeResult(range, input, output->data); !status.ok()) return status;
    CopyToOthers(Form::kOutput, outputs);
  }
  CopyPayload(input.data, outputs);
  return Status::Ok();
}

Status CheckedState::Side(const Range& range, std::span<const Term> /*inputs*/,
                          std::span<Term> /*outputs*/) {
  return Error(range, "side cannot be an output here");
}

namespace {

// All ranks of a call, whose states run the schedule one-shot.
class Ranks {
 public:
  Ranks(const Codec& codec, const CollectiveArgs& call, std::span<const std::byte> inputs)
      : codec_(codec),
        call_(call),
        inputs_(inputs),
        ranks_(static_cast<size_t>(call.nranks)),
        own_(static_cast<size_t>(call.rank)),
        payloads_(ranks_) {}

  Status Begin() {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      CollectiveArgs call = call_;
      call.rank = static_cast<int>(rank);
      states_.push_back(codec_.NewState());
      if (Status status = states_.back()->Begin(call); !status.ok()) return status;
    }
    return Status::Ok();
  }

  // Every rank learns the side information of all.
  Status Agree(const Range& range, uint16_t phase) {
    const Format side{Form::kSide, phase};
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (Status status = Send(rank, range, side, codec_.SideBytes(range.count)); !status.ok()) {
        return status;
      }
    }
    for (size_t rank = 0; rank < ranks_; ++rank) {
      Term agreed{side, nullptr, 0};
      Status status = states_[rank]->Combine(range, Arrived(rank, range, side), {&agreed, 1});
      if (!status.ok()) return status;
    }
    return Status::Ok();
  }

  Status Sum(const Range& range, std::byte* output) {
    const Format sum{Form::kSum, 1};
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (rank == own_) continue;
      const uint32_t most = codec_.MaxBytes(call_.type, call_.nranks, range.count);
      if (Status status = Send(rank, range, sum, most); !status.ok()) return status;
    }
    const auto bytes = static_cast<uint32_t>(range.count * SizeOf(call_.type));
    Term result{{Form::kOutput, 0}, output + range.first * SizeOf(call_.type), bytes};
    return states_[own_]->Combine(range, Arrived(own_, range, sum), {&result, 1});
  }

  void Finish(CodecStats* stats) {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      states_[rank]->Finish(rank == own_ ? stats : nullptr);
    }
  }

 private:
  // Terms of inputs are not written to.
  Term Input(size_t rank, const Range& range) const {
    const size_t element = SizeOf(call_.type);
    const std::byte* const at = inputs_.data() + (rank * call_.count + range.first) * element;
    return {{Form::kInput, 0},
            const_cast<std::byte*>(at),
            static_cast<uint32_t>(range.count * element)};
  }

  // What a rank sends of its input.
  Status Send(size_t rank, const Range& range, const Format& format, uint32_t most) {
    std::vector<std::byte>& payload = payloads_[rank];
    payload.resize(most);
    const Term input = Input(rank, range);
    Term made{format, payload.data(), most};
    Status status = states_[rank]->Combine(range, {&input, 1}, {&made, 1});
    payload.resize(made.bytes);
    return status;
  }

  // What all ranks have sent, as one of them sees it, in rank order.
  std::span<const Term> Arrived(size_t at, const Range& range, const Format& format) {
    terms_.clear();
    for (size_t rank = 0; rank < ranks_; ++rank) {
      std::vector<std::byte>& payload = payloads_[rank];
      terms_.push_back(rank == at
                           ? Input(rank, range)
                           : Term{format, payload.data(), static_cast<uint32_t>(payload.size())});
    }
    return terms_;
  }

  const Codec& codec_;
  const CollectiveArgs call_;
  const std::span<const std::byte> inputs_;
  const size_t ranks_, own_;
  std::vector<std::unique_ptr<CodecState>> states_;
  std::vector<std::vector<std::byte>> payloads_;
  std::vector<Term> terms_;
};

}  // namespace

Status SumOfInputs(const Codec& codec, const CollectiveArgs& call,
                   std::span<const std::byte> inputs, std::byte* output, CodecStats* stats) {
  Ranks ranks(codec, call, inputs);
  if (Status status = ranks.Begin(); !status.ok()) return status;
  for (uint64_t first = 0; first < call.count; first += kWindow) {
    const Range range{0, first,
                      static_cast<uint32_t>(std::min<uint64_t>(kWindow, call.count - first))};
    for (size_t phase = 0; phase < codec.side_phases().size(); ++phase) {
      Status status = ranks.Agree(range, static_cast<uint16_t>(phase));
      if (!status.ok()) return status;
    }
    if (Status status = ranks.Sum(range, output); !status.ok()) return status;
  }
  ranks.Finish(stats);
  return Status::Ok();
}

}  // namespace inccl
