// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

std::vector<int> Ints(const std::vector<std::byte>& bytes) {
  std::vector<int> ints;
  for (const std::byte b : bytes) ints.push_back(std::to_integer<int>(b));
  return ints;
}

TEST(BytesTest, LittleEndianOnTheWire) {
  ByteWriter writer;
  writer.U8(0x01);
  writer.U16(0x0203);
  writer.U32(0x04050607);
  writer.U64(0x08090A0B0C0D0E0F);
  writer.String("hi");
  EXPECT_EQ(Ints(writer.bytes()), (std::vector<int>{1,  3,  2, 7, 6, 5, 4, 15, 14,  13, 12,
                                                    11, 10, 9, 8, 2, 0, 0, 0,  'h', 'i'}));
}

TEST(BytesTest, ReadsBackWhatWasWritten) {
  ByteWriter writer;
  writer.U8(255);
  writer.U16(65535);
  writer.U32(4294967295u);
  writer.U64(~uint64_t{0});
  writer.String("");
  writer.String(std::string("a\0b", 3));
  ByteReader reader(writer.bytes());
  uint8_t a = 0;
  uint16_t b = 0;
  uint32_t c = 0;
  uint64_t d = 0;
  std::string empty = "x", text;
  EXPECT_TRUE(reader.U8(&a) && reader.U16(&b) && reader.U32(&c) && reader.U64(&d));
  EXPECT_TRUE(reader.String(&empty) && reader.String(&text));
  EXPECT_EQ(a, 255);
  EXPECT_EQ(b, 65535);
  EXPECT_EQ(c, 4294967295u);
  EXPECT_EQ(d, ~uint64_t{0});
  EXPECT_EQ(empty, "");
  EXPECT_EQ(text, std::string("a\0b", 3));
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_TRUE(reader.ok());
}

TEST(BytesTest, AFailureLeavesTheResultAloneAndStays) {
  const std::array<std::byte, 3> three{};
  ByteReader reader(three);
  uint32_t value = 77;
  EXPECT_FALSE(reader.U32(&value));
  EXPECT_EQ(value, 77u);
  uint8_t small = 78;
  EXPECT_FALSE(reader.U8(&small)) << "three bytes are there, but the reader has failed";
  EXPECT_EQ(small, 78);
  EXPECT_FALSE(reader.Raw({}));
  EXPECT_FALSE(reader.Skip(0));
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(BytesTest, LengthsThatLie) {
  for (const uint32_t length : {5u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFCu}) {
    ByteWriter writer;
    writer.U32(length);
    writer.Raw(std::as_bytes(std::span("four", 4)));
    ByteReader reader(writer.bytes());
    std::string text = "before";
    EXPECT_FALSE(reader.String(&text)) << length;
    EXPECT_EQ(text, "before");
  }
  ByteWriter writer;
  writer.String("twelve bytes");
  std::string text;
  EXPECT_FALSE(ByteReader(writer.bytes()).String(&text, 11));
  EXPECT_TRUE(ByteReader(writer.bytes()).String(&text, 12));
  EXPECT_FALSE(ByteReader({}).Skip(~size_t{0}));
}

// Against a model that keeps an index: any sequence of reads over any bytes.
TEST(BytesTest, RandomReadsAgreeWithAModel) {
  Rng rng(TestSeed());
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::byte> bytes(rng.Below(40));
    for (std::byte& b : bytes)
      b = static_cast<std::byte>(rng.Below(4));  // short strings are likely
    ByteReader reader(bytes);
    size_t at = 0;
    bool alive = true;
    const auto model = [&](size_t width) {
      uint64_t value = 0;
      for (size_t i = 0; i < width; ++i) {
        value += std::to_integer<uint64_t>(bytes[at + i]) * (uint64_t{1} << (8 * i));
      }
      at += width;
      return value;
    };
    for (int step = 0; step < 12; ++step) {
      const size_t left = bytes.size() - at;
      switch (rng.Below(5)) {
        case 0: {
          uint8_t v = 0;
          alive = alive && left >= 1;
          ASSERT_EQ(reader.U8(&v), alive);
          ASSERT_EQ(v, alive ? model(1) : 0);
          break;
        }
        case 1: {
          uint32_t v = 0;
          alive = alive && left >= 4;
          ASSERT_EQ(reader.U32(&v), alive);
          ASSERT_EQ(v, alive ? model(4) : 0);
          break;
        }
        case 2: {
          uint64_t v = 0;
          alive = alive && left >= 8;
          ASSERT_EQ(reader.U64(&v), alive);
          ASSERT_EQ(v, alive ? model(8) : 0);
          break;
        }
        case 3: {
          const size_t count = rng.Below(10);
          std::vector<std::byte> out(count);
          alive = alive && left >= count;
          ASSERT_EQ(reader.Raw(out), alive);
          if (alive) {
            ASSERT_TRUE(std::equal(out.begin(), out.end(), bytes.begin() + static_cast<long>(at)));
            at += count;
          }
          break;
        }
        default: {
          std::string text;
          if (alive && left >= 4) {
            const uint64_t length = model(4);
            alive = length <= bytes.size() - at;
            ASSERT_EQ(reader.String(&text), alive);
            if (alive) {
              ASSERT_EQ(text.size(), length);
              at += length;
            }
          } else {
            alive = false;
            ASSERT_FALSE(reader.String(&text));
          }
        }
      }
      ASSERT_EQ(reader.remaining(), alive ? bytes.size() - at : 0);
    }
  }
}

}  // namespace
}  // namespace inccl::test
