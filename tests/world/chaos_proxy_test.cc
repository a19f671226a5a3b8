// SPDX-License-Identifier: Apache-2.0
//
// What the proxy of tests does to bytes, seen by plain sockets at both ends.
#include "world/chaos_proxy.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "world/baseline.h"
#include "world/clock.h"
#include "world/endpoint.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

using Way = ChaosProxy::Way;
using Stop = ChaosProxy::Stop;

constexpr int kLongMs = 60000 * kSlowness;  // until this a byte arrives that may
constexpr int kQuietMs = 50;                // for this long none arrives that may not

// One end of a connection. Reads wait.
class End {
 public:
  End() = default;
  explicit End(UniqueFd fd) : fd_(std::move(fd)) {}
  bool Send(const std::string& bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void SendEnd() { shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_.Reset(); }
  // One read: what is there, "end", or the errno.
  std::string ReadOnce(size_t most = 1 << 16) {
    std::string bytes(most, '\0');
    if (!Ready(kLongMs)) return "nothing";
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return "end";
    if (got < 0) return errno == ECONNRESET ? "reset" : "errno " + std::to_string(errno);
    bytes.resize(static_cast<size_t>(got));
    return bytes;
  }
  // So many bytes, in however many reads.
  std::string Read(size_t count) {
    std::string bytes;
    while (bytes.size() < count) {
      const std::string more = ReadOnce(count - bytes.size());
      bytes += more;
      if (more == "end" || more == "reset" || more == "nothing") break;
    }
    return bytes;
  }
  bool Quiet() const { return !Ready(kQuietMs); }

 private:
  bool Ready(int ms) const {
    pollfd ready{fd_.get(), POLLIN, 0};
    return TEMP_FAILURE_RETRY(poll(&ready, 1, ms)) == 1;
  }
  UniqueFd fd_;
};

class Server {
 public:
  explicit Server(const Endpoint& at)
      : endpoint_(at), fd_(socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    Listen(fd_.get(), &endpoint_);
  }
  const Endpoint& endpoint() const { return endpoint_; }
  End Accept() const { return End(UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

 private:
  Endpoint endpoint_;
  UniqueFd fd_;
};

class ChaosProxyTest : public ::testing::TestWithParam<const char*> {
 protected:
  Endpoint Anywhere() const { return Endpoint::Tcp(GetParam()); }
  End Client() const {
    UniqueFd fd(socket(proxy_.address().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), proxy_.address().get(), proxy_.address().length), 0) << errno;
    return End(std::move(fd));
  }
  // The next client with its end at the server.
  std::pair<End, End> Connection() const {
    End client = Client();
    End at_server = server_.Accept();
    return {std::move(client), std::move(at_server)};
  }

  const Baseline baseline_;
  const Server server_{Anywhere()};
  ChaosProxy proxy_{Anywhere(), server_.endpoint()};
};

TEST_P(ChaosProxyTest, WithoutFaultsBytesAndEndsArrive) {
  auto [client, server] = Connection();
  std::string big(3 << 20, '\0');  // more than all buffers between the ends
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 7 + i / 251);
  std::thread sender([&big, &client = client] {
    EXPECT_TRUE(client.Send(big));
    client.SendEnd();
  });
  EXPECT_TRUE(server.Read(big.size()) == big);
  EXPECT_EQ(server.ReadOnce(), "end");
  sender.join();
  EXPECT_TRUE(server.Send("answer")) << "the other direction is still open";
  EXPECT_EQ(client.Read(6), "answer");
  server.Close();
  EXPECT_EQ(client.ReadOnce(), "end");
  EXPECT_EQ(proxy_.connections(), 1U);
  EXPECT_TRUE(proxy_.Recorded(0, Way::kToServer) == big);
  EXPECT_EQ(proxy_.Recorded(0, Way::kToClient), "answer");
  EXPECT_EQ(proxy_.sent(0, Way::kToServer), big.size());
}

TEST_P(ChaosProxyTest, AWriteSplitsAtAnyByte) {
  const std::string text = "0123456789";
  for (size_t at = 0; at <= text.size(); ++at) {
    proxy_.SetFaults(at, Way::kToServer, {.stop_at = at});
    auto [client, server] = Connection();
    ASSERT_TRUE(client.Send(text));
    ASSERT_TRUE(proxy_.AwaitSent(at, Way::kToServer, at));
    if (at > 0) {
      EXPECT_EQ(server.ReadOnce(), text.substr(0, at));
    }
    if (at < text.size()) {
      EXPECT_TRUE(server.Quiet());
    }
    EXPECT_EQ(proxy_.sent(at, Way::kToServer), at);
    proxy_.SetFaults(at, Way::kToServer, {});
    EXPECT_EQ(server.Read(text.size() - at), text.substr(at));
  }
}

TEST_P(ChaosProxyTest, PiecesKeepTheirGap) {
  auto [client, server] = Connection();
  proxy_.SetFaults(0, Way::kToServer, {.piece = 3, .gap_seconds = 0.005});
  const double start = Seconds();
  ASSERT_TRUE(client.Send("0123456789"));
  EXPECT_EQ(server.Read(10), "0123456789");
  EXPECT_GE(Seconds() - start, 0.015);
}

TEST_P(ChaosProxyTest, ADelayIsTheLeastTimeOfAByte) {
  auto [client, server] = Connection();
  proxy_.SetFaults(0, Way::kToServer, {.delay_seconds = 0.03});
  const double start = Seconds();
  ASSERT_TRUE(client.Send("abc"));
  EXPECT_EQ(server.Read(3), "abc");
  EXPECT_GE(Seconds() - start, 0.03);
}

TEST_P(ChaosProxyTest, BitsFlipAtTheirOffsets) {
  proxy_.SetFaults(0, Way::kToClient, {.piece = 2, .flips = {{0, 0x01}, {3, 0x80}}});
  auto [client, server] = Connection();
  ASSERT_TRUE(server.Send("abcd"));
  EXPECT_EQ(client.Read(4), std::string("`bc\xE4"));
  ASSERT_TRUE(client.Send("abcd"));
  EXPECT_EQ(server.Read(4), "abcd") << "the other direction";
}

TEST_P(ChaosProxyTest, AnEndOrAResetAtAnOffset) {
  proxy_.SetFaults(0, Way::kToServer, {.stop_at = 2, .stop = Stop::kEnd});
  proxy_.SetFaults(1, Way::kToServer, {.stop_at = 2, .stop = Stop::kReset});
  auto [ended, after_end] = Connection();
  ASSERT_TRUE(ended.Send("abcd"));
  EXPECT_EQ(after_end.Read(2), "ab");
  EXPECT_EQ(after_end.ReadOnce(), "end");
  ASSERT_TRUE(after_end.Send("x"));
  EXPECT_EQ(ended.Read(1), "x") << "the other direction is still open";
  auto [reset, after_reset] = Connection();
  ASSERT_TRUE(reset.Send("abcd"));
  EXPECT_EQ(reset.ReadOnce(), "reset");
  std::string got = after_reset.ReadOnce();  // a reset may overtake the bytes before it
  if (got == "ab") got = after_reset.ReadOnce();
  EXPECT_EQ(got, "reset");
}

TEST_P(ChaosProxyTest, AResetAtOnceAndResetsOfTheEnds) {
  auto [client, server] = Connection();
  proxy_.Reset(0);
  EXPECT_EQ(client.ReadOnce(), "reset");
  EXPECT_EQ(server.ReadOnce(), "reset");
  auto [second, second_server] = Connection();
  ASSERT_TRUE(second_server.Send("unread"));
  ASSERT_TRUE(proxy_.AwaitSent(1, Way::kToClient, 6));
  second.Close();  // with a byte unread: a reset
  EXPECT_EQ(second_server.ReadOnce(), "reset");
}

TEST_P(ChaosProxyTest, ASilentCutTellsNoEnd) {
  auto [client, server] = Connection();
  proxy_.SetFaults(0, Way::kToServer, {.stop_at = 0});
  proxy_.SetFaults(0, Way::kToClient, {.stop_at = 0});
  ASSERT_TRUE(client.Send("lost"));
  client.Close();
  EXPECT_TRUE(server.Quiet());
  EXPECT_TRUE(server.Send("lost")) << "the server sees a peer that takes its bytes";
}

TEST_P(ChaosProxyTest, TwoConnectionsAreSpliced) {
  auto [a, server_a] = Connection();
  auto [b, server_b] = Connection();
  ASSERT_TRUE(a.Send("to a"));
  EXPECT_EQ(server_a.Read(4), "to a");
  proxy_.SetFaults(0, Way::kToServer, {.stop_at = 4});
  ASSERT_TRUE(a.Send("late"));
  proxy_.Splice(0, 1);
  proxy_.SetFaults(0, Way::kToServer, {});
  EXPECT_EQ(server_b.Read(4), "late");
  ASSERT_TRUE(b.Send("to b"));
  EXPECT_EQ(server_a.Read(4), "to b");
  ASSERT_TRUE(server_b.Send("from b"));
  EXPECT_EQ(a.Read(6), "from b");
}

TEST_P(ChaosProxyTest, AConnectionGoesToAnotherServer) {
  const Server other(Anywhere());
  proxy_.SetServer(1, other.endpoint());
  End first = Client();
  EXPECT_TRUE(proxy_.AwaitConnections(1));
  End second = Client();
  ASSERT_TRUE(second.Send("x"));
  EXPECT_EQ(other.Accept().Read(1), "x");
  ASSERT_TRUE(first.Send("y"));
  EXPECT_EQ(server_.Accept().Read(1), "y");
}

TEST_P(ChaosProxyTest, ARecordedStreamIsReplayed) {
  auto [victim, server] = Connection();
  ASSERT_TRUE(victim.Send("hello"));
  EXPECT_EQ(server.Read(5), "hello");
  auto [attacker, again] = Connection();
  proxy_.Inject(1, Way::kToServer, proxy_.Recorded(0, Way::kToServer));
  EXPECT_EQ(again.Read(5), "hello");
  proxy_.Inject(0, Way::kToServer, proxy_.Recorded(0, Way::kToServer));
  EXPECT_EQ(server.Read(5), "hello") << "into the same stream";
}

TEST_P(ChaosProxyTest, AServerThatRefusesIsAResetForTheClient) {
  Endpoint nowhere;
  {
    const Server gone(Anywhere());
    nowhere = gone.endpoint();
  }
  proxy_.SetServer(0, nowhere);
  EXPECT_EQ(Client().ReadOnce(), "reset");
}

// Those that this machine has.
std::vector<const char*> LoopbackAddresses() {
  std::vector<const char*> addresses = {"127.0.0.1"};
  const UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Endpoint ipv6 = Endpoint::Tcp("::1");
  if (fd.valid() && bind(fd.get(), ipv6.get(), ipv6.length) == 0) addresses.push_back("::1");
  return addresses;
}

INSTANTIATE_TEST_SUITE_P(Loopback, ChaosProxyTest, ::testing::ValuesIn(LoopbackAddresses()),
                         [](const auto& family) {
                           return family.param[0] == ':' ? "Ipv6" : "Ipv4";
                         });

}  // namespace
}  // namespace inccl::test
