// SPDX-License-Identifier: Apache-2.0
//
// What peers send becomes errors with texts that fit a terminal. A rank that waits for long says
// which ranks are missing.
#include "failure/liveness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "collectives/call.h"
#include "compress/codec.h"

namespace inccl::test {
namespace {

// What a peer says of itself goes into messages, and what it says must not act on a terminal.
TEST(LivenessTest, TextsOfPeersAreFitForATerminal) {
  constexpr int kRanks = 3;
  const std::vector<std::string> names = {"a:1", "a:2", "a:3"};
  const std::string evil = "\x1b[2J\nboom", shown = R"(\x1b[2J\x0aboom)";
  {
    ShrinkAgreement shrink_agreement(0, kRanks, names);
    Invitations invitations(kRanks);
    StickyError sticky_error(false, nullptr);
    Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, &sticky_error,
                      &shrink_agreement, &invitations);
    ByteWriter error;
    error.U32(static_cast<uint32_t>(Code::kSystemError));
    error.String(evil);
    liveness.OnMessage(2, /*kError*/ 2, error.bytes());
    EXPECT_EQ(sticky_error.error().code(), Code::kSystemError);
    EXPECT_EQ(sticky_error.error().message(),
              "rank 0/3 before any op: peer 2@a:3 reports: " + shown);
  }
  // Codes of a caller's own mistakes are no news of a failure.
  for (const Code code : {Code::kInvalidArgument, Code::kInProgress}) {
    ShrinkAgreement shrink_agreement(0, kRanks, names);
    Invitations invitations(kRanks);
    StickyError sticky_error(false, nullptr);
    Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, &sticky_error,
                      &shrink_agreement, &invitations);
    ByteWriter error;
    error.U32(static_cast<uint32_t>(code));
    error.String("wrong");
    liveness.OnMessage(2, /*kError*/ 2, error.bytes());
    EXPECT_EQ(sticky_error.error().code(), Code::kInternalError);
    EXPECT_NE(sticky_error.error().message().find("peer 2"), std::string::npos);
  }
  ShrinkAgreement shrink_agreement(0, kRanks, names);
  Invitations invitations(kRanks);
  StickyError sticky_error(false, nullptr);
  Liveness liveness({.rank = 0, .nranks = kRanks, .peer_names = names}, &sticky_error,
                    &shrink_agreement, &invitations);
  uint64_t signature = 0;
  ASSERT_TRUE(liveness.BeginCall(1, Call{}, &signature).ok());
  CallRecord record;
  record.Set(1, Call{});
  record.codec = evil;
  liveness.OnMessage(1, /*kRecord*/ 1, record.Encode());
  EXPECT_EQ(sticky_error.error().code(), Code::kInvalidUsage);
  EXPECT_NE(sticky_error.error().message().find("rank 1/3 calls allreduce"), std::string::npos);
  EXPECT_NE(sticky_error.error().message().find("codec=" + shown), std::string::npos)
      << sticky_error.error().message();
}

// Ranks whose messages arrive at once; a rank that is stopped gets none.
class Ranks {
 public:
  explicit Ranks(int n) {
    std::vector<std::string> names;
    for (int rank = 0; rank < n; ++rank) names.push_back("host:" + std::to_string(rank + 100));
    for (int rank = 0; rank < n; ++rank) {
      shrink_agreement_.push_back(std::make_unique<ShrinkAgreement>(rank, n, names));
      sticky_errors_.push_back(std::make_unique<StickyError>(false, nullptr));
      ranks_.push_back(std::make_unique<Liveness>(
          LivenessOptions{.rank = rank, .nranks = n, .peer_names = names},
          sticky_errors_.back().get(), shrink_agreement_.back().get(), &invitations_));
      planes_.push_back(std::make_unique<Plane>(rank, n, this));
      sticky_errors_.back()->Attach(planes_.back().get());
      ranks_.back()->Attach(planes_.back().get());
    }
  }
  Liveness& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int stopped = -1;

