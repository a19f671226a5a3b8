// SPDX-License-Identifier: Apache-2.0
//
// The superblocks of the codec lossless (exponent_pack.h): a second reader that takes bit by bit
// reads what every instruction set writes, whatever the sample says of the superblock; no payload
// makes a reader leave its memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/lossless/exponent_pack.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;

struct Type {
  DataType type;
  uint32_t mantissa;
  uint32_t size() const { return static_cast<uint32_t>(SizeOf(type)); }
  uint32_t exponents() const { return 1u << (8 * size() - 1 - mantissa); }
  uint32_t byte_planes() const { return (mantissa + 1) / 8; }
  uint32_t rest() const { return (mantissa + 1) % 8; }
  uint32_t escape_bytes() const { return type == DataType::kFloat64 ? 2 : 1; }
};
constexpr Type kTypes[] = {{DataType::kBfloat16, 7},
                           {DataType::kFloat16, 10},
                           {DataType::kFloat32, 23},
                           {DataType::kFloat64, 52}};

uint64_t Number(const Bytes& bytes, size_t at, size_t size) {
  uint64_t number = 0;
  for (size_t i = 0; i < size; ++i) {
    number |= std::to_integer<uint64_t>(bytes.at(at + i)) << (8 * i);
  }
  return number;
}

// Reads a superblock as exponent_pack.h describes it, by at(), element by element. The whole
// payload must be the superblock.
Bytes ReadPlainly(const Type& type, const Bytes& packed, uint32_t count) {
  const uint32_t size = type.size();
  Bytes elements(size_t{count} * size);
  const auto control = std::to_integer<uint32_t>(packed.at(0));
  if (control == 0xFE) {
    EXPECT_EQ(packed.size(), 1u);
    return elements;
  }
  if (control == 0xFF) return {packed.begin() + 1, packed.end()};
  const uint32_t width = control & 15, zero = control >> 4;
  const uint64_t base = Number(packed, 1, 2);
  const uint32_t at = 3 + type.byte_planes() * count, plane = (count + 7) / 8;
  size_t next = at + (width + type.rest()) * plane;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t others = 0, code = 0;
    for (uint32_t k = 0; k < type.byte_planes(); ++k) {
      others |= Number(packed, 3 + k * count + i, 1) << (8 * k);
    }
    for (uint32_t k = 0; k < width + type.rest(); ++k) {
      const uint64_t bit = Number(packed, at + k * plane + i / 8, 1) >> (i % 8) & 1;
      (k < width ? code : others) |= bit << (k < width ? k : 8 * type.byte_planes() + k - width);
    }
    uint64_t exponent = base + code - zero;
    if (zero != 0 && code == 0) exponent = 0;
    if (width != 0 && code == (1u << width) - 1) {
      exponent = Number(packed, next, type.escape_bytes());
      next += type.escape_bytes();
    }
    EXPECT_LT(exponent, type.exponents());
    const uint64_t sign = others >> type.mantissa;
    const uint64_t value = (others & ((uint64_t{1} << type.mantissa) - 1)) |
                           exponent << type.mantissa | sign << (8 * size - 1);
    std::memcpy(elements.data() + size_t{i} * size, &value, size);
  }
  EXPECT_EQ(next, packed.size());
  return elements;
}

// Elements with these exponents and random signs and mantissas.
Bytes Elements(const Type& type, const std::vector<uint32_t>& exponents, Rng* rng) {
  Bytes elements(exponents.size() * type.size());
  for (size_t i = 0; i < exponents.size(); ++i) {
    const uint64_t field = uint64_t{type.exponents() - 1} << type.mantissa;
    const uint64_t value = (rng->Next() & ~field) | uint64_t{exponents[i]} << type.mantissa;
    std::memcpy(elements.data() + i * type.size(), &value, type.size());
  }
  return elements;
}

// Packs on every instruction set and checks what all of them and the plain reader read.
Bytes PackAndCheck(const Type& type, const Bytes& elements) {
  const auto count = static_cast<uint32_t>(elements.size() / type.size());
  ExponentPacker packer(type.type);
  Bytes first;
  for (const std::string& target : SimdTargets()) {
    SCOPED_TRACE(target);
    EXPECT_TRUE(SetSimdTarget(target).ok());
    Bytes packed(1 + elements.size());
    packed.resize(packer.Pack(elements.data(), count, packed.data()));
    packed.shrink_to_fit();  // so that the address sanitizer sees a read behind the end
    if (first.empty()) first = packed;
    EXPECT_TRUE(packed == first);
    Bytes read(elements.size());
    EXPECT_EQ(packer.Unpack(packed.data(), packed.size(), count, read.data()), packed.size());
    EXPECT_TRUE(read == elements);
  }
  EXPECT_TRUE(SetSimdTarget("best").ok());
  EXPECT_TRUE(ReadPlainly(type, first, count) == elements);
  return first;
}

