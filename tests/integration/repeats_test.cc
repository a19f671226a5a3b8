// SPDX-License-Identifier: Apache-2.0
//
// Calls that resemble earlier ones. A communicator keeps what it has found out about a kind of call
// (algorithm, schedule, how it is cut), in fewer places than there are kinds here; so kinds that
// differ in one respect follow each other in every order, again and again, and each result is
// compared with exact integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "api/buffer.h"
#include "api/check.h"
#include "api/values.h"
#include "api/world.h"
#include "base/rng.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;

enum class What { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce };

struct Kind {
  What what;
  ccl_datatype_t type;
  size_t count;
  int root;
};

// Counts that small messages, one slice, several slices and several parts are made of.
std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (const What what : {What::kAllReduce, What::kReduceScatter, What::kAllGather,
                          What::kBroadcast, What::kReduce}) {
    const bool rooted = what == What::kBroadcast || what == What::kReduce;
    for (const ccl_datatype_t type : {CCL_INT32, CCL_INT64}) {
      for (const size_t count : {size_t{1}, size_t{700}, size_t{1400}, size_t{40000}}) {
        for (int root = 0; root < (rooted ? kRanks : 1); ++root) {
          kinds.push_back({what, type, count, root});
        }
      }
    }
  }
  return kinds;
}

int64_t Value(uint64_t turn, int rank, size_t index) {
  return static_cast<int64_t>(Mix64(turn * 64 + static_cast<uint64_t>(rank) + index * 4096) % 1000);
}

int64_t Sum(uint64_t turn, size_t index) {
  int64_t sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += Value(turn, rank, index);
  return sum;
}

void RunKind(const Kind& kind, uint64_t turn, int rank, ccl_comm_t comm) {
  const size_t count = kind.count, all = count * kRanks;
  const size_t sends = kind.what == What::kReduceScatter ? all : count;
  const size_t receives = kind.what == What::kAllGather ? all : count;
  Buffer send(kind.type, sends), recv(kind.type, receives);
  for (size_t i = 0; i < sends; ++i) Store(kind.type, send.data(), i, Value(turn, rank, i));
  for (size_t i = 0; i < receives; ++i) Store(kind.type, recv.data(), i, -1);
  switch (kind.what) {
    case What::kAllReduce:
      CHECK_OK(ccl_allreduce(send.data(), recv.data(), count, kind.type, CCL_SUM, comm, nullptr));
      break;
    case What::kReduceScatter:
      CHECK_OK(
          ccl_reduce_scatter(send.data(), recv.data(), count, kind.type, CCL_SUM, comm, nullptr));
      break;
    case What::kAllGather:
      CHECK_OK(ccl_allgather(send.data(), recv.data(), count, kind.type, comm, nullptr));
      break;
    case What::kBroadcast:
      CHECK_OK(ccl_broadcast(send.data(), recv.data(), count, kind.type, kind.root, comm, nullptr));
      break;
    case What::kReduce:
      CHECK_OK(ccl_reduce(send.data(), recv.data(), count, kind.type, CCL_SUM, kind.root, comm,
                          nullptr));
      break;
  }
  const auto expected = [&](size_t i) -> int64_t {
    switch (kind.what) {
      case What::kAllReduce: return Sum(turn, i);
      case What::kReduceScatter: return Sum(turn, i + static_cast<size_t>(rank) * count);
      case What::kAllGather: return Value(turn, static_cast<int>(i / count), i % count);
      case What::kBroadcast: return Value(turn, kind.root, i);
      case What::kReduce: return rank == kind.root ? Sum(turn, i) : -1;
    }
    return 0;
  };
  size_t wrong = 0;
  for (size_t i = 0; i < receives; ++i) {
    wrong += Load(kind.type, recv.data(), i) != static_cast<double>(expected(i));
  }
  EXPECT_EQ(wrong, 0u) << "collective " << static_cast<int>(kind.what) << " type " << kind.type
                       << " count " << count << " root " << kind.root << " turn " << turn;
  EXPECT_TRUE(recv.GuardsIntact());
}

TEST(RepeatsTest, EveryOrderOfKindsHasExactResults) {
  const uint64_t seed = TestSeed();
  for (const char* transport : {"loopback", "shm"}) {
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
      const std::vector<Kind> kinds = AllKinds();
      Rng rng(seed);  // the same order on all ranks
      for (uint64_t turn = 0; turn < 500 && !::testing::Test::HasFailure(); ++turn) {
        // Often one of the last kinds again, with one thing changed.
        Kind kind = kinds[rng.Below(kinds.size())];
        RunKind(kind, turn, rank, comm);
        const uint64_t change = rng.Below(4);
        if (change == 0) kind.type = kind.type == CCL_INT32 ? CCL_INT64 : CCL_INT32;
        if (change == 1) kind.root = (kind.root + 1) % kRanks;
        if (change == 2) kind.count += 1;
        RunKind(kind, turn + 1000, rank, comm);
      }
    });
  }
}

}  // namespace
}  // namespace inccl::test
