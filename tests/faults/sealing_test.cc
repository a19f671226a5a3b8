// SPDX-License-Identifier: Apache-2.0
//
// An allocation fails while a data connection takes a frame: the frame is not sealed, so that the
// frames that are sent have the nonces 0, 1, 2, ... once each, and no payload is encrypted twice.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "faults/fault_test.h"
#include "faults/interposer.h"
#include "transport/tcp/tcp_connection.h"

namespace inccl::test {
namespace {

using bootstrap::Aead;
using bootstrap::Key;
using tcp::Connection;
using tcp::FrameGuard;
using tcp::FrameHeader;
using tcp::FrameKind;
using tcp::Protection;

constexpr size_t kPayload = 4096, kFrames = 60;

Key KeyOf(int number) {
  bootstrap::Mac bytes{};
  bytes[0] = static_cast<std::byte>(number);
  return Key(bytes);
}

FrameGuard Guard(Protection protection, int key, Aead::Use use) {
  return FrameGuard::Create(protection, KeyOf(key), use).value();
}

std::byte Pattern(size_t frame, size_t i) { return static_cast<std::byte>(31 * frame + i * i); }

// Expects the frames of the test in order: every third has no payload.
class Receiver final : public tcp::FrameSink {
 public:
  std::byte* PlaceOf(const FrameHeader& header, std::string* wrong) override {
    if (header.bytes != kPayload) *wrong = "another size";
    return wrong->empty() ? payload_.data() : nullptr;
  }
  std::string Arrived(const FrameHeader& header) override {
    const uint64_t number = header.kind == FrameKind::kSlice ? header.seq : header.credit;
    EXPECT_EQ(number, arrived_);
    for (size_t i = 0; i < header.bytes; ++i) {
      if (payload_[i] == Pattern(arrived_, i)) continue;
      ADD_FAILURE() << "byte " << i << " of frame " << arrived_;
      break;
    }
    ++arrived_;
    return "";
  }
  uint64_t arrived() const { return arrived_; }

 private:
  std::array<std::byte, kPayload> payload_{};
  uint64_t arrived_ = 0;
};

class SealingTest : public FaultTest {
 protected:
  static void Run(Protection protection);
};

void SealingTest::Run(Protection protection) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  constexpr int kSmall = 4096;  // so that frames wait in the queue, which grows
  ASSERT_EQ(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kSmall, sizeof kSmall), 0);
  Receiver receiver, nothing;
  Connection out("sender", protection, &nothing), in("receiver", protection, &receiver);
  out.Open(UniqueFd(ends[0]), Guard(protection, 1, Aead::Use::kSeal),
           Guard(protection, 2, Aead::Use::kOpen));
  in.Open(UniqueFd(ends[1]), Guard(protection, 2, Aead::Use::kSeal),
          Guard(protection, 1, Aead::Use::kOpen));

  struct alignas(64) Frame {
    FrameHeader header;
    std::array<std::byte, kPayload> payload;
    bool in_flight;
  };
  std::vector<Frame> frames(kFrames);
  const auto send = [&](size_t number) {
    Frame& frame = frames[number];
    if (number % 3 != 2) return out.Send(reinterpret_cast<std::byte*>(&frame), &frame.in_flight);
    FrameHeader credit;
    credit.credit_lane = 1;
    credit.credit = number;
    return out.Send(credit);
  };
  int failures = 0;
  for (size_t number = 0; number < kFrames; ++number) {
    Frame& frame = frames[number];
    frame.header.kind = FrameKind::kSlice;
    frame.header.lane = 1;
    frame.header.bytes = kPayload;
    frame.header.seq = number;
    for (size_t i = 0; i < kPayload; ++i) frame.payload[i] = Pattern(number, i);
    Status sent;
    interposer::Arm({.function = interposer::kNew});
    try {
      sent = send(number);
      interposer::Disarm();
    } catch (const std::bad_alloc&) {
      interposer::Disarm();
      ++failures;
      sent = send(number);
    }
    ASSERT_TRUE(sent.ok()) << sent.message();
  }
  EXPECT_GE(failures, 2);  // the queue's first memory, and more when frames waited
  EXPECT_TRUE(out.unsent());

  for (int turn = 0; turn < 1000 && receiver.arrived() < kFrames; ++turn) {
    out.SetWritable();
    out.Flush();
    in.SetReadable(false);
    const Result<int> got = in.Receive();
    ASSERT_TRUE(got.ok()) << got.status().message();
  }
  EXPECT_EQ(receiver.arrived(), kFrames);
  EXPECT_FALSE(out.unsent());
}

TEST_F(SealingTest, Row19_AFrameForWhichMemoryLacksIsSealedOnce) {
  ForRow("19", "tcp");
  for (const Protection protection : {Protection::kNone, Protection::kAuth, Protection::kEncrypt}) {
    SCOPED_TRACE(tcp::Name(protection));
    Run(protection);
  }
}

}  // namespace
}  // namespace inccl::test