Bytes PackAndCheck(const Type& type, const std::vector<uint32_t>& exponents, Rng* rng) {
  return PackAndCheck(type, Elements(type, exponents, rng));
}

uint32_t WidthOf(const Bytes& packed) { return std::to_integer<uint32_t>(packed.at(0)) & 15; }

TEST(LosslessFormat, ConstantExponentsTakeNoBits) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    for (const uint32_t exponent :
         {0u, 1u, 7u, type.exponents() / 2, type.exponents() - 2, type.exponents() - 1}) {
      SCOPED_TRACE(std::string(Name(type.type)) + " exponent " + std::to_string(exponent));
      const Bytes packed = PackAndCheck(type, std::vector<uint32_t>(256, exponent), &rng);
      EXPECT_EQ(packed.size(), 3 + 256 * (type.mantissa + 1) / 8);
    }
  }
}

// Neither side of the sample misleads for good: what it misses costs at most its own bytes, or the
// packer counts all exponents.
TEST(LosslessFormat, TheSampleMissesWhatIsElsewhere) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    const uint32_t usual = type.exponents() / 2, strange = type.exponents() - 1;
    // One stray exponent at any place.
    std::vector<uint32_t> few(256);
    for (size_t i = 0; i < 256; ++i) few[i] = usual + i % 3;
    const size_t regular = PackAndCheck(type, few, &rng).size();
    for (size_t place = 0; place < 256; ++place) {
      for (const uint32_t stray : {0u, 1u, strange}) {
        std::vector<uint32_t> exponents = few;
        exponents[place] = stray;
        EXPECT_LE(PackAndCheck(type, exponents, &rng).size(), regular + 64) << place;
      }
    }
    // Every second run of 32 elements, whichever the sample takes, is of another kind.
    for (const size_t odd : {0u, 1u}) {
      std::vector<uint32_t> halves = few;
      for (size_t i = 0; i < 256; ++i) {
        if (i / 32 % 2 == odd) halves[i] = usual - 6 + i % 3;
      }
      const Bytes packed = PackAndCheck(type, halves, &rng);
      EXPECT_EQ(WidthOf(packed), 4u) << Name(type.type);  // 9 exponents between them
      EXPECT_EQ(packed.size(), 3 + 32 * (type.mantissa + 1 + 4)) << "no escapes";
    }
  }
}

TEST(LosslessFormat, SpecialValues) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    const uint32_t top = type.exponents() - 1;
    const std::function<uint32_t(uint64_t)> kinds[] = {
        [&](uint64_t) { return top; },                                   // NaN, infinity
        [&](uint64_t) { return 0u; },                                    // denormals, zeros
        [&](uint64_t r) { return r % 2 == 0 ? top : 0u; },               // both
        [&](uint64_t r) { return static_cast<uint32_t>(r % 3); },        // around denormals
        [&](uint64_t r) { return top - static_cast<uint32_t>(r % 5); },  // around infinity
        [&](uint64_t r) { return r % 50 == 0 ? top : top / 2 + static_cast<uint32_t>(r % 4); },
        [&](uint64_t r) { return r % 4 == 0 ? 0u : 1 + static_cast<uint32_t>(r % 12); },
        [&](uint64_t r) { return static_cast<uint32_t>(r) & top; },
    };
    for (const auto& kind : kinds) {
      for (int round = 0; round < 30; ++round) {
        std::vector<uint32_t> exponents(256);
        for (uint32_t& exponent : exponents) exponent = kind(rng.Next() >> 20);
        PackAndCheck(type, exponents, &rng);
        ASSERT_FALSE(HasFailure()) << Name(type.type) << " kind " << &kind - kinds;
      }
    }
    Bytes negative_zeros(256 * type.size());
    for (size_t i = 1; i <= 256; ++i) negative_zeros[i * type.size() - 1] = std::byte{0x80};
    PackAndCheck(type, negative_zeros);
    EXPECT_EQ(PackAndCheck(type, Bytes(256 * type.size())).size(), 1u);
  }
}

TEST(LosslessFormat, SuperblocksOfEveryLength) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    for (uint32_t count = 1; count <= 256; ++count) {
      std::vector<uint32_t> exponents(count);
      const uint32_t range = 1 + static_cast<uint32_t>(rng.Below(20));
      for (uint32_t& exponent : exponents) exponent = 5 + static_cast<uint32_t>(rng.Below(range));
      PackAndCheck(type, exponents, &rng);
      ASSERT_FALSE(HasFailure()) << Name(type.type) << " " << count;
    }
  }
}

