// SPDX-License-Identifier: Apache-2.0
//
// The codec lossless: every bit pattern survives, nothing grows, malformed superblocks are refused,
// and how much shorter real and generated data becomes (docs/codecs.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/kernels/convert.h"
#include "compress/lossless/exponent_pack.h"
#include "compress/simd.h"
#include "integration/compressed_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DataType kTypes[] = {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32,
                               DataType::kFloat64};

// The payload of an all-gather, and what it decodes to.
Bytes RoundTrip(DataType type, const Bytes& elements, Bytes* decoded) {
  const auto codec = *MakeCodec("lossless");
  const auto state = codec->NewState();
  const auto count = static_cast<uint32_t>(elements.size() / SizeOf(type));
  EXPECT_TRUE(state
                  ->Begin({.collective = Collective::kAllGather,
                           .type = type,
                           .nranks = 2,
                           .rank = 0,
                           .count = count})
                  .ok());
  Bytes payload(codec->MaxBytes(type, 2, count));
  const Range range{0, 0, count};
  const Term in{{Form::kInput},
                const_cast<std::byte*>(elements.data()),
                static_cast<uint32_t>(elements.size())};
  Term out{{Form::kResult}, payload.data(), static_cast<uint32_t>(payload.size())};
  EXPECT_TRUE(state->Combine(range, {&in, 1}, {&out, 1}).ok());
  payload.resize(out.bytes);
  decoded->assign(elements.size(), std::byte{0x55});
  const Term sent{{Form::kResult}, payload.data(), out.bytes};
  Term back{{Form::kOutput}, decoded->data(), static_cast<uint32_t>(decoded->size())};
  const Status status = state->Combine(range, {&sent, 1}, {&back, 1});
  EXPECT_TRUE(status.ok()) << status.message();
  return payload;
}

Bytes Typed(DataType type, const std::vector<float>& x) {
  Bytes bytes(x.size() * SizeOf(type));
  FromFloat(type, x.data(), bytes.data(), x.size());
  return bytes;
}

std::vector<float> Gauss(size_t count, Rng* rng) {
  std::vector<float> x(count);
  for (float& e : x) {
    const double radius = std::sqrt(-2 * std::log(1 - rng->Uniform()));
    e = static_cast<float>(radius * std::cos(2 * M_PI * rng->Uniform()));
  }
  return x;
}

// Every 4096 elements have a size of their own, as layers do; some elements are zero.
std::vector<float> Layered(size_t count, Rng* rng) {
  std::vector<float> x = Gauss(count, rng);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t layer = Mix64(i / 4096);
    x[i] = std::ldexp(x[i], -static_cast<int>(layer % 20));
    if (layer % 3 == 0 && rng->Below(4) == 0) x[i] = 0;
  }
  return x;
}

TEST(Lossless, EveryBitPatternSurvivesAndNothingGrows) {
  Rng rng(TestSeed());
  for (const DataType type : kTypes) {
    const size_t size = SizeOf(type);
    for (int kind = 0; kind < 6; ++kind) {
      for (const size_t count : {1u, 2u, 31u, 255u, 256u, 257u, 1000u, 5000u}) {
        SCOPED_TRACE(std::string(Name(type)) + " kind " + std::to_string(kind) + " of " +
                     std::to_string(count));
        Bytes x = Typed(type, Layered(count, &rng));
        for (size_t i = 0; i < count; ++i) {
          std::byte* at = x.data() + i * size;
          const uint64_t noise = rng.Next();
          if (kind == 1 || (kind == 2 && rng.Below(9) == 0)) std::memcpy(at, &noise, size);
          if (kind == 3) std::memset(at, 0, size);
          if (kind == 4 && rng.Below(3) > 0) std::memset(at, 0, size);
          if (kind == 5) std::memset(at, i % 2 == 0 ? 0xFF : 0x80, size);  // NaN payloads
        }
        Bytes decoded;
        const Bytes payload = RoundTrip(type, x, &decoded);
        ASSERT_TRUE(decoded == x);
        ASSERT_LE(payload.size(), x.size());
        ASSERT_TRUE(kind != 1 || payload.size() == x.size() || count < 16) << payload.size();
        ASSERT_TRUE(kind != 3 || payload.size() == (count + 255) / 256) << payload.size();
      }
    }
  }
}

