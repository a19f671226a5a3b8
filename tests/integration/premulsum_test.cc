// SPDX-License-Identifier: Apache-2.0
//
// The premultiplied sum through whole communicators, with another scalar on every rank: types x
// reductions x algorithms x ranks, one rank included, against integer arithmetic. (Rounding and
// wrapping: identity_codec_test.cc.)
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "api/handles.h"
#include "api/values.h"
#include "api/world.h"
#include "world/algorithms.h"

namespace inccl::test {
namespace {

constexpr int kTypes = 12;
constexpr size_t kCount = 1031;

bool IsEightBitFloat(ccl_datatype_t type) {
  return type == CCL_FLOAT8E4M3 || type == CCL_FLOAT8E5M2;
}

// Sums over 8 ranks stay below 128, those of 8-bit floats have one term: exact in every type.
int64_t ValueOf(ccl_datatype_t type, int rank, size_t i) {
  const auto h =
      static_cast<int64_t>((static_cast<uint64_t>(rank) * 2654435761u + i * 40503u) >> 3);
  if (IsEightBitFloat(type))
    return static_cast<int>(i % 3) == rank % 3 && rank < 3 ? 1 + (h & 1) : 0;
  return h & 3;
}

int64_t FactorOf(ccl_datatype_t type, int rank) {
  const bool has_sign = type != CCL_UINT8 && type != CCL_UINT32 && type != CCL_UINT64;
  const int64_t factor = IsEightBitFloat(type) ? rank % 3 + 1 : rank % 4 + 2;
  return has_sign && rank % 2 == 1 ? -factor : factor;
}

double SumOf(ccl_datatype_t type, int n, size_t i) {
  int64_t sum = 0;
  for (int rank = 0; rank < n; ++rank) sum += ValueOf(type, rank, i) * FactorOf(type, rank);
  if (type == CCL_UINT8) sum &= 0xFF;
  return static_cast<double>(sum);
}

Call CallOf(Collective collective, ccl_datatype_t type, ccl_comm_t comm, void* send, void* recv) {
  const int rank = comm->impl->rank();
  Call call;
  call.nranks = comm->impl->nranks();
  call.rank = rank;
  call.collective = collective;
  call.type = static_cast<DataType>(type);
  call.op = ReduceOp::kPreMulSum;
  call.count = kCount;
  call.send = send;
  call.recv = recv;
  Store(type, call.scalar.data(), 0, FactorOf(type, rank));
  return call;
}

void CheckCall(Collective collective, ccl_datatype_t type, bool in_place, int n, int rank,
               ccl_comm_t comm) {
  const size_t element = SizeOfType(type);
  const bool scatters = collective == Collective::kReduceScatter;
  const size_t total = scatters ? kCount * static_cast<size_t>(n) : kCount;
  const size_t mine = scatters ? kCount * static_cast<size_t>(rank) : 0;
  std::vector<char> send(total * element), recv(kCount * element);
  for (size_t i = 0; i < total; ++i) Store(type, send.data(), i, ValueOf(type, rank, i));
  char* out = in_place ? send.data() + mine * element : recv.data();
  Call call = CallOf(collective, type, comm, send.data(), out);
  call.root = n - 1;
  const Status status = comm->impl->Run(call);
  ASSERT_TRUE(status.ok()) << status.message();
  if (collective == Collective::kReduce && rank != call.root) return;
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += Load(type, out, i) != SumOf(type, n, mine + i);
  EXPECT_EQ(wrong, 0u) << Name(collective) << " of type " << type << " n " << n << " in place "
                       << in_place;
}

class PreMulSum : public ::testing::TestWithParam<const char*> {};

TEST_P(PreMulSum, MultipliesEveryRanksOwnElementsOnce) {
  const ScopedEnv env({{"INCCL_ALGO", WhereItExists(GetParam()).c_str()}});
  for (const int n : kSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 5, 8}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      for (int type = 0; type < kTypes; ++type) {
        for (const bool in_place : {false, true}) {
          for (const Collective collective :
               {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
            CheckCall(collective, static_cast<ccl_datatype_t>(type), in_place, n, rank, comm);
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, PreMulSum,
                         ::testing::Values("ring", "tree", "recursive_doubling", "direct_one_shot",
                                           "direct_two_shot"),
                         [](const auto& test) { return std::string(test.param); });

// A compressed call of an operation that no codec has runs uncompressed and says so.
TEST(PreMulSumTest, RunsUncompressed) {
  for (const int n : {1, 2}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      std::vector<float> data(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        data[i] = static_cast<float>(ValueOf(CCL_FLOAT32, rank, i));
      }
      Call call = CallOf(Collective::kAllReduce, CCL_FLOAT32, comm, data.data(), data.data());
      ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
      stats.compressed = 1;
      call.compressed_call = true;
      call.codec = comm->impl->options().default_codec;
      call.stats = &stats;
      const Status status = comm->impl->Run(call);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(stats.compressed, 0);
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], SumOf(CCL_FLOAT32, n, i));
    });
  }
}

// The scalar is a rank's own business, the operation is not.
TEST(PreMulSumTest, AgainstAPlainSumIsAMismatch) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    std::vector<float> data(kCount);
    Call call = CallOf(Collective::kAllReduce, CCL_FLOAT32, comm, data.data(), data.data());
    ASSERT_TRUE(comm->impl->Run(call).ok());
    if (rank == 1) call.op = ReduceOp::kSum;
    Status status = comm->impl->Run(call);
    for (int i = 0; i < 3 && status.ok(); ++i) status = comm->impl->Run(call);
    EXPECT_EQ(status.code(), Code::kInvalidUsage) << status.message();
    EXPECT_NE(status.message().find("premulsum"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace inccl::test