// PackAll and UnpackAll, in memory of exactly the length that the result has.
TEST(LosslessFormat, VectorsOfManyLengthsInTightMemory) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    ExponentPacker packer(type.type);
    for (const uint32_t count : {0u, 1u, 63u, 64u, 65u, 255u, 256u, 257u, 511u, 513u, 1000u}) {
      SCOPED_TRACE(std::string(Name(type.type)) + " of " + std::to_string(count));
      std::vector<uint32_t> exponents(count);
      for (uint32_t& exponent : exponents) exponent = 9 + static_cast<uint32_t>(rng.Below(5));
      const Bytes elements = Elements(type, exponents, &rng);
      Bytes roomy(elements.size() + 4096);
      const uint64_t length = packer.PackAll(elements.data(), count, roomy.data(), roomy.size());
      ASSERT_TRUE(length < elements.size() || count < 16);
      Bytes packed(length);
      ASSERT_EQ(packer.PackAll(elements.data(), count, packed.data(), length), length);
      EXPECT_TRUE(std::equal(packed.begin(), packed.end(), roomy.begin()));
      Bytes read(elements.size());
      uint64_t used = 0;
      ASSERT_TRUE(packer.UnpackAll(packed.data(), length, count, read.data(), &used));
      EXPECT_EQ(used, length);
      EXPECT_TRUE(read == elements);
      if (count == 0) continue;
      Bytes less(length - 1);
      EXPECT_GT(packer.PackAll(elements.data(), count, less.data(), less.size()), less.size());
      EXPECT_FALSE(packer.UnpackAll(packed.data(), length - 1, count, read.data(), &used));
      EXPECT_LT(used, length);
    }
  }
}

// Headers of every width and base over planes of ones, zeros and noise, cut anywhere: all
// instruction sets agree, and the address sanitizer sees that they keep to the memory.
TEST(LosslessFormat, HostilePlanesAndHeaders) {
  Rng rng(TestSeed());
  for (const Type& type : kTypes) {
    ExponentPacker packer(type.type);
    for (int round = 0; round < 3000; ++round) {
      const uint32_t count = round % 3 == 0 ? 1 + static_cast<uint32_t>(rng.Below(256)) : 256;
      Bytes in(1 + rng.Below(size_t{count} * (type.size() + 2) + 8));
      const auto fill = static_cast<std::byte>(rng.Below(2) == 0 ? 0xFF : 0);
      const bool noise = rng.Below(2) == 0;
      for (std::byte& b : in) b = noise ? static_cast<std::byte>(rng.Next()) : fill;
      in[0] = static_cast<std::byte>(rng.Below(rng.Below(4) == 0 ? 256 : 32));
      const auto base = static_cast<uint16_t>(type.exponents() + 4 - rng.Below(80));
      if (in.size() > 2 && rng.Below(8) != 0) std::memcpy(in.data() + 1, &base, 2);
      Bytes out(size_t{count} * type.size()), reference;
      std::optional<uint32_t> length;
      for (const std::string& target : SimdTargets()) {
        ASSERT_TRUE(SetSimdTarget(target).ok());
        const uint32_t read = packer.Unpack(in.data(), in.size(), count, out.data());
        ASSERT_LE(read, in.size());
        if (!length) reference = out;
        ASSERT_EQ(read, length.value_or(read)) << target << " round " << round;
        ASSERT_TRUE(read == 0 || out == reference) << target << " round " << round;
        length = read;
      }
      ASSERT_TRUE(SetSimdTarget("best").ok());
      if (*length == 0) continue;
      in.resize(*length);
      ASSERT_TRUE(ReadPlainly(type, in, count) == reference) << "round " << round;
    }
  }
}

// Every code of every header that is accepted stands for an exponent of the type.
TEST(LosslessFormat, WidthsAndBasesBeyondTheTypeAreRefused) {
  for (const Type& type : kTypes) {
    ExponentPacker packer(type.type);
    const uint32_t widest = type.type == DataType::kFloat16 ? 5 : 6;
    Bytes in(size_t{256} * (type.size() + 4)), out(size_t{256} * type.size());
    for (const std::string& target : SimdTargets()) {
      ASSERT_TRUE(SetSimdTarget(target).ok());
      for (uint32_t control = 0; control < 0xFE; ++control) {
        const uint32_t width = control & 15, zero = control >> 4;
        const bool valid = width <= widest && zero <= (width < 2 ? 0u : 1u);
        const uint32_t codes = width == 0 ? 1 : (1u << width) - 1 - zero;
        for (const uint32_t base : {0u, type.exponents() - codes, type.exponents() - codes + 1}) {
          in[0] = static_cast<std::byte>(control);
          in[1] = static_cast<std::byte>(base);
          in[2] = static_cast<std::byte>(base >> 8);
          const bool fits = base + uint64_t{codes} <= type.exponents();
          EXPECT_EQ(packer.Unpack(in.data(), in.size(), 256, out.data()) > 0, valid && fits)
              << target << " " << Name(type.type) << " " << control << " " << base;
        }
      }
    }
    ASSERT_TRUE(SetSimdTarget("best").ok());
  }
}

TEST(LosslessFormat, RanksWithAnotherFormatDiffer) {
  EXPECT_EQ((*MakeCodec("lossless"))->spec(), "lossless");
  EXPECT_EQ((*MakeCodec("lossless"))->identity(), "lossless (format 2)");
}

}  // namespace
}  // namespace inccl::test