TEST(Lossless, Ratios) {
  Rng rng(TestSeed());
  struct Data {
    const char* name;
    std::vector<float> x;
    double bf16;  // at least
    double fp32;
  };
  const Data cases[] = {
      {"normal", Gauss(1 << 17, &rng), 1.35, 1.15},
      {"layered", Layered(1 << 17, &rng), 1.33, 1.15},
      {"gradients, step 5", Gradients(5, 1)[0], 1.3, 1.14},
      {"gradients, step 600", Gradients(600, 1)[0], 1.3, 1.14},
  };
  for (const Data& data : cases) {
    for (const DataType type : kTypes) {
      const Bytes x = Typed(type, data.x);
      Bytes decoded;
      const double ratio =
          static_cast<double>(x.size()) / static_cast<double>(RoundTrip(type, x, &decoded).size());
      EXPECT_TRUE(decoded == x);
      printf("%-20s %-9s %.3f\n", data.name, Name(type), ratio);
      EXPECT_TRUE(type != DataType::kBfloat16 || ratio >= data.bf16) << data.name;
      EXPECT_TRUE(type != DataType::kFloat32 || ratio >= data.fp32) << data.name;
    }
  }
}

// A reader gets what its memory holds: nothing beyond, nothing that is not in the format.
TEST(Lossless, MalformedSuperblocksAreRefused) {
  Rng rng(TestSeed());
  for (const DataType type : kTypes) {
    ExponentPacker packer(type);
    const Bytes x = Typed(type, Gauss(256, &rng));
    Bytes packed(1 + x.size()), out(x.size());
    const uint32_t length = packer.Pack(x.data(), 256, packed.data());
    ASSERT_LT(length, x.size());
    for (uint32_t bytes = 0; bytes < length; ++bytes) {
      const Bytes cut(packed.begin(), packed.begin() + bytes);
      ASSERT_EQ(packer.Unpack(cut.data(), bytes, 256, out.data()), 0u) << bytes;
    }
    ASSERT_EQ(packer.Unpack(packed.data(), length, 256, out.data()), length);
    EXPECT_TRUE(out == x);
    for (const int control : {0x07, 0x0F, 0x10, 0x11, 0x20, 0xF3, 0xFD}) {
      packed[0] = static_cast<std::byte>(control);
      EXPECT_EQ(packer.Unpack(packed.data(), length, 256, out.data()), 0u) << control;
    }
    packed[0] = std::byte{2};
    packed[2] = std::byte{0xFF};  // a base beyond all exponents
    EXPECT_EQ(packer.Unpack(packed.data(), length, 256, out.data()), 0u);
    for (int i = 0; i < 300; ++i) {
      Bytes noise(1 + rng.Below(packed.size()));
      for (std::byte& b : noise) b = static_cast<std::byte>(rng.Next());
      noise[0] = static_cast<std::byte>(rng.Below(32));
      const auto size = static_cast<uint32_t>(noise.size());
      EXPECT_LE(packer.Unpack(noise.data(), size, 256, out.data()), size);
    }
  }
}

// A superblock whose exponents lie in `range` values from `base` on, but for those of every n-th.
Bytes Superblock(DataType type, Rng* rng) {
  const int mantissa = type == DataType::kFloat16    ? 10
                       : type == DataType::kBfloat16 ? 7
                       : type == DataType::kFloat32  ? 23
                                                     : 52;
  const auto bits = static_cast<int>(8 * SizeOf(type));
  const uint64_t exponents = uint64_t{1} << (bits - 1 - mantissa);
  const uint64_t base = rng->Below(exponents), range = 1 + rng->Below(1 + rng->Below(exponents));
  const uint64_t one_of = 2 + rng->Below(80), zero_of = rng->Below(2) == 0 ? 0 : 1 + rng->Below(40);
  Bytes bytes(256 * SizeOf(type));
  for (size_t i = 0; i < 256; ++i) {
    const bool stray = rng->Below(one_of) == 0;
    uint64_t exponent = stray ? rng->Below(exponents) : (base + rng->Below(range)) % exponents;
    uint64_t noise = rng->Next() & ~((exponents - 1) << mantissa);
    if (zero_of != 0 && rng->Below(zero_of) == 0) exponent = 0;
    if (zero_of == 3) noise = 0;
    const uint64_t value = noise | exponent << mantissa;
    std::memcpy(bytes.data() + i * SizeOf(type), &value, SizeOf(type));
  }
  return bytes;
}

