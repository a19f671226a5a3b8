// SPDX-License-Identifier: Apache-2.0
#include "compress/sum_of_inputs.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace inccl {
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
