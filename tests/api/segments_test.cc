// SPDX-License-Identifier: Apache-2.0
//
// All-to-all, gather and scatter: every byte comes from where it should, whatever its type, in and
// out of place, as threads and as processes; and wrong arguments.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/buffer.h"
#include "api/values.h"
#include "api/world.h"

namespace inccl::test {
namespace {

const std::vector<size_t> kSizes = {0, 1, 3, 255, 257, 1000, 4099, 70001};
constexpr int kTypes = 12;

struct Case {
  ccl_datatype_t type;
  size_t count;
  bool in_place;
};

// Any bytes, different at every place of every rank's buffer.
char ByteOf(int rank, size_t at) {
  const uint64_t h = (static_cast<uint64_t>(rank) << 32 | (at + 1)) * 0x9E3779B97F4A7C15u;
  return static_cast<char>(h >> 56);
}

void FillBytes(int rank, size_t first, size_t size, char* out) {
  for (size_t i = 0; i < size; ++i) out[i] = ByteOf(rank, first + i);
}

size_t CountWrong(int rank, size_t first, size_t size, const char* data) {
  size_t wrong = 0;
  for (size_t i = 0; i < size; ++i) wrong += data[i] != ByteOf(rank, first + i);
  return wrong;
}

void CheckAllToAll(const Case& c, int n, int rank, ccl_comm_t comm) {
  const auto ranks = static_cast<size_t>(n);
  const size_t segment = c.count * SizeOfType(c.type);
  Buffer send(c.type, ranks * c.count), recv(c.type, ranks * c.count);
  FillBytes(rank, 0, ranks * segment, send.data());
  char* const out = c.in_place ? send.data() : recv.data();
  ASSERT_EQ(ccl_alltoall(send.data(), out, c.count, c.type, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t s = 0; s < ranks; ++s) {
    wrong += CountWrong(static_cast<int>(s), static_cast<size_t>(rank) * segment, segment,
                        out + s * segment);
  }
  EXPECT_EQ(wrong, 0u) << "alltoall type " << c.type << " count " << c.count << " n " << n;
  if (!c.in_place) {
    EXPECT_EQ(CountWrong(rank, 0, ranks * segment, send.data()), 0u) << "the input was written";
  }
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
}

void CheckGather(const Case& c, int n, int root, int rank, ccl_comm_t comm) {
  const auto ranks = static_cast<size_t>(n);
  const size_t segment = c.count * SizeOfType(c.type);
  Buffer send(c.type, c.count), recv(c.type, ranks * c.count);
  const bool in_place = c.in_place && rank == root;
  char* in = in_place ? recv.data() + static_cast<size_t>(rank) * segment : send.data();
  FillBytes(rank, 0, segment, in);
  ASSERT_EQ(
      ccl_gather(in, rank == root ? recv.data() : nullptr, c.count, c.type, root, comm, nullptr),
      CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = CountWrong(rank, 0, segment, in);
  for (size_t s = 0; rank == root && s < ranks; ++s) {
    wrong += CountWrong(static_cast<int>(s), 0, segment, recv.data() + s * segment);
  }
  EXPECT_EQ(wrong, 0u) << "gather root " << root << " type " << c.type << " count " << c.count
                       << " n " << n;
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
}

void CheckScatter(const Case& c, int n, int root, int rank, ccl_comm_t comm) {
  const auto ranks = static_cast<size_t>(n);
  const size_t segment = c.count * SizeOfType(c.type);
  const size_t mine = static_cast<size_t>(rank) * segment;
  Buffer send(c.type, ranks * c.count), recv(c.type, c.count);
  const bool in_place = c.in_place && rank == root;
  char* out = in_place ? send.data() + mine : recv.data();
  FillBytes(rank, 0, ranks * segment, send.data());
  ASSERT_EQ(
      ccl_scatter(rank == root ? send.data() : nullptr, out, c.count, c.type, root, comm, nullptr),
      CCL_SUCCESS)
      << ccl_get_last_error(comm);
  EXPECT_EQ(CountWrong(root, mine, segment, out), 0u)
      << "scatter root " << root << " type " << c.type << " count " << c.count << " n " << n;
  EXPECT_EQ(CountWrong(rank, 0, ranks * segment, send.data()), 0u) << "the send buffer was written";
  EXPECT_TRUE(send.GuardsIntact() && recv.GuardsIntact());
}

void CheckSegments(const Case& c, int n, int rank, ccl_comm_t comm) {
  CheckAllToAll(c, n, rank, comm);
  for (int root = 0; root < n; ++root) {
    CheckGather(c, n, root, rank, comm);
    CheckScatter(c, n, root, rank, comm);
  }
}

TEST(SegmentsTest, AllTypesAndSizesAsThreads) {
  for (const int n : kSanitized ? std::vector<int>{1, 2, 5} : std::vector<int>{1, 2, 3, 4, 7, 8}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      for (int type = 0; type < kTypes; ++type) {
        for (const bool in_place : {false, true}) {
          CheckSegments({static_cast<ccl_datatype_t>(type), 1031, in_place}, n, rank, comm);
        }
      }
      for (const size_t count : kSizes) {
        CheckSegments({CCL_FLOAT32, count, false}, n, rank, comm);
        CheckSegments({CCL_UINT8, count, true}, n, rank, comm);
      }
    });
  }
}

TEST(SegmentsTest, SmallSlicesAndManyChannels) {
  for (const char* channels : {"1", "8"}) {
    const ScopedEnv env({{"INCCL_SLICE_BYTES", "8192"}, {"INCCL_CHANNELS", channels}});
    for (const int n : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 5}) {
      RunThreads(n, [&](int rank, ccl_comm_t comm) {
        CheckSegments({CCL_FLOAT32, 70001, true}, n, rank, comm);
        CheckSegments({CCL_INT64, kSanitized ? 30001u : 200001u, false}, n, rank, comm);
      });
    }
  }
}

TEST(SegmentsTest, AsProcesses) {
  for (const int n : {2, 4, 7}) {
    RunProcesses(n, [&](int rank, ccl_comm_t comm) {
      for (const size_t count : kSizes) {
        CheckSegments({CCL_FLOAT64, count, count % 2 == 0}, n, rank, comm);
      }
      CheckSegments({CCL_BFLOAT16, 300007, true}, n, rank, comm);
    });
  }
}

// Many ranks: every lane between every two of them is there.
TEST(SegmentsTest, OfManyRanks) {
  const int n = kSanitized ? 12 : 32;
  RunThreads(n, [&](int rank, ccl_comm_t comm) {
    CheckAllToAll({CCL_INT32, 1001, false}, n, rank, comm);
    CheckGather({CCL_INT32, 1001, true}, n, n / 2, rank, comm);
    CheckScatter({CCL_INT32, 1001, true}, n, n - 1, rank, comm);
  });
}

void ExpectInvalid(ccl_result_t result, const char* what) {
  EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(what), std::string::npos)
      << "\"" << ccl_get_last_error(nullptr) << "\" does not say " << what;
}

