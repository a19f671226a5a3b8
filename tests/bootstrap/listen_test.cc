// SPDX-License-Identifier: Apache-2.0
//
// INCCL_PORT_RANGE and INCCL_SOCKET_ALLOW: where ranks listen, and whom they hear.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <bitset>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"

namespace inccl::test {
namespace {

using bootstrap::AddressFilter;

sockaddr_storage Address(const std::string& text, uint16_t port = 0) {
  sockaddr_storage storage{};
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (text.find(':') == text.npos) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &v4->sin_addr), 1) << text;
  } else {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr), 1) << text;
  }
  return storage;
}

bool Admits(const std::string& list, const std::string& address) {
  const Result<AddressFilter> filter = AddressFilter::Parse(list);
  EXPECT_TRUE(filter.ok()) << filter.status().message();
  return filter.ok() && filter->Admits(Address(address));
}

TEST(AddressFilterTest, NetworksAndAddresses) {
  EXPECT_TRUE(Admits("", "192.0.2.1"));
  EXPECT_TRUE(Admits("", "2001:db8::1"));
  EXPECT_TRUE(Admits("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(Admits("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(Admits("192.0.2.7", "192.0.2.7"));
  EXPECT_FALSE(Admits("192.0.2.7", "192.0.2.6"));
  EXPECT_TRUE(Admits("10.0.0.0/8,2001:db8::/33", "2001:db8:7fff::1"));
  EXPECT_FALSE(Admits("10.0.0.0/8,2001:db8::/33", "2001:db8:8000::1"));
  EXPECT_FALSE(Admits("0.0.0.0/0", "::1"));
  EXPECT_TRUE(Admits("::/0", "::1"));
  EXPECT_FALSE(Admits("::/0", "127.0.0.1"));
}

// Against the addresses as strings of bits.
TEST(AddressFilterTest, EveryLengthOfPrefix) {
  const auto bits = [](uint32_t address) { return std::bitset<32>(address).to_string(); };
  const auto text = [](uint32_t a) {
    return fmt::format("{}.{}.{}.{}", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
  };
  const uint32_t network = 0xa53c0ff1;
  for (size_t length = 0; length <= 32; ++length) {
    for (int flipped = 0; flipped < 32; ++flipped) {
      const uint32_t address = network ^ (1u << flipped);
      EXPECT_EQ(Admits(fmt::format("{}/{}", text(network), length), text(address)),
                bits(network).substr(0, length) == bits(address).substr(0, length))
          << length << " " << flipped;
    }
  }
}

TEST(AddressFilterTest, WrongWordsAreNamed) {
  for (const char* wrong : {"10.0.0.0/33", "10.0.0/8", "2001:db8::/129", "host", "10.0.0.0/", "/8",
                            "10.0.0.0/-1", "10.0.0.0/8x", "\x1b[2J"}) {
    for (const std::string& list : {std::string(wrong), std::string("192.0.2.1,") + wrong}) {
      const Result<AddressFilter> filter = AddressFilter::Parse(list);
      ASSERT_FALSE(filter.ok()) << list;
      EXPECT_EQ(filter.status().code(), Code::kInvalidArgument);
      EXPECT_CONTAINS(filter.status().message(),
                      *wrong == 0x1b ? std::string("\\x1b[2J") : std::string(wrong));
    }
  }
  EXPECT_FALSE(AddressFilter::Parse(",10.0.0.0/8").ok());
}

UniqueIdAddress Loopback() {
  UniqueIdAddress address;
  address.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  return address;
}

// A range of so many ports that were free a moment ago.
PortRange FreeRange(int count) {
  for (int first = 20000 + getpid() % 20000;; first += count) {
    std::vector<UniqueFd> listeners;
    for (int i = 0; i < count; ++i) {
      UniqueIdAddress address = Loopback();
      address.port = static_cast<uint16_t>(first + i);
      Result<UniqueFd> made = bootstrap::Listen(bootstrap::SocketAddress::Tcp(address));
      if (!made.ok()) break;
      listeners.push_back(*std::move(made));
    }
    if (listeners.size() == static_cast<size_t>(count)) return {first, first + count - 1};
  }
}

TEST(PortRangeTest, EachPortIsUsedOnceAndThenTheErrorSaysSo) {
  const PortRange range = FreeRange(4);
  std::vector<UniqueFd> listeners;
  std::set<int> ports;
  for (int i = 0; i < 4; ++i) {
    UniqueIdAddress address = Loopback();
    Result<UniqueFd> made = bootstrap::ListenAt(&address, range);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(bootstrap::LocalPort(made->get()).value(), address.port);
    ports.insert(address.port);
    listeners.push_back(*std::move(made));
  }
  EXPECT_EQ(ports, (std::set<int>{range.first, range.first + 1, range.first + 2, range.last}));
  UniqueIdAddress address = Loopback();
  const Result<UniqueFd> full = bootstrap::ListenAt(&address, range);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), Code::kSystemError);
  EXPECT_CONTAINS(full.status().message(),
                  fmt::format("INCCL_PORT_RANGE={}-{}: each of these ports of 127.0.0.1 is in use",
                              range.first, range.last));
  listeners.pop_back();
  EXPECT_TRUE(bootstrap::ListenAt(&address, range).ok());
}

TEST(PortRangeTest, HoldsForTheMakerOfAnId) {
  const Baseline baseline;
  Environment environment = TestEnvironment();
  environment.port_range = FreeRange(3);
  const Result<UniqueId> id = CreateUniqueId(environment);
  ASSERT_TRUE(id.ok()) << id.status().message();
  for (const UniqueIdAddress& address : id->addresses) {
    EXPECT_GE(address.port, environment.port_range.first);
    EXPECT_LE(address.port, environment.port_range.last);
  }
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

// Whether the server greets a client with this address.
bool IsGreeted(const UniqueIdAddress& server, const char* client) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_storage from = Address(client);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(sockaddr_in)), 0);
  const bootstrap::SocketAddress to = bootstrap::SocketAddress::Tcp(server);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length), 0);
  bootstrap::ClientHandshake handshake;
  handshake.Start(nullptr, {}, {});
  (void)bootstrap::WriteSome(fd.get(), handshake.to_send());
  char c = 0;
  EXPECT_TRUE(bootstrap::WaitFor(fd.get(), POLLIN, SystemClock().Now() + 20 * kSecond * kSlowness));
  return recv(fd.get(), &c, 1, 0) == 1;
}

TEST(SocketAllowTest, OthersAreRefusedAndThisHostIsNot) {
  const Baseline baseline;
  const LogFile log;
  Environment environment = TestEnvironment();
  for (const auto& [list, from_elsewhere] :
       {std::pair("", true), {"127.0.0.2/31", true}, {"192.0.2.0/24,10.0.0.0/8", false}}) {
    environment.socket_allow = list;
    const Result<UniqueId> id = CreateUniqueId(environment);
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(IsGreeted(id->addresses[0], "127.0.0.2"), from_elsewhere) << list;
    EXPECT_TRUE(IsGreeted(id->addresses[0], "127.0.0.1")) << list;
    for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
      EXPECT_TRUE(mesh.ok()) << mesh.status().message();
    }
  }
  EXPECT_CONTAINS(log.Await("INCCL_SOCKET_ALLOW"), "refused a connection from 127.0.0.2:");
  EXPECT_CONTAINS(log.Text(), "INCCL_SOCKET_ALLOW does not admit it");
  environment.socket_allow = "everybody";
  EXPECT_EQ(CreateUniqueId(environment).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace inccl::test
