// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "failure/shrink_agreement.h"

namespace inccl::test {
namespace {

// Delivers to one other object, as rank 1.
class Wire final : public ControlPlane {
 public:
  explicit Wire(Invitations* to) : ControlPlane(2), to_(to) {}
  void Send(int /*peer*/, uint8_t kind, std::span<const std::byte> body) override {
    EXPECT_TRUE(Invitations::Owns(kind));
    delivered_ = to_->OnMessage(1, body);
  }
  void Close(Time /*deadline*/) override {}
  bool delivered() const { return delivered_; }

 private:
  Invitations* const to_;
  bool delivered_ = false;
};

UniqueId IdOf(uint8_t number) {
  UniqueId id;
  id.server_key[0] = std::byte{number};
  return id;
}

class InvitationsTest : public ::testing::Test {
 protected:
  InvitationsTest() { sender_.Attach(&wire_); }
  Result<UniqueId> Await(uint64_t split, Time limit = 20 * kSecond) {
    return receiver_.Await(1, split, SystemClock().Now() + limit, &failed_);
  }

  Invitations receiver_{2}, sender_{2};
  Wire wire_{&receiver_};
  std::atomic<bool> failed_{false};
};

TEST_F(InvitationsTest, ArriveBeforeOrAfterTheyAreAwaited) {
  sender_.Send(0, 1, IdOf(7));
  EXPECT_EQ(Await(1)->name(), IdOf(7).name());
  std::thread late([&] { sender_.Send(0, 2, IdOf(8)); });
  EXPECT_EQ(Await(2)->name(), IdOf(8).name());
  late.join();
}

TEST_F(InvitationsTest, OfAnotherSplitAreAnError) {
  sender_.Send(0, 3, IdOf(7));
  EXPECT_EQ(Await(2).status().code(), Code::kInternalError);
}

TEST_F(InvitationsTest, TheWaitEnds) {
  const Status late = Await(1, 20 * kMillisecond).status();
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_NE(late.message().find("rank 1"), std::string::npos);
  failed_ = true;
  EXPECT_EQ(Await(1).status().code(), Code::kRemoteError);
}

TEST_F(InvitationsTest, MalformedOnesAreRefused) {
  std::vector<std::byte> body(8 + kUniqueIdBytes);
  IdOf(7).Encode(body.data() + 8);
  EXPECT_FALSE(receiver_.OnMessage(1, body)) << "split 0";
  body[0] = std::byte{1};
  EXPECT_FALSE(receiver_.OnMessage(1, std::span(body).first(body.size() - 1)));
  EXPECT_TRUE(receiver_.OnMessage(1, body));
  EXPECT_FALSE(receiver_.OnMessage(1, body)) << "a second time";
  body[0] = std::byte{2};
  body[9] ^= std::byte{1};
  EXPECT_FALSE(receiver_.OnMessage(1, body)) << "no id";
}

}  // namespace
}  // namespace inccl::test
