// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inccl::test {
namespace {

// RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(Crc32cTest, PublishedValues) {
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0x00})), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43u);
  std::vector<std::byte> up(32), down(32);
  for (int i = 0; i < 32; ++i) {
    up[static_cast<size_t>(i)] = static_cast<std::byte>(i);
    down[static_cast<size_t>(i)] = static_cast<std::byte>(31 - i);
  }
  EXPECT_EQ(Crc32c(up), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(down), 0x113FDB5Cu);
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(kDigits))), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

// The polynomial division, bit by bit.
uint32_t Divide(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) {
    for (uint32_t bit = 0; bit < 8; ++bit) {
      const uint32_t in = (std::to_integer<uint32_t>(byte) >> bit) & 1;
      crc = ((crc ^ in) & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
    }
  }
  return ~crc;
}

TEST(Crc32cTest, EveryLengthAndAlignment) {
  std::vector<std::byte> bytes(100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 7 * i);
  for (size_t first = 0; first < 9; ++first) {
    for (size_t length = 0; first + length <= bytes.size(); ++length) {
      const auto part = std::span(bytes).subspan(first, length);
      ASSERT_EQ(Crc32c(part), Divide(part)) << first << " " << length;
    }
  }
}

// Around the lengths from which vectors are summed, and the lengths of several of them.
TEST(Crc32cTest, LengthsOfVectors) {
  std::vector<std::byte> bytes(1400);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 13 * i);
  for (const size_t first : {0, 1, 8, 63}) {
    for (size_t length = 440; first + length <= bytes.size(); ++length) {
      const auto part = std::span(bytes).subspan(first, length);
      ASSERT_EQ(Crc32c(part), Divide(part)) << first << " " << length;
    }
  }
}

// Long ones are summed in parts of some KiB.
TEST(Crc32cTest, LongOnes) {
  std::vector<std::byte> bytes(20'000);
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  for (size_t kib = 1; kib < 19; ++kib) {
    for (const size_t more : {0, 1, 7, 8, 9, 511, 1023}) {
      const auto part = std::span(bytes).subspan(more % 5, 1024 * kib + more - 1);
      ASSERT_EQ(Crc32c(part), Divide(part)) << part.size();
    }
  }
}

}  // namespace
}  // namespace inccl::test