TEST(SegmentsTest, WrongArgumentsAreNamedAndHarmless) {
  for (const int n : {1, 3}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      constexpr size_t kCount = 16;
      const size_t all = kCount * static_cast<size_t>(n), mine = kCount * static_cast<size_t>(rank);
      std::vector<float> a(2 * all, 1.0f), b(2 * all);
      const auto alltoall = [&](const float* send, float* recv, size_t count) {
        return ccl_alltoall(send, recv, count, CCL_FLOAT32, comm, nullptr);
      };
      // Every rank is the root of its own calls here: they all fail before they take part.
      const auto gather = [&](const float* send, float* recv, size_t count) {
        return ccl_gather(send, recv, count, CCL_FLOAT32, rank, comm, nullptr);
      };
      const auto scatter = [&](const float* send, float* recv, size_t count) {
        return ccl_scatter(send, recv, count, CCL_FLOAT32, rank, comm, nullptr);
      };
      ExpectInvalid(alltoall(a.data(), a.data() + 1, kCount),
                    "overlap and are not the in-place form");
      ExpectInvalid(alltoall(a.data(), a.data() + all - 1, kCount), "overlap");
      ExpectInvalid(alltoall(a.data() + all - 1, a.data(), kCount), "overlap");
      ExpectInvalid(alltoall(nullptr, b.data(), kCount), "send: NULL");
      ExpectInvalid(alltoall(a.data(), nullptr, kCount), "recv: NULL");
      ExpectInvalid(alltoall(a.data(), b.data(), SIZE_MAX / 4), "count");
      // A segment of the own buffer, but not this rank's.
      ExpectInvalid(gather(a.data() + mine + 1, a.data(), kCount), "overlap");
      ExpectInvalid(scatter(a.data(), a.data() + mine + 1, kCount), "overlap");
      if (n > 1) {
        const size_t other = (mine + kCount) % all;
        ExpectInvalid(gather(a.data() + other, a.data(), kCount), "overlap");
        ExpectInvalid(scatter(a.data(), a.data() + other, kCount), "overlap");
      }
      ExpectInvalid(gather(nullptr, b.data(), kCount), "send: NULL");
      ExpectInvalid(gather(a.data(), nullptr, kCount), "recv: NULL");
      ExpectInvalid(scatter(nullptr, b.data(), kCount), "send: NULL");
      ExpectInvalid(scatter(a.data(), nullptr, kCount), "recv: NULL");
      for (const int root : {-1, n}) {
        ExpectInvalid(ccl_gather(a.data(), b.data(), kCount, CCL_FLOAT32, root, comm, nullptr),
                      "root");
        ExpectInvalid(ccl_scatter(a.data(), b.data(), kCount, CCL_FLOAT32, root, comm, nullptr),
                      "root");
      }
      // Nothing of the above took a place in the order of calls. Segments side by side are apart.
      ASSERT_EQ(alltoall(a.data(), a.data() + all, kCount), CCL_SUCCESS)
          << ccl_get_last_error(comm);
      CheckSegments({CCL_FLOAT32, kCount, true}, n, rank, comm);
    });
  }
  ExpectInvalid(ccl_alltoall(nullptr, nullptr, 0, CCL_FLOAT32, nullptr, nullptr), "comm");
  ExpectInvalid(ccl_gather(nullptr, nullptr, 0, CCL_FLOAT32, 0, nullptr, nullptr), "comm");
  ExpectInvalid(ccl_scatter(nullptr, nullptr, 0, CCL_FLOAT32, 0, nullptr, nullptr), "comm");
}

}  // namespace
}  // namespace inccl::test
