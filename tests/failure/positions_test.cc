// SPDX-License-Identifier: Apache-2.0
//
// Which ranks wait for each other, from the positions that they have answered.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "failure/liveness.h"

namespace inccl::test {
namespace {

constexpr Time kNow = 100 * kSecond;

Position At(uint64_t sequence, bool in_collective, std::vector<int> awaits,
            Time stalled = 2 * kSecond) {
  return {.sequence = sequence,
          .in_call = true,
          .in_collective = in_collective,
          .stalled = stalled,
          .awaits = std::move(awaits),
          .place = "somewhere"};
}

// Rank 0 has sends and receives after collective 34 and waits for rank 1, that for 2, that for 0.
std::vector<int> CircleOf(const Position& one, const Position& two) {
  Positions positions(0, 3);
  positions.Asked(kNow - kMillisecond);
  positions.Answered(1, one, kNow);
  positions.Answered(2, two, kNow);
  const int awaited[] = {1};
  return positions.Circle(34, awaited, kSecond, kNow);
}

const std::vector<int> kBoth = {1, 2}, kNone;

TEST(PositionsTest, CirclesOfSendsReceivesAndCollectives) {
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(34, false, {0})), kBoth);
  EXPECT_EQ(CircleOf(At(35, true, {2}), At(34, false, {0})), kBoth);
  EXPECT_EQ(CircleOf(At(34, true, {2}), At(34, true, {0})), kBoth);
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(34, false, {1})), kNone);
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(34, false, {0}, kSecond / 2)), kNone) << "it moves";
}

TEST(PositionsTest, WhoHasBegunALaterCollectiveHasDoneItsPart) {
  // Rank 1 waits in collective 33 for data of rank 2, which are on their way: rank 2 is in 35.
  EXPECT_EQ(CircleOf(At(33, true, {2}), At(35, true, {0})), kNone);
  // So are those of this rank, for a rank that is behind.
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(33, true, {0})), kNone);
  // A send or a receive may match none that its peer has made before its collective.
  EXPECT_EQ(CircleOf(At(33, false, {2}), At(35, true, {0})), kBoth);
}

// What is as old, or has stalled as long, as the limit says.
TEST(PositionsTest, LimitsOfTimeAreMetExactly) {
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(34, false, {0}, kSecond)), kBoth);
  EXPECT_EQ(CircleOf(At(34, false, {2}), At(34, false, {0}, kSecond - 1)), kNone);
  const int awaited[] = {1};
  for (const bool late : {false, true}) {
    Positions positions(0, 3);
    positions.Asked(kNow - Positions::kFresh);
    positions.Answered(1, At(34, false, {2}), kNow);
    positions.Answered(2, At(34, false, {0}), kNow - Positions::kFresh - (late ? 1 : 0));
    EXPECT_EQ(positions.Circle(34, awaited, kSecond, kNow), late ? kNone : kBoth);
  }
  Positions positions(0, 3);
  EXPECT_TRUE(positions.IsComplete(kNow)) << "nobody has been asked";
  positions.Asked(kNow);
  positions.Asked(kNow + kSecond / 2);  // the first unanswered question counts
  positions.Answered(1, At(5, true, {2}), kNow + kSecond / 2);
  const Time limit = kNow + Positions::kAnswerLimit;
  EXPECT_FALSE(positions.IsComplete(limit - 1));
  EXPECT_EQ(positions.StatusOf(2, limit - 1).state, RankStatus::State::kUnknown);
  EXPECT_TRUE(positions.IsComplete(limit)) << "the silent one does not answer any more";
  EXPECT_EQ(positions.StatusOf(2, limit).state, RankStatus::State::kSilent);
  EXPECT_EQ(positions.StatusOf(2, limit).silence, Positions::kAnswerLimit);
}

// Who keeps rank 0 from finishing collective 5, in this order: ranks outside that have not begun
// it, silent ones, ranks in an earlier call, then the end of the chain.
TEST(PositionsTest, TheMissingAreThoseOfTheFirstGroup) {
  const int awaited[] = {1};
  const auto missing = [&](std::vector<std::pair<int, Position>> answers) {
    Positions positions(0, 5);
    positions.Asked(kNow - Positions::kAnswerLimit);
    for (auto& [peer, position] : answers) positions.Answered(peer, std::move(position), kNow);
    return positions.Missing(5, awaited, kNow);
  };
  Position outside_before, outside_in_time;
  outside_before.sequence = 4;
  outside_in_time.sequence = 5;
  const Position in_it = At(5, true, {2});
  EXPECT_EQ(missing({{1, in_it}, {2, outside_before}, {3, At(4, true, {4})}}), std::vector<int>{2})
      << "rank 4 is silent, rank 3 in an earlier call";
  EXPECT_EQ(missing({{1, in_it}, {2, in_it}, {3, At(4, true, {4})}}), std::vector<int>{4});
  EXPECT_EQ(missing({{1, in_it}, {2, in_it}, {3, At(4, true, {4})}, {4, in_it}}),
            std::vector<int>{3});
  EXPECT_EQ(missing({{1, in_it}, {2, At(5, true, {3})}, {3, outside_in_time}, {4, in_it}}),
            std::vector<int>{3})
      << "the chain 1, 2, 3 ends there";
  EXPECT_EQ(missing({{1, in_it}, {2, At(5, true, {1})}, {3, in_it}, {4, in_it}}),
            std::vector<int>{1})
      << "a circle ends at its first rank";
}

TEST(PositionsTest, APositionSurvivesTheWire) {
  for (const bool in_collective : {false, true}) {
    const Position sent = At(7, in_collective, {0, 2});
    const Result<Position> read = Position::Decode(sent.Encode(), 3);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->sequence, 7u);
    EXPECT_TRUE(read->in_call);
    EXPECT_EQ(read->in_collective, in_collective);
    EXPECT_EQ(read->awaits, sent.awaits);
  }
  Position outside;
  EXPECT_FALSE(Position::Decode(outside.Encode(), 3)->in_call);
  std::vector<std::byte> wrong = outside.Encode();
  wrong[8] = std::byte{3};
  EXPECT_FALSE(Position::Decode(wrong, 3).ok());
}

}  // namespace
}  // namespace inccl::test
