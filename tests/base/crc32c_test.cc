// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
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

}  // namespace
}  // namespace inccl::test
