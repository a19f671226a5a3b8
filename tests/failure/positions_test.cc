// SPDX-License-Identifier: Apache-2.0
//
// Which ranks wait for each other, from the positions that they have answered.
#include "failure/positions.h"

#include <gtest/gtest.h>

#include <vector>

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
