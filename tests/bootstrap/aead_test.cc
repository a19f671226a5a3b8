// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bootstrap/crypto.h"

namespace inccl::bootstrap {
namespace {

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Key and nonce mask as Aead takes them from a Key.
Key KeyFromHex(const std::string& key, const std::string& nonce) {
  const std::vector<std::byte> bytes = FromHex(key + nonce + "00000000");
  Mac mac{};
  std::copy(bytes.begin(), bytes.end(), mac.begin());
  return Key(mac);
}

// Test case 4 of the GCM specification (McGrew and Viega, appendix B).
TEST(Aead, GivesThePublishedCiphertextAndTag) {
  const Key key = KeyFromHex("feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888");
  std::vector<std::byte> data = FromHex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  const std::vector<std::byte> plain = data;
  const std::vector<std::byte> header = FromHex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  std::array<std::byte, kTagBytes> tag;
  Aead seal = Aead::Create(key, Aead::Use::kSeal).value();
  ASSERT_TRUE(seal.Seal(header, data, tag));
  EXPECT_EQ(data, FromHex("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                          "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091"));
  EXPECT_EQ(std::vector<std::byte>(tag.begin(), tag.end()),
            FromHex("5bc94fbc3221a5db94fae95ae7121a47"));
  Aead open = Aead::Create(key, Aead::Use::kOpen).value();
  ASSERT_TRUE(open.Open(header, data, tag));
  EXPECT_EQ(data, plain);
}

TEST(Aead, MessagesOpenInTheirOrderOnly) {
  const Key key = KeyFromHex("feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888");
  Aead seal = Aead::Create(key, Aead::Use::kSeal).value();
  std::vector<std::vector<std::byte>> messages;
  std::vector<std::array<std::byte, kTagBytes>> tags(3);
  for (size_t i = 0; i < tags.size(); ++i) {
    messages.emplace_back(40, static_cast<std::byte>(7));
    ASSERT_TRUE(seal.Seal({}, messages[i], tags[i]));
  }
  EXPECT_NE(messages[0], messages[1]);  // equal plaintexts
  const auto opens = [&](const std::vector<size_t>& order) {
    Aead open = Aead::Create(key, Aead::Use::kOpen).value();
    bool all = true;
    for (const size_t i : order) {
      std::vector<std::byte> message = messages[i];
      all = all && open.Open({}, message, tags[i]);
    }
    return all;
  };
  EXPECT_TRUE(opens({0, 1, 2}));
  EXPECT_FALSE(opens({0, 0}));
  EXPECT_FALSE(opens({1}));
  EXPECT_FALSE(opens({0, 2}));
}

}  // namespace
}  // namespace inccl::bootstrap
