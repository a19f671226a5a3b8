// SPDX-License-Identifier: Apache-2.0
//
// Payloads of the codec hbi: codes and packed sums of any content and any length. They are refused
// by their length, or give some numbers; nothing is read or written beyond the memory.
#include <cstring>

#include "compress/codec.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr uint32_t kCount = 700;  // with a tail
constexpr int kRanks = 3;

// Policy D: the first part, from a payload that brings its own codes.
void RunPart(const Codec& codec, CodecState* state, Input* input) {
  const Range part{0, 0, kSuperblock};
  const uint8_t odd = input->Byte();
  const Form form = (odd & 1) != 0 ? Form::kResult : Form::kSum;
  std::vector<float> own(part.count, 0.25f), result(part.count);
  const Term mine{{Form::kInput, 0}, reinterpret_cast<std::byte*>(own.data()), part.count * 4};
  const uint32_t due = codec.MaxBytes(DataType::kFloat32, kRanks, part.count);
  const uint32_t length = (odd & 2) != 0 ? static_cast<uint32_t>(input->Below(1024)) : due;
  std::vector<std::byte> payload = Exact(input->Take(length)), room(due);
  if (length == due) payload.resize(due);
  const Term sent{{form, static_cast<uint16_t>(form == Form::kSum ? 1 : 0)},
                  payload.data(),
                  static_cast<uint32_t>(payload.size())};
  const Term in[kRanks] = {mine, sent, sent};
  Term out[2] = {{{Form::kResult, 0}, room.data(), due},
                 {{Form::kOutput, 0}, reinterpret_cast<std::byte*>(result.data()), part.count * 4}};
  const Status combined =
      form == Form::kSum ? state->Combine(part, in, out) : state->Combine(part, {in + 1, 1}, out);
  Require(combined.ok() || !combined.message().empty(), "a refusal says why");
  CodecStats stats;
  state->Finish(&stats);
}

}  // namespace

void Run(Data data) {
  static const std::shared_ptr<const Codec> codecs[] = {
      *MakeCodec("hbi:bits=6"), *MakeCodec("hbi:bits=3"), *MakeCodec("hbi:k=7,k2=15"),
      *MakeCodec("hbi:policy=d,rht=1")};
  Input input(data);
  const Codec& codec = *codecs[input.Byte() % std::size(codecs)];
  std::unique_ptr<CodecState> state = codec.NewState();
  Require(state->Begin({.nranks = kRanks, .rank = 0, .count = kCount}).ok(), "a call begins");
  if (codec.whole_chunks()) return RunPart(codec, state.get(), &input);
  const Range range{0, 0, kCount};
  std::vector<float> own(kCount, 0.25f), result(kCount);

  // The agreed codes: right in number, and any in value; then others.
  const uint32_t codes = (kCount + kBlock - 1) / kBlock;
  const uint8_t odd = input.Byte();
  std::vector<std::byte> side = Exact(input.Take(odd % 8 == 7 ? odd : codes));
  if (odd % 8 != 7) side.resize(codes);
  std::vector<Term> agreed{{{Form::kSide, 0}, nullptr, 0}};
  const Term side_in{{Form::kSide, 0}, side.data(), static_cast<uint32_t>(side.size())};
  const Status agreement = state->Combine(range, {&side_in, 1}, agreed);
  if (!agreement.ok()) return;

  const bool exact = (input.Byte() & 1) != 0;
  std::vector<std::byte> room(codec.MaxBytes(DataType::kFloat32, kRanks, kCount));
  uint32_t length = static_cast<uint32_t>(input.Below(4096));
  if (exact) {  // as long as a payload of this plan is
    const Term mine{{Form::kInput, 0}, reinterpret_cast<std::byte*>(own.data()), kCount * 4};
    Term out{{Form::kSum, 2}, room.data(), static_cast<uint32_t>(room.size())};
    const Term two[2] = {mine, mine};
    if (state->Combine(range, two, {&out, 1}).ok()) length = out.bytes;
  }
  std::vector<std::byte> payload = Exact(input.Take(length));
  if (exact) payload.resize(length);
  const Form form = (odd & 16) != 0 ? Form::kResult : Form::kSum;
  Term in[2] = {{{form, static_cast<uint16_t>(form == Form::kSum ? 2 : 0)},
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

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (int codec = 0; codec < 3; ++codec) {
    for (const int form : {0, 16}) {
      std::vector<std::byte> example{std::byte(static_cast<uint8_t>(codec)),
                                     std::byte(static_cast<uint8_t>(form))};
      example.insert(example.end(), (kCount + kBlock - 1) / kBlock, std::byte{120});
      example.push_back(std::byte{1});
      example.insert(example.end(), 800, std::byte{0x5a});
      examples.push_back(std::move(example));
    }
  }
  for (const int form : {0, 1}) {
    std::vector<std::byte> example{std::byte{3}, std::byte(static_cast<uint8_t>(form))};
    example.insert(example.end(), kSuperblock / kBlock, std::byte{120});
    example.insert(example.end(), 200, std::byte{0x5a});
    examples.push_back(std::move(example));
  }
  return examples;
}

}  // namespace inccl::fuzz
