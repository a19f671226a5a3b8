// SPDX-License-Identifier: Apache-2.0
//
// Every uncompressed collective against integer arithmetic: algorithms x types x operations x ranks
// x sizes, in and out of place, as threads and as processes. All-to-all, gather and scatter:
// segments_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "api/buffer.h"
#include "api/values.h"
#include "api/world.h"
#include "world/algorithms.h"

namespace inccl::test {
namespace {

// Sanitizers look at memory and threads, not at values, and are slow.
const std::vector<size_t> kSizes = kSanitized
                                       ? std::vector<size_t>{0, 1, 257, 4099, 40001}
                                       : std::vector<size_t>{0, 1, 3, 255, 257, 1000, 4099, 70001};
constexpr size_t kLong = kSanitized ? 40'007 : 300'007;
constexpr int kTypes = 12;

// A value whose sum over 8 ranks is exact in fp8 e5m2 too (2 mantissa bits): 0 or 1 on few ranks.
int64_t ValueFor(ccl_datatype_t type, ccl_redop_t op, int rank, size_t i) {
  const uint64_t h = (static_cast<uint64_t>(rank) * 2654435761u + i * 40503u) >> 3;
  if (op == CCL_PROD) return rank < 2 ? 1 + static_cast<int64_t>(h & 1) : 1;
  if (type == CCL_FLOAT8E4M3 || type == CCL_FLOAT8E5M2) {
    return rank == static_cast<int>(i % 3) ? 1 + static_cast<int64_t>(h & 1) : 0;
  }
  if (op == CCL_AVG) return 8 * static_cast<int64_t>(h & 1);
  return static_cast<int64_t>(h & 15);
}

double Reduce(ccl_datatype_t type, ccl_redop_t op, int n, size_t i) {
  int64_t r = ValueFor(type, op, 0, i);
  for (int rank = 1; rank < n; ++rank) {
    const int64_t v = ValueFor(type, op, rank, i);
    switch (op) {
      case CCL_PROD: r *= v; break;
      case CCL_MAX: r = std::max(r, v); break;
      case CCL_MIN: r = std::min(r, v); break;
      default: r += v;
    }
  }
  if (op != CCL_AVG) return static_cast<double>(r);
  return type <= CCL_UINT64 ? static_cast<double>(r / n) : static_cast<double>(r) / n;
}

bool Close(ccl_datatype_t type, ccl_redop_t op, int n, double got, double want) {
  const bool exact = op != CCL_AVG || type <= CCL_UINT64 || (n & (n - 1)) == 0;
  if (exact) return got == want;
  // x * (1/n), summed: n roundings of the format.
  const double eps = type == CCL_FLOAT64    ? 1e-14
                     : type == CCL_FLOAT32  ? 1e-6
                     : type == CCL_FLOAT16  ? 4e-3
                     : type == CCL_BFLOAT16 ? 3e-2
                                            : 0.5;
  return std::abs(got - want) <= eps * std::max(1.0, std::abs(want)) * n;
}

struct Case {
  ccl_datatype_t type;
  ccl_redop_t op;
  size_t count;
  bool in_place;
};

void CheckAllReduce(const Case& c, int n, int rank, ccl_comm_t comm) {
  Buffer send(c.type, c.count), recv(c.type, c.count);
  for (size_t i = 0; i < c.count; ++i)
    Store(c.type, send.data(), i, ValueFor(c.type, c.op, rank, i));
  char* out = c.in_place ? send.data() : recv.data();
  ASSERT_EQ(ccl_allreduce(send.data(), out, c.count, c.type, c.op, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < c.count; ++i) {
    if (!Close(c.type, c.op, n, Load(c.type, out, i), Reduce(c.type, c.op, n, i))) ++wrong;
  }
  EXPECT_EQ(wrong, 0u) << "type " << c.type << " op " << c.op << " count " << c.count << " n " << n;
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
  if (!c.in_place) {
    size_t changed = 0;
    for (size_t i = 0; i < c.count; ++i) {
      changed +=
          Load(c.type, send.data(), i) != static_cast<double>(ValueFor(c.type, c.op, rank, i));
    }
    EXPECT_EQ(changed, 0u) << "the send buffer was written";
  }
}

void CheckReduceScatter(const Case& c, int n, int rank, ccl_comm_t comm) {
  const size_t total = c.count * static_cast<size_t>(n), mine = c.count * static_cast<size_t>(rank);
  Buffer send(c.type, total), recv(c.type, c.count);
  for (size_t i = 0; i < total; ++i) Store(c.type, send.data(), i, ValueFor(c.type, c.op, rank, i));
  char* out = c.in_place ? send.data() + mine * SizeOfType(c.type) : recv.data();
  ASSERT_EQ(ccl_reduce_scatter(send.data(), out, c.count, c.type, c.op, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < c.count; ++i) {
    wrong += !Close(c.type, c.op, n, Load(c.type, out, i), Reduce(c.type, c.op, n, mine + i));
  }
  EXPECT_EQ(wrong, 0u) << "type " << c.type << " op " << c.op << " count " << c.count << " n " << n;
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
}

void CheckAllGather(const Case& c, int n, int rank, ccl_comm_t comm) {
  const size_t total = c.count * static_cast<size_t>(n), mine = c.count * static_cast<size_t>(rank);
  Buffer send(c.type, c.count), recv(c.type, total);
  char* in = c.in_place ? recv.data() + mine * SizeOfType(c.type) : send.data();
  for (size_t i = 0; i < c.count; ++i) Store(c.type, in, i, ValueFor(c.type, CCL_SUM, rank, i));
  ASSERT_EQ(ccl_allgather(in, recv.data(), c.count, c.type, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
    for (size_t i = 0; i < c.count; ++i) {
      wrong += Load(c.type, recv.data(), r * c.count + i) !=
               static_cast<double>(ValueFor(c.type, CCL_SUM, static_cast<int>(r), i));
    }
  }
  EXPECT_EQ(wrong, 0u) << "type " << c.type << " count " << c.count << " n " << n;
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
}

void CheckRooted(const Case& c, int n, int rank, ccl_comm_t comm) {
  for (int root = 0; root < n; ++root) {
    Buffer send(c.type, c.count), recv(c.type, c.count);
    for (size_t i = 0; i < c.count; ++i)
      Store(c.type, send.data(), i, ValueFor(c.type, c.op, rank, i));
    char* out = c.in_place ? send.data() : recv.data();
    ASSERT_EQ(ccl_broadcast(send.data(), out, c.count, c.type, root, comm, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    size_t wrong = 0;
    for (size_t i = 0; i < c.count; ++i) {
      wrong += Load(c.type, out, i) != static_cast<double>(ValueFor(c.type, c.op, root, i));
    }
    EXPECT_EQ(wrong, 0u) << "broadcast root " << root << " count " << c.count << " n " << n;

    for (size_t i = 0; i < c.count; ++i)
      Store(c.type, send.data(), i, ValueFor(c.type, c.op, rank, i));
    ASSERT_EQ(ccl_reduce(send.data(), rank == root ? out : nullptr, c.count, c.type, c.op, root,
                         comm, nullptr),
              CCL_SUCCESS)
        << ccl_get_last_error(comm);
    wrong = 0;
    for (size_t i = 0; rank == root && i < c.count; ++i) {
      wrong += !Close(c.type, c.op, n, Load(c.type, out, i), Reduce(c.type, c.op, n, i));
    }
    EXPECT_EQ(wrong, 0u) << "reduce root " << root << " count " << c.count << " n " << n;
    EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
  }
}

void CheckAll(const Case& c, int n, int rank, ccl_comm_t comm) {
  CheckAllReduce(c, n, rank, comm);
  CheckReduceScatter(c, n, rank, comm);
  CheckAllGather(c, n, rank, comm);
  CheckRooted(c, n, rank, comm);
}

class CollectivesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CollectivesTest, AllSizesTypesAndOpsAsThreads) {
  const ScopedEnv env({{"INCCL_ALGO", WhereItExists(GetParam()).c_str()}});
  const std::vector<int> sizes =
      kSanitized ? std::vector<int>{1, 2, 5} : std::vector<int>{1, 2, 3, 4, 7, 8};
  for (const int n : sizes) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      // Every type and operation at one odd size; every size with one type.
      for (int type = 0; type < kTypes; ++type) {
        for (int op = CCL_SUM; op <= CCL_AVG; ++op) {
          const Case c{static_cast<ccl_datatype_t>(type), static_cast<ccl_redop_t>(op), 1031,
                       (type + op) % 2 == 0};
          CheckAll(c, n, rank, comm);
        }
      }
      for (const size_t count : kSizes) {
        CheckAll({CCL_FLOAT32, CCL_SUM, count, false}, n, rank, comm);
        CheckAll({CCL_INT8, CCL_MAX, count, true}, n, rank, comm);
      }
    });
  }
}

TEST_P(CollectivesTest, SmallSlicesAndManyChannels) {
  for (const char* channels : {"1", "2", "8"}) {
    const ScopedEnv env(
        {{"INCCL_ALGO", WhereItExists(GetParam()).c_str()},
         {"INCCL_SLICE_BYTES", "8192"},
         {"INCCL_TEST_NT_STORE_BYTES", channels == std::string("1") ? "0" : "16777216"},
         {"INCCL_CHANNELS", channels}});
    for (const int n : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 5}) {
      RunThreads(n, [&](int rank, ccl_comm_t comm) {
        CheckAll({CCL_FLOAT32, CCL_SUM, kSizes.back(), true}, n, rank, comm);
        CheckAll({CCL_FLOAT64, CCL_MIN, 12345, false}, n, rank, comm);
        CheckAll({CCL_INT64, CCL_SUM, kLong / 4, false}, n, rank, comm);
      });
    }
  }
}

TEST_P(CollectivesTest, AsProcesses) {
  const ScopedEnv env({{"INCCL_ALGO", WhereItExists(GetParam()).c_str()}});
  for (const int n : kSanitized ? std::vector<int>{4} : std::vector<int>{2, 4, 7}) {
    RunProcesses(n, [&](int rank, ccl_comm_t comm) {
      for (const size_t count : kSizes) {
        CheckAll({CCL_FLOAT32, CCL_SUM, count, count % 2 == 0}, n, rank, comm);
      }
      CheckAll({CCL_BFLOAT16, CCL_SUM, kLong, false}, n, rank, comm);
    });
  }
}

// Over all that is not the default above.
TEST_P(CollectivesTest, OverEveryTransport) {
  for (const char* transport : ThreadTransports()) {
    const ScopedEnv env(
        {{"INCCL_ALGO", WhereItExists(GetParam()).c_str()}, {"INCCL_TRANSPORT", transport}});
    for (const int n : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 5}) {
      RunThreads(n, [&](int rank, ccl_comm_t comm) {
        for (const size_t count : kSizes) {
          CheckAll({CCL_FLOAT32, CCL_SUM, count, count % 2 == 0}, n, rank, comm);
        }
        CheckAll({CCL_FLOAT16, CCL_MAX, kLong, true}, n, rank, comm);
      });
    }
  }
  for (const char* transport : TransportSelections()) {
    const ScopedEnv env({{"INCCL_ALGO", WhereItExists(GetParam()).c_str()},
                         {"INCCL_TRANSPORT", transport},
                         {"INCCL_SLICE_BYTES", "16384"},
                         {"INCCL_CHANNELS", "2"}});
    RunProcesses(4, [&](int rank, ccl_comm_t comm) {
      CheckAll({CCL_FLOAT32, CCL_SUM, 4099, false}, 4, rank, comm);
      CheckAll({CCL_INT64, CCL_SUM, kLong / 2, true}, 4, rank, comm);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CollectivesTest,
                         ::testing::Values("ring", "tree", "recursive_doubling", "direct_one_shot",
                                           "direct_two_shot"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace inccl::test