 private:
  class Plane final : public ControlPlane {
   public:
    Plane(int rank, int nranks, Ranks* ranks) : ControlPlane(nranks), rank_(rank), ranks_(ranks) {}
    void Send(int peer, uint8_t kind, std::span<const std::byte> body) override {
      if (peer != rank_ && peer != ranks_->stopped) (*ranks_)[peer].OnMessage(rank_, kind, body);
    }
    void Close(Time /*flush_deadline*/) override {}

   private:
    const int rank_;
    Ranks* const ranks_;
  };

  Invitations invitations_{0};  // none is sent
  std::vector<std::unique_ptr<ShrinkAgreement>> shrink_agreement_;
  std::vector<std::unique_ptr<StickyError>> sticky_errors_;
  std::vector<std::unique_ptr<Liveness>> ranks_;
  std::vector<std::unique_ptr<Plane>> planes_;
};

// Waits for one peer and gets nothing.
class Waiting final : public Request {
 public:
  explicit Waiting(int peer) : peer_(peer) {}
  Result<int> Advance(int /*budget*/) override { return 0; }
  bool done() const override { return false; }
  Blocked blocked_on() const override { return {.on = Blocked::On::kSlice, .peer = peer_}; }
  void AppendAwaited(std::vector<int>* peers) const override { peers->push_back(peer_); }
  int mismatched_peer() const override { return -1; }

 private:
  const int peer_;
};