// The plain code is the reference: what it writes, all write, and what it reads or refuses.
TEST(Lossless, EveryInstructionSetDoesWhatThePlainCodeDoes) {
  Rng rng(TestSeed());
  for (const DataType type : kTypes) {
    ExponentPacker packer(type);
    for (int round = 0; round < 2000; ++round) {
      const Bytes x = Superblock(type, &rng);
      const size_t room = 1 + x.size();
      Bytes expected(room), packed(room), out(x.size()), reference(x.size());
      ASSERT_TRUE(SetSimdTarget("scalar").ok());
      const uint32_t length = packer.Pack(x.data(), 256, expected.data());
      Bytes damaged(expected.begin(), expected.begin() + length);
      if (round % 2 != 0) damaged[rng.Below(4) % length] = static_cast<std::byte>(rng.Next());
      if (round % 4 == 3) damaged[0] = static_cast<std::byte>(rng.Below(32));
      reference = x;
      const uint32_t read = packer.Unpack(damaged.data(), damaged.size(), 256, reference.data());
      for (const std::string& target : SimdTargets()) {
        SCOPED_TRACE(target + " " + Name(type) + " round " + std::to_string(round));
        ASSERT_TRUE(SetSimdTarget(target).ok());
        ASSERT_EQ(packer.Pack(x.data(), 256, packed.data()), length);
        ASSERT_EQ(std::memcmp(packed.data(), expected.data(), length), 0);
        ASSERT_EQ(packer.Unpack(damaged.data(), damaged.size(), 256, out.data()), read);
        ASSERT_TRUE(read == 0 || out == reference);
      }
      ASSERT_TRUE(SetSimdTarget("best").ok());
    }
  }
}

// MAX, MIN and products too: whatever "none" does.
TEST(Lossless, EveryOperationEqualsNone) {
  const auto codec = *MakeCodec("lossless");
  for (int op = 0; op < kReduceOpKinds; ++op) {
    for (const DataType type : kTypes) {
      EXPECT_TRUE(codec->Supports(Collective::kAllReduce, type, static_cast<ReduceOp>(op), 4).ok());
    }
    EXPECT_FALSE(
        codec->Supports(Collective::kAllReduce, DataType::kInt32, static_cast<ReduceOp>(op), 4)
            .ok());
  }
  constexpr uint32_t kCount = 700;
  Rng rng(TestSeed());
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
    const Bytes mine = Typed(DataType::kFloat32, Gauss(kCount, &rng));
    Bytes theirs = Typed(DataType::kFloat32, Gauss(kCount, &rng));
    std::vector<Bytes> results;
    for (const char* spec : {"none", "lossless"}) {
      const auto state = (*MakeCodec(spec))->NewState();
      ASSERT_TRUE(state->Begin({.op = op, .nranks = 2, .rank = 0, .count = kCount}).ok());
      Bytes result(kCount * 4);
      const Term in[2] = {{{Form::kInput}, const_cast<std::byte*>(mine.data()), kCount * 4},
                          {{Form::kSum, 1}, theirs.data(), static_cast<uint32_t>(theirs.size())}};
      Term out{{Form::kOutput}, result.data(), kCount * 4};
      ASSERT_TRUE(state->Combine({0, 0, kCount}, in, {&out, 1}).ok());
      results.push_back(result);
    }
    EXPECT_TRUE(results[0] == results[1]) << Name(op);
  }
}

}  // namespace
}  // namespace inccl::test
