// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <vector>

#include "compress/codec.h"
#include "support/kernel_slices.h"

namespace inccl::test {
namespace {

constexpr const char* kSpecs[cuda::kCastFormats] = {
    "bf16", "fp16", "fp8:format=e4m3", "fp8:format=e5m2", "mxfp8:format=e4m3", "mxfp8:format=e5m2"};

// Magnitudes of all kinds; in the last third of one exponent per block.
std::vector<float> Values(uint32_t count, Rng* rng) {
  std::vector<float> x(count);
  for (uint32_t i = 0; i < count; ++i) {
    auto bits = static_cast<uint32_t>(rng->Next());
    if (i < count / 3) {  // numbers in the range of the narrow types, some halfway between them
      bits = (bits & 0x8007ffffu) | (90 + bits % 60) << 23 | (rng->Next() % 16) << 19;
      if (rng->Below(2) == 0) bits &= 0xfff80000u;
    } else if (i > count - count / 3) {
      bits = (bits & 0x807fffffu) | ((i / kBlock * 7 % 255) << 23);
    }
    x[i] = std::bit_cast<float>(bits);
  }
  return x;
}

// What the codec of an all-gather makes of the only segment with data.
class CodecCast {
 public:
  CodecCast(const char* spec, uint32_t count) : count_(count) {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
    EXPECT_TRUE(codec.ok());
    codec_ = *codec;
    state_ = codec_->NewState();
    const CollectiveArgs call{.collective = Collective::kAllGather, .nranks = 2, .count = count};
    EXPECT_TRUE(state_->Begin(call).ok());
  }
  std::vector<uint8_t> Encode(std::vector<float> x) {
    std::vector<uint8_t> payload(codec_->MaxBytes(DataType::kFloat32, 2, count_));
    payload.resize(Combine(Form::kInput, x.data(), count_ * 4, Form::kResult, payload.data(),
                           static_cast<uint32_t>(payload.size())));
    return payload;
  }
  std::vector<uint8_t> Decode(std::vector<uint8_t> payload) {
    std::vector<uint8_t> y(count_ * 4);
    Combine(Form::kResult, payload.data(), static_cast<uint32_t>(payload.size()), Form::kOutput,
            y.data(), static_cast<uint32_t>(y.size()));
    return y;
  }

 private:
  uint32_t Combine(Form from, void* in, uint32_t in_bytes, Form to, void* out, uint32_t out_bytes) {
    const std::vector<Term> inputs = {{{from, 1}, static_cast<std::byte*>(in), in_bytes}};
    std::vector<Term> outputs = {{{to, 1}, static_cast<std::byte*>(out), out_bytes}};
    const Status status = state_->Combine({0, 0, count_}, inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    return outputs[0].bytes;
  }

  const uint32_t count_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
};

void CheckCast(KernelTarget* target, cuda::CastFormat format, uint32_t count, size_t offset,
               Rng* rng) {
  CodecCast codec(kSpecs[static_cast<int>(format)], count);
  const std::vector<float> x = Values(count, rng);
  const std::vector<uint8_t> expected = codec.Encode(x);
  const cuda::Launchers& launchers = target->launchers();
  const TargetBytes in(target, x, 4 * (offset % 4)), out(target, expected.size(), 2 * offset);
  ASSERT_EQ(launchers.cast_encode(format, in.data<float>(), count, out.data(), nullptr), 0);
  ASSERT_EQ(out.Take(), expected);
  // Any bytes are a payload.
  std::vector<uint8_t> any(expected.size());
  for (size_t i = 0; i < any.size(); ++i) any[i] = static_cast<uint8_t>(i * 37 + (i >> 8));
  for (const std::vector<uint8_t>& payload : {expected, any}) {
    const TargetBytes coded(target, payload, 2 * offset), decoded(target, count * 4, 4 * offset);
    ASSERT_EQ(launchers.cast_decode(format, coded.data(), count, decoded.data<float>(), nullptr),
              0);
    ASSERT_EQ(decoded.Take(), codec.Decode(payload));
  }
}

}  // namespace

void CheckCasts(KernelTarget* target, Rng* rng) {
  for (int format = 0; format < cuda::kCastFormats; ++format) {
    SCOPED_TRACE(kSpecs[format]);
    for (const uint32_t count : {1u, 31u, 256u, 300u, 8192u, 65536u + 77u}) {
      SCOPED_TRACE(count);
      CheckCast(target, static_cast<cuda::CastFormat>(format), count, rng->Below(3), rng);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace inccl::test