class WarningTest : public ::testing::Test {
 protected:
  WarningTest() : file_(::testing::TempDir() + "inccl-liveness-" + std::to_string(getpid())) {
    EXPECT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, file_).ok());
  }
  ~WarningTest() override {
    EXPECT_TRUE(ConfigureLog(LogLevel::kNone, kDefaultLogSubsystems, "").ok());
    std::remove(file_.c_str());
  }

  static void Begin(Liveness* rank, uint64_t sequence) {
    Call call;
    call.count = 8;
    uint64_t signature = 0;
    EXPECT_TRUE(rank->BeginCall(sequence, call, &signature).ok());
  }
  // A stall of a rank that waits for `peer`, looked at every 20 ms between two ages.
  static Status Stall(Liveness* rank, int peer, Time from, Time to) {
    const Waiting request(peer);
    for (Time stalled = from; stalled <= to; stalled += 20 * kMillisecond) {
      if (Status status = rank->OnStall(request, std::vector<int>{peer}, stalled); !status.ok()) {
        return status;
      }
    }
    return Status::Ok();
  }
  std::vector<std::string> Warnings() const {
    std::ifstream in(file_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  const std::string file_;
};

TEST_F(WarningTest, AfterTenSecondsInACallTheMissingRanksAreNamedOnce) {
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    Begin(&ranks[rank], 1);
    ranks[rank].EndCall();
  }
  // Rank 0 waits for 1, and 1 for 2; 3 is missing as well.
  Begin(&ranks[0], 2);
  Begin(&ranks[1], 2);
  EXPECT_TRUE(Stall(&ranks[1], 2, 0, kSecond).ok());
  EXPECT_TRUE(Stall(&ranks[0], 1, 0, 9980 * kMillisecond).ok());
  EXPECT_TRUE(Warnings().empty());
  EXPECT_TRUE(Stall(&ranks[0], 1, 10 * kSecond, 60 * kSecond).ok());
  ASSERT_EQ(Warnings().size(), 1u);
  const std::string text = Warnings()[0];
  EXPECT_NE(
      text.find("WARN rank 0/4 in op 2 allreduce(count=8, float32, sum): no progress for 10 s, "
                "waiting for peer 2@host:102: it is alive, outside the library after op 1; peer "
                "3@host:103: it is alive, outside the library after op 1"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find("peer 1@"), std::string::npos) << text;
  ranks[0].EndCall();
  Begin(&ranks[0], 3);  // another call, another line
  EXPECT_TRUE(Stall(&ranks[0], 1, 0, 20 * kSecond).ok());
  EXPECT_EQ(Warnings().size(), 2u);
}

// What a peer says of itself must be of now: a stall of before, whose rank has gone on or is busy
// with something else, is not part of a circle, and its ranks are not blamed.
TEST_F(WarningTest, AStallOfBeforeIsNoStall) {
  for (const bool goes_on : {false, true}) {
    SCOPED_TRACE(goes_on);
    Ranks ranks(3);
    std::vector<Call> calls(1);
    calls[0].kind = CallKind::kRecv;
    for (int rank = 0; rank < 3; ++rank) ranks[rank].BeginSendRecv(&calls);
    // A circle of 0 -> 1 -> 2 -> 0 as each of them sees it.
    EXPECT_TRUE(Stall(&ranks[1], 2, 2 * kSecond, 2 * kSecond).ok());
    EXPECT_TRUE(Stall(&ranks[2], 0, 2 * kSecond, 2 * kSecond).ok());
    if (goes_on) {
      // Rank 2 has got what it waited for, and is in its next receive.
      ranks[2].EndCall();
      ranks[2].BeginSendRecv(&calls);
    } else {
      // Rank 2 has not looked for so long that it may have got it.
      usleep(300000);
      EXPECT_TRUE(Stall(&ranks[1], 2, 2300 * kMillisecond, 2300 * kMillisecond).ok());
    }
    EXPECT_TRUE(Stall(&ranks[0], 1, 2300 * kMillisecond, 2500 * kMillisecond).ok());
    const RankStatus two = ranks[0].RankStatuses()[2];
    EXPECT_EQ(two.state, RankStatus::State::kAnswered);
    EXPECT_EQ(two.position.stalled, 0);
    EXPECT_TRUE(two.position.awaits.empty());
    // Now it looks, and waits indeed.
    EXPECT_TRUE(Stall(&ranks[1], 2, 3 * kSecond, 3 * kSecond).ok());
    Status status = Stall(&ranks[2], 0, 3 * kSecond, 3 * kSecond);
    if (status.ok()) status = Stall(&ranks[0], 1, 3 * kSecond, 5 * kSecond);
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    EXPECT_NE(status.message().find("the ranks wait for each other"), std::string::npos)
        << status.message();
  }
}

// The silent one is missing, whatever it said before.
TEST_F(WarningTest, ARankThatDoesNotAnswerIsNamed) {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) Begin(&ranks[rank], 1);
  EXPECT_TRUE(Stall(&ranks[0], 1, 10 * kSecond, 10 * kSecond).ok());
  ranks.stopped = 2;
  EXPECT_TRUE(Stall(&ranks[0], 1, 600 * kSecond, 600 * kSecond).ok());
  usleep(static_cast<useconds_t>(Positions::kAnswerLimit / 1000));
  const Status status = Stall(&ranks[0], 1, 602 * kSecond, 602 * kSecond);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("waiting for peer 2@host:102: it has not answered for "),
            std::string::npos)
      << status.message();
  EXPECT_EQ(status.message().find("peer 1@"), std::string::npos) << status.message();
}

// The record of a call has the version of its codec's format, so ranks with another one differ.
TEST(CallRecord, VersionsOfAFormatDiffer) {
  Call call;
  call.codec = *MakeCodec("hbi");
  CallRecord here;
  here.Set(3, call);
  EXPECT_EQ(here.codec, call.codec->identity());
  EXPECT_NE(here.codec, call.codec->spec());
  CallRecord there = here;
  there.codec = call.codec->spec() + " (format 1)";
  EXPECT_FALSE(here.SameCall(there));
  EXPECT_NE(here.Signature(), there.Signature());
}

}  // namespace
}  // namespace inccl::test
