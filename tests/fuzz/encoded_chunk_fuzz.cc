// SPDX-License-Identifier: Apache-2.0
//
// Payloads of the codec hbi: codes and packed sums of any content and any length. They are refused
// by their length, or give some numbers; nothing is read or written beyond the memory.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>

#include "compress/codec.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr uint32_t kCount = 700;  // with a tail
constexpr int kRanks = 3;
// Of whole superblocks.
constexpr uint32_t kCodes = (kCount + kSuperblock - 1) / kSuperblock * (kSuperblock / kBlock);

// As long as a sum of all ranks but one is, by making one; 0 where the agreed codes forbid it.
uint32_t LengthOfSum(const Range& range, const Term& mine, int contributions, CodecState* state,
                     std::span<std::byte> room) {
  const std::vector<Term> in(static_cast<size_t>(contributions), mine);
  Term out{{Form::kSum, static_cast<uint16_t>(contributions)},
           room.data(),
           static_cast<uint32_t>(room.size())};
  return state->Combine(range, in, {&out, 1}).ok() ? out.bytes : 0;
}

}  // namespace

void Run(Data data) {
  static const std::shared_ptr<const Codec> codecs[] = {*MakeCodec("hbi:bits=6"),
                                                        *MakeCodec("hbi:bits=3"),
                                                        *MakeCodec("hbi:k=7,k2=15"),
                                                        *MakeCodec("hbi:bits=5,rht=1"),
                                                        *MakeCodec("hbi:bits=3,code=entropy"),
                                                        *MakeCodec("hbi:m=2"),
                                                        *MakeCodec("hbi:bits=8,m=2,unbiased=1")};
  Input input(data);
  const Codec& codec = *codecs[input.Byte() % std::size(codecs)];
  std::unique_ptr<CodecState> state = codec.NewState();
  Require(state->Begin({.nranks = kRanks, .rank = 0, .count = kCount}).ok(), "a call begins");
  const Range range{0, 0, kCount};
  std::vector<float> own(kCount, 0.25f), result(kCount);

  // The agreed codes: right in number, and any in value; then others.
  const uint8_t odd = input.Byte();
  std::vector<std::byte> side = Exact(input.Take(odd % 8 == 7 ? odd : kCodes));
  if (odd % 8 != 7) side.resize(kCodes);
  std::vector<Term> agreed{{{Form::kSide, 0}, nullptr, 0}};
  const Term side_in{{Form::kSide, 0}, side.data(), static_cast<uint32_t>(side.size())};
  const Status agreement = state->Combine(range, {&side_in, 1}, agreed);
  if (!agreement.ok()) return;

  const bool exact = (input.Byte() & 1) != 0;
  std::vector<std::byte> room(codec.MaxBytes(DataType::kFloat32, kRanks, kCount));
  uint32_t length = static_cast<uint32_t>(input.Below(4096));
  if (exact) {  // as long as a payload of this plan is
    const Term mine{{Form::kInput, 0}, reinterpret_cast<std::byte*>(own.data()), kCount * 4};
    const uint32_t due = LengthOfSum(range, mine, kRanks - 1, state.get(), room);
    if (due != 0) length = due;
  }
  std::vector<std::byte> payload = Exact(input.Take(length));
  if (exact) payload.resize(length);
  const Form form = (odd & 16) != 0 ? Form::kResult : Form::kSum;
  Term in[2] = {{{form, static_cast<uint16_t>(form == Form::kSum ? kRanks - 1 : 0)},
                 payload.data(),
                 static_cast<uint32_t>(payload.size())},
                {{Form::kInput, 0}, reinterpret_cast<std::byte*>(own.data()), kCount * 4}};
  Term out[2] = {{{Form::kResult, 0}, room.data(), static_cast<uint32_t>(room.size())},
                 {{Form::kOutput, 0}, reinterpret_cast<std::byte*>(result.data()), kCount * 4}};
  const Status combined = form == Form::kSum ? state->Combine(range, in, out)
                                             : state->Combine(range, {in, 1}, {out + 1, 1});
  Require(combined.ok() || !combined.message().empty(), "a refusal says why");
  state->Finish(nullptr);
}

namespace {

// Bytes, and how often each stands there.
std::vector<std::byte> Runs(std::initializer_list<std::pair<int, uint32_t>> runs) {
  std::vector<std::byte> bytes;
  for (const auto& [value, times] : runs) {
    for (uint32_t i = 0; i < times; ++i) bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

}  // namespace

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (const int form : {0, 16}) {
    for (const int codec : {0, 1, 2, 3}) {
      examples.push_back(Runs({{codec, 1}, {form, 1}, {120, kCodes}, {1, 1}, {0x5a, 800}}));
    }
    for (const int codec : {4, 5}) {  // sums and results that begin with their own codes
      examples.push_back(Runs({{codec, 1},
                               {form, 1},
                               {120, kCodes},
                               {1, 1},
                               {0, 2},  // the length that is not used
                               {126, kCodes},
                               {0x5a, 800}}));
    }
  }
  return examples;
}

}  // namespace inccl::fuzz
