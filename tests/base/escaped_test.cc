// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): zero bytes

TEST(EscapedTest, WhatATerminalActsOnIsShown) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"node7.example:42 (ok)", "node7.example:42 (ok)"},
      {"a\nb\r\tc", R"(a\x0ab\x0d\x09c)"},
      {"\x1b[2J\x1b]0;title\x07", R"(\x1b[2J\x1b]0;title\x07)"},
      {"a\0b"s, R"(a\x00b)"},
      {"\x7f", R"(\x7f)"},
      // Characters of UTF-8 stay: 2, 3 and 4 bytes.
      {"M\xc3\xbcller \xe2\x82\xac \xf0\x9f\x98\x80",
       "M\xc3\xbcller \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\xc2\xa0", "\xc2\xa0"},
      // C1: U+009B begins a sequence as ESC [ does; alone, as a terminal without UTF-8 reads it,
      // too.
      {"\xc2\x9b"s + "2J", R"(\xc2\x9b2J)"},
      {"\xc2\x80\xc2\x9f", R"(\xc2\x80\xc2\x9f)"},
      {"\x9b"s + "2J", R"(\x9b2J)"},
      // Not UTF-8: cut short, overlong, a surrogate, above U+10FFFF, no first byte.
      {"\xc3", R"(\xc3)"},
      {"\xe2\x82", R"(\xe2\x82)"},
      {"\xc3(", R"(\xc3()"},
      {"\xc0\x9b", R"(\xc0\x9b)"},
      {"\xe0\x80\x9b", R"(\xe0\x80\x9b)"},
      {"\xe0\x82\x9b", R"(\xe0\x82\x9b)"},
      {"\xf0\x80\x82\x9b", R"(\xf0\x80\x82\x9b)"},
      {"\xed\x9f\xbf", "\xed\x9f\xbf"},
      {"\xed\xa0\x80", R"(\xed\xa0\x80)"},
      {"\xed\xbf\xbf", R"(\xed\xbf\xbf)"},
      {"\xee\x80\x80", "\xee\x80\x80"},
      {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
      {"\xf4\x90\x80\x80", R"(\xf4\x90\x80\x80)"},
      {"\xf5\x80\x80\x80", R"(\xf5\x80\x80\x80)"},
      {"\xff\xfe", R"(\xff\xfe)"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Escaped(text), expected);
}

TEST(EscapedTest, AnyBytesAreHarmlessAndEscapingTwiceChangesNothing) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 40, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string once = Escaped(text);
    for (size_t at = 0; at < once.size(); ++at) {
      const auto byte = static_cast<unsigned char>(once[at]);
      ASSERT_TRUE(byte >= 0x20 && byte != 0x7f) << i;
      // C1 as one byte would be a continuation without its first byte, as two bytes C2 80 to C2 9F.
      ASSERT_TRUE(byte != 0xc2 || static_cast<unsigned char>(once.at(at + 1)) >= 0xa0) << i;
    }
    ASSERT_EQ(Escaped(once), once) << i;
  }
}

}  // namespace
}  // namespace inccl::test
