// SPDX-License-Identifier: Apache-2.0
//
// Which calls a rank remembers, and with which it compares what peers say of theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "failure/liveness.h"

namespace inccl::test {
namespace {

constexpr uint64_t kKept = 64;

Call Of(uint64_t count) {
  Call call;
  call.count = count;
  return call;
}
CallRecord Record(uint64_t sequence, uint64_t count) {
  CallRecord record;
  record.Set(sequence, Of(count));
  return record;
}
// Call n has n elements.
void BeginUpTo(uint64_t last, CallHistory* history) {
  for (uint64_t n = history->latest() + 1; n <= last; ++n) {
    EXPECT_FALSE(history->Begin(n, Of(n)).has_value()) << n;
  }
}

TEST(CallHistoryTest, ComparesWithTheCallOfTheSameNumber) {
  CallHistory history(3);
  EXPECT_EQ(history.latest(), 0u);
  BeginUpTo(5, &history);
  for (uint64_t n = 1; n <= 5; ++n) {
    EXPECT_FALSE(history.Compare(1, Record(n, n)).has_value()) << n;
    const auto difference = history.Compare(1, Record(n, 99));
    ASSERT_TRUE(difference.has_value()) << n;
    EXPECT_EQ(difference->peer, 1);
    EXPECT_EQ(difference->ours.count, n);
    EXPECT_EQ(difference->theirs.count, 99u);
  }
}

// The lower rank comes first, on both ranks.
TEST(CallHistoryTest, BothRanksReportADifferenceInTheSameWords) {
  CallHistory two(4), three(4);
  BeginUpTo(1, &two);
  ASSERT_FALSE(three.Begin(1, Of(7)).has_value());
  const auto seen_by_two = two.Compare(3, Record(1, 7)),
             seen_by_three = three.Compare(2, Record(1, 1));
  ASSERT_TRUE(seen_by_two.has_value() && seen_by_three.has_value());
  EXPECT_EQ(seen_by_two->ToString(2, 4),
            "ranks disagree at op 1: rank 2/4 calls allreduce(count=1, float32, sum), rank 3/4 "
            "calls allreduce(count=7, float32, sum)");
  EXPECT_EQ(seen_by_three->ToString(3, 4), seen_by_two->ToString(2, 4));
}

// The last 64 calls are remembered; of an older one nothing is known.
TEST(CallHistoryTest, RemembersTheLastCalls) {
  CallHistory history(2);
  BeginUpTo(100, &history);
  for (uint64_t n = 1; n <= 100; ++n) {
    EXPECT_EQ(history.Compare(1, Record(n, 999)).has_value(), n > 100 - kKept) << n;
  }
}

// A record that is ahead waits for the call, each peer's own, and the newest of a peer counts.
TEST(CallHistoryTest, ARecordThatIsAheadWaitsForTheCall) {
  CallHistory history(4);
  BeginUpTo(1, &history);
  EXPECT_FALSE(history.Compare(1, Record(3, 3)).has_value());
  EXPECT_FALSE(history.Compare(2, Record(4, 77)).has_value());
  EXPECT_FALSE(history.Compare(3, Record(2, 88)).has_value());
  EXPECT_FALSE(history.Compare(3, Record(5, 5)).has_value()) << "the newest one";
  BeginUpTo(3, &history);
  const auto difference = history.Begin(4, Of(4));
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->peer, 2);
  EXPECT_EQ(difference->theirs.count, 77u);
  BeginUpTo(6, &history);  // it has been reported
}

TEST(CallHistoryTest, TheSignatureIsThatOfAllCalls) {
  CallHistory one(2), other(2), differs(2);
  BeginUpTo(3, &one);
  BeginUpTo(3, &other);
  BeginUpTo(1, &differs);
  EXPECT_FALSE(differs.Begin(2, Of(99)).has_value());
  EXPECT_FALSE(differs.Begin(3, Of(3)).has_value());
  EXPECT_EQ(one.signature(), other.signature());
  EXPECT_NE(one.signature(), differs.signature()) << "call 2 differed";
}

TEST(CallHistoryTest, NewsAreSentOnceAndEarlierRecordsInOrder) {
  for (const uint64_t calls :
       {uint64_t{1}, uint64_t{2}, uint64_t{5}, kKept, kKept + 1, uint64_t{200}}) {
    SCOPED_TRACE(calls);
    CallHistory history(2);
    BeginUpTo(calls, &history);
    std::vector<std::vector<std::byte>> news, earlier;
    for (int i = 0; i < 2; ++i) {
      history.AppendNews(&news);
      history.AppendEarlier(&earlier);
    }
    ASSERT_EQ(news.size(), 1u);
    EXPECT_EQ(CallRecord::Decode(news[0])->sequence, calls);
    const uint64_t kept = std::min(calls, kKept) - 1;
    ASSERT_EQ(earlier.size(), kept);
    for (uint64_t i = 0; i < kept; ++i) {
      const Result<CallRecord> record = CallRecord::Decode(earlier[i]);
      ASSERT_TRUE(record.ok()) << record.status().message();
      EXPECT_EQ(record->sequence, calls - kept + i);
      EXPECT_EQ(record->count, calls - kept + i);
    }
    BeginUpTo(calls + 1, &history);
    history.AppendNews(&news);
    EXPECT_EQ(news.size(), 2u);
  }
}

}  // namespace
}  // namespace inccl::test
