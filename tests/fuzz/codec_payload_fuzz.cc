// SPDX-License-Identifier: Apache-2.0
//
// Payloads of all codecs but hbi (encoded_chunk_fuzz has that), of any content and length. They are
// refused or give some numbers; nothing is read or written beyond the memory.
#include <cstring>

#include "compress/codec.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr uint32_t kCount = 300;  // with a tail
constexpr int kRanks = 3;
constexpr const char* kSpecs[] = {"none",
                                  "bf16",
                                  "fp16",
                                  "fp8",
                                  "mxfp8",
                                  "lossless",
                                  "qsgd",
                                  "qsgd:q=16",
                                  "qsgd:q=1",
                                  "qsgd_ms:q=2+5+7",
                                  "onebit",
                                  "onebit:block=32",
                                  "dither",
                                  "dither:bits=3,norm=l2,sparse=1",
                                  "dither:levels=pow2,block=32,sparse=1"};
constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16,
                               DataType::kFloat64};

// Side information of the right length and any content.
bool Agree(const Range& range, const Term& mine, const Format& side, CodecState* state,
           Input* input) {
  std::vector<std::byte> room(kWindow / kBlock);
  Term out{side, room.data(), static_cast<uint32_t>(room.size())};
  Require(state->Combine(range, {&mine, 1}, {&out, 1}).ok(), "own side information");
  std::vector<std::byte> theirs = Exact(input->Take(out.bytes));
  theirs.resize(out.bytes);
  const Term in{side, theirs.data(), out.bytes};
  Term kept{side, nullptr, 0};
  return state->Combine(range, {&in, 1}, {&kept, 1}).ok();
}

}  // namespace

void Run(Data data) {
  Input input(data);
  const auto codec = *MakeCodec(kSpecs[input.Byte() % std::size(kSpecs)]);
  const DataType type = kTypes[input.Byte() % std::size(kTypes)];
  const auto bytes = static_cast<uint32_t>(kCount * SizeOf(type));
  std::unique_ptr<CodecState> state = codec->NewState();
  Require(state->Begin({.type = type, .nranks = kRanks, .rank = 0, .count = kCount}).ok(),
          "a call begins");
  const Range range{0, 0, kCount};
  std::vector<std::byte> own(bytes);
  const Term mine{{Form::kInput}, own.data(), bytes};
  for (uint16_t phase = 0; phase < codec->side_phases().size(); ++phase) {
    if (!Agree(range, mine, {Form::kSide, phase}, state.get(), &input)) return;
  }
  const bool sum = (input.Byte() & 1) != 0;
  const uint32_t room_bytes = codec->MaxBytes(type, kRanks, kCount);
  std::vector<std::byte> room(room_bytes), result(bytes);
  uint32_t length = static_cast<uint32_t>(input.Below(room_bytes + 2));
  if ((input.Byte() & 3) != 0) {  // as long as a payload is
    const Term two[2] = {mine, mine};
    Term out{{Form::kSum, 2}, room.data(), room_bytes};
    if (state->Combine(range, two, {&out, 1}).ok() && out.bytes > 8) length = out.bytes;
  }
  std::vector<std::byte> payload = Exact(input.Take(length));
  const Term in[2] = {{sum ? Format{Form::kSum, 2} : Format{Form::kResult}, payload.data(),
                       static_cast<uint32_t>(payload.size())},
                      {{Form::kInput}, own.data(), bytes}};
  Term out[2] = {{{Form::kResult}, room.data(), room_bytes},
                 {{Form::kOutput}, result.data(), bytes}};
  const Status combined =
      sum ? state->Combine(range, in, out) : state->Combine(range, {in, 1}, {out + 1, 1});
  Require(combined.ok() || !combined.message().empty(), "a refusal says why");
  state->Finish(nullptr);
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (uint8_t codec = 0; codec < std::size(kSpecs); ++codec) {
    for (const uint8_t sum : {0, 1}) {
      for (const uint8_t type : {0, 1}) {
        std::vector<std::byte> example{std::byte{codec}, std::byte{type}};
        if (codec >= 6 && codec < 10)
          example.insert(example.end(),
                         {std::byte{0}, std::byte{0}, std::byte{0x80}, std::byte{0x3F}});
        example.insert(example.end(), {std::byte{sum}, std::byte{0}, std::byte{0}, std::byte{1}});
        for (int i = 0; i < 1300; ++i) example.push_back(static_cast<std::byte>(i * 37));
        examples.push_back(std::move(example));
      }
    }
  }
  return examples;
}

}  // namespace inccl::fuzz
