// SPDX-License-Identifier: Apache-2.0
//
// All operations on all types, as nccl-tests check them: 0 wrong elements. The inputs are small
// integers whose results every type holds exactly; the oracle computes with ints.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "nccl/ranks.h"

namespace inccl::test {
namespace {

constexpr int kTypes = 12, kOps = 5, kRanks = 4;
constexpr int kProd = 1, kMax = 2, kMin = 3, kAvg = 4;
constexpr size_t kBytes[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr size_t kCounts[] = {0, 1, 7, 1000};

// The bits of a float with these widths for 0 <= value <= 16.
uint32_t FloatBits(int value, int exponent_bits, int mantissa_bits) {
  if (value == 0) return 0;
  const int exponent = 31 - __builtin_clz(static_cast<unsigned>(value));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = (value << mantissa_bits >> exponent) - (1 << mantissa_bits);
  return static_cast<uint32_t>((exponent + bias) << mantissa_bits | mantissa);
}

void Store(int type, int value, std::byte* at) {
  uint64_t bits = static_cast<uint64_t>(value);
  const auto number = static_cast<double>(value);
  const auto single = static_cast<float>(value);
  switch (type) {
    case 6: bits = FloatBits(value, 5, 10); break;
    case 7: std::memcpy(&bits, &single, sizeof single); break;
    case 8: std::memcpy(&bits, &number, sizeof number); break;
    case 9: bits = FloatBits(value, 8, 7); break;
    case 10: bits = FloatBits(value, 4, 3); break;
    case 11: bits = FloatBits(value, 5, 2); break;
    default: break;
  }
  std::memcpy(at, &bits, kBytes[type]);
}

// Element i of a rank.
int Input(int op, size_t i, int rank) {
  const int odd = static_cast<int>(i * 7 + static_cast<size_t>(rank) * 3) % 2;
  switch (op) {
    case kProd: return 1 + odd;
    case kAvg: return 4 * odd;
    default: return odd + (op == kMax || op == kMin ? rank % 3 : 0);
  }
}

int Reduced(int op, size_t i) {
  int result = Input(op, i, 0);
  for (int rank = 1; rank < kRanks; ++rank) {
    const int value = Input(op, i, rank);
    switch (op) {
      case kProd: result *= value; break;
      case kMax: result = std::max(result, value); break;
      case kMin: result = std::min(result, value); break;
      default: result += value;
    }
  }
  return op == kAvg ? result / kRanks : result;
}

template <typename Value>
std::vector<std::byte> Make(int type, size_t count, const Value& value) {
  std::vector<std::byte> data(count * kBytes[type] + 1);
  for (size_t i = 0; i < count; ++i) Store(type, value(i), data.data() + i * kBytes[type]);
  return data;
}

struct Case {
  int rank, type;
  size_t count;
  NcclComm comm;

  template <typename Call, typename In, typename Out>
  void Check(const char* name, size_t in_count, size_t out_count, const In& in, const Out& out,
             const Call& call) const {
    const std::vector<std::byte> send = Make(type, in_count, in);
    std::vector<std::byte> recv(out_count * kBytes[type] + 1);
    EXPECT_EQ(call(send.data(), recv.data()), kSuccess) << ncclGetLastError(nullptr);
    size_t wrong = 0;
    const std::vector<std::byte> expected = Make(type, out_count, out);
    for (size_t i = 0; i < recv.size(); ++i) wrong += recv[i] != expected[i];
    EXPECT_EQ(wrong, 0U) << name << " type " << type << " count " << count << " rank " << rank;
  }
};

void Reductions(const Case& c, int op, int handle) {
  const auto in = [&](size_t i) { return Input(op, i, c.rank); };
  const auto out = [&](size_t i) { return Reduced(op, i); };
  c.Check("all-reduce", c.count, c.count, in, out, [&](const void* send, void* recv) {
    return ncclAllReduce(send, recv, c.count, c.type, handle, c.comm, nullptr);
  });
  const size_t first = static_cast<size_t>(c.rank) * c.count;
  c.Check(
      "reduce-scatter", kRanks * c.count, c.count, in,
      [&](size_t i) { return Reduced(op, first + i); },
      [&](const void* send, void* recv) {
        return ncclReduceScatter(send, recv, c.count, c.type, handle, c.comm, nullptr);
      });
  c.Check("reduce", c.count, c.rank == 2 ? c.count : 0, in, out, [&](const void* send, void* recv) {
    return ncclReduce(send, c.rank == 2 ? recv : nullptr, c.count, c.type, handle, 2, c.comm,
                      nullptr);
  });
}

void Moves(const Case& c) {
  const size_t all = kRanks * c.count;
  const auto value = [](int rank, size_t i) { return static_cast<int>((i + 5) % 4) + rank; };
  const auto mine = [&](size_t i) { return value(c.rank, i); };
  const auto segments = [&](size_t i) {
    return c.count == 0 ? 0 : value(static_cast<int>(i / c.count), i % c.count);
  };
  c.Check("all-gather", c.count, all, mine, segments, [&](const void* send, void* recv) {
    return ncclAllGather(send, recv, c.count, c.type, c.comm, nullptr);
  });
  c.Check("gather", c.count, c.rank == 1 ? all : 0, mine, segments,
          [&](const void* send, void* recv) {
            return ncclGather(send, recv, c.count, c.type, 1, c.comm, nullptr);
          });
  c.Check("scatter", all, c.count, segments, mine, [&](const void* send, void* recv) {
    return ncclScatter(send, recv, c.count, c.type, 3, c.comm, nullptr);
  });
  c.Check(
      "broadcast", c.count, c.count, mine, [&](size_t i) { return value(2, i); },
      [&](const void* send, void* recv) {
        return ncclBroadcast(send, recv, c.count, c.type, 2, c.comm, nullptr);
      });
  // Segment d of rank r is r + d: each rank gets r + its own number.
  const auto exchanged = [&](size_t i) {
    return c.count == 0 ? 0 : c.rank + static_cast<int>(i / c.count);
  };
  c.Check("all-to-all", all, all, exchanged, exchanged, [&](const void* send, void* recv) {
    return ncclAlltoAll(send, recv, c.count, c.type, c.comm, nullptr);
  });
  // In place, with segments that differ between any two ranks in both directions.
  const auto own = [&](size_t i) { return 1 + (c.rank + 2 * static_cast<int>(i / c.count)) % 3; };
  const auto theirs = [&](size_t i) {
    return 1 + (static_cast<int>(i / c.count) + 2 * c.rank) % 3;
  };
  std::vector<std::byte> buffer = Make(c.type, all, own);
  EXPECT_EQ(ncclAlltoAll(buffer.data(), buffer.data(), c.count, c.type, c.comm, nullptr), kSuccess)
      << ncclGetLastError(nullptr);
  EXPECT_EQ(buffer, Make(c.type, all, theirs)) << "all-to-all in place, type " << c.type;
  c.Check(
      "send and receive", c.count, c.count, mine,
      [&](size_t i) { return value((c.rank + kRanks - 1) % kRanks, i); },
      [&](const void* send, void* recv) {
        (void)ncclGroupStart();
        (void)ncclSend(send, c.count, c.type, (c.rank + 1) % kRanks, c.comm, nullptr);
        (void)ncclRecv(recv, c.count, c.type, (c.rank + kRanks - 1) % kRanks, c.comm, nullptr);
        return ncclGroupEnd();
      });
}

TEST(OperationsTest, EveryTypeAndOperation) {
  Ranks(kRanks, [](int rank, NcclComm comm) {
    for (int type = 0; type < kTypes; ++type) {
      for (const size_t count : kCounts) {
        const Case c{rank, type, count, comm};
        for (int op = 0; op < kOps; ++op) Reductions(c, op, op);
        Moves(c);
      }
    }
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(OperationsTest, PremultipliedSums) {
  Ranks(kRanks, [](int rank, NcclComm comm) {
    for (int type = 0; type < kTypes; ++type) {
      std::byte scalar[8];
      Store(type, 1, scalar);
      int op = -1;
      NCCL_OK(ncclRedOpCreatePreMulSum(&op, scalar, type, 1, comm));
      EXPECT_GE(op, kOps);
      Store(type, 3, scalar);  // read at the creation
      Reductions({rank, type, 100, comm}, kSum, op);
      NCCL_OK(ncclRedOpDestroy(op, comm));
    }
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(OperationsTest, TypesAndOperationsThatDoNotExist) {
  NcclComm comm = nullptr;
  NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
  float value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, kTypes, kSum, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, -1, kSum, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, kFloat32, kOps, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclSend(&value, 1, kTypes, 0, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclSend(&value, SIZE_MAX, kFloat64, 0, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(nullptr, &value, 1, kFloat32, kSum, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, kFloat32, kSum, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, kFloat32, kSum, comm, nullptr), kSuccess);
  NCCL_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace inccl::test
