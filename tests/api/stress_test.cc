// SPDX-License-Identifier: Apache-2.0
//
// Many ranks on few cores, two communicators each, a thread for each of them: random collectives,
// types, reductions, codecs, sizes and streams, every result verified. INCCL_TEST_OPERATIONS says
// how many operations per communicator (default: what fits into a test run), INCCL_TEST_SEED
// replays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "api/check.h"
#include "api/values.h"
#include "api/world.h"
#include "base/rng.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 16;
constexpr uint64_t kMostBits = 17;  // of the number of elements

uint64_t Seed() {
  const char* text = std::getenv("INCCL_TEST_SEED");
  return text == nullptr ? 20261121 : std::strtoull(text, nullptr, 10);
}

int Operations() {
  const char* text = std::getenv("INCCL_TEST_OPERATIONS");
  if (text != nullptr) return std::atoi(text);
  return kSanitized ? 200 : 5000;
}

// A draw that all ranks make alike.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t operation) : state_(Mix64(seed ^ Mix64(operation + 1))) {}
  uint64_t Below(uint64_t limit) {
    state_ = Mix64(state_ + 0x9E3779B97F4A7C15u);
    return state_ % limit;
  }

 private:
  uint64_t state_;
};

// Whole numbers whose sums every type holds: 8-bit floats have three significant bits.
int64_t Value(uint64_t operation, int rank, uint64_t index) {
  if (rank % 2 == 1) return 0;
  return static_cast<int64_t>(
      Mix64(operation * 1315423911u + static_cast<uint64_t>(rank) * 2654435761u + index) & 1);
}

struct Operation {
  int kind = 0;
  ccl_datatype_t type = CCL_FLOAT32;
  ccl_redop_t op = CCL_SUM;
  size_t count = 0;
  int root = 0;
  bool on_stream = false;
};

Operation MakeOperation(uint64_t seed, uint64_t number) {
  Draw draw(seed, number);
  Operation o;
  o.kind = static_cast<int>(draw.Below(11));
  o.type = static_cast<ccl_datatype_t>(draw.Below(12));
  o.op = static_cast<ccl_redop_t>(draw.Below(4));
  // Log-uniform, few large ones.
  const uint64_t bits = draw.Below(draw.Below(16) == 0 ? kMostBits + 1 : 11);
  o.count = static_cast<size_t>(draw.Below((uint64_t{1} << bits) + 1));
  o.root = static_cast<int>(draw.Below(kRanks));
  o.on_stream = draw.Below(4) == 0;
  return o;
}

int64_t Fold(ccl_redop_t op, uint64_t number, uint64_t index) {
  int64_t sum = 0, product = 1, most = 0, least = 1;
  for (int r = 0; r < kRanks; ++r) {
    const int64_t v = Value(number, r, index);
    sum += v;
    product *= v;
    most = std::max(most, v);
    least = std::min(least, v);
  }
  switch (op) {
    case CCL_SUM: return sum;
    case CCL_PROD: return product;
    case CCL_MAX: return most;
    default: return least;
  }
}

// Memory of this process alone. Slots that are used for the first time are shared memory, and come
// with the operations for a while.
size_t AnonymousKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  size_t kib = 0;
  while (status >> word) {
    if (word == "RssAnon:") status >> kib;
  }
  return kib;
}

bool HasSegments(int kind) { return kind == 1 || kind == 2 || (kind >= 5 && kind <= 7); }

class Worker {
 public:
  Worker(int rank, ccl_comm_t comm, uint64_t seed, ccl_stream_t stream)
      : rank_(rank),
        comm_(comm),
        seed_(seed),
        stream_(stream),
        send_(kMostBytes),
        recv_(kMostBytes) {}

  void Run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      One(static_cast<uint64_t>(i));
    }
  }

 private:
  static constexpr size_t kMostBytes = (size_t{1} << kMostBits) * 8 + 64;

  void One(uint64_t number) {
    const Operation o = MakeOperation(seed_, number);
    const size_t count = HasSegments(o.kind) ? o.count / kRanks : o.count;
    std::fill_n(recv_.begin(), std::min(kMostBytes, o.count * 8), 0x5a);
    const bool compressed = o.kind == 8;
    const ccl_datatype_t type = compressed ? CCL_FLOAT32 : o.type;
    const size_t vectors = o.kind == 1 || o.kind == 5 || o.kind == 7 ? kRanks : 1;
    for (size_t i = 0; i < count * vectors; ++i) {
      Store(type, send_.data(), i, Value(number, rank_, i));
    }
    Call(o, count, type, number);
    if (::testing::Test::HasFailure()) return;
    Verify(o, count, type, number);
  }

  void Call(const Operation& o, size_t count, ccl_datatype_t type, uint64_t number) {
    ccl_stream_t stream = o.on_stream ? stream_ : nullptr;
    void *in = send_.data(), *out = recv_.data();
    stats_ = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.stats = &stats_;
    compression.seed = number;
    const int next = (rank_ + 1) % kRanks, previous = (rank_ + kRanks - 1) % kRanks;
    switch (o.kind) {
      case 0: CHECK_OK(ccl_allreduce(in, out, count, type, o.op, comm_, stream)); break;
      case 1: CHECK_OK(ccl_reduce_scatter(in, out, count, type, o.op, comm_, stream)); break;
      case 2: CHECK_OK(ccl_allgather(in, out, count, type, comm_, stream)); break;
      case 3: CHECK_OK(ccl_broadcast(in, out, count, type, o.root, comm_, stream)); break;
      case 4: CHECK_OK(ccl_reduce(in, out, count, type, o.op, o.root, comm_, stream)); break;
      case 5: CHECK_OK(ccl_alltoall(in, out, count, type, comm_, stream)); break;
      case 6: CHECK_OK(ccl_gather(in, out, count, type, o.root, comm_, stream)); break;
      case 7: CHECK_OK(ccl_scatter(in, out, count, type, o.root, comm_, stream)); break;
      case 8:
        CHECK_OK(
            ccl_allreduce_compressed(in, out, count, type, CCL_SUM, &compression, comm_, stream));
        break;
      case 9:
        CHECK_OK(ccl_group_start());
        CHECK_OK(ccl_send(in, count, type, next, comm_, stream));
        CHECK_OK(ccl_recv(out, count, type, previous, comm_, stream));
        CHECK_OK(ccl_group_end());
        break;
      default: CHECK_OK(ccl_allreduce(in, in, count, type, o.op, comm_, stream)); break;
    }
    if (o.on_stream) CHECK_OK(ccl_stream_synchronize(stream));
  }

  void Expect(ccl_datatype_t type, const void* buffer, size_t index, int64_t value,
              const Operation& o, uint64_t number) {
    int64_t expected = 0;
    Store(type, &expected, 0, value);
    const size_t size = SizeOfType(type);
    ASSERT_EQ(std::memcmp(static_cast<const char*>(buffer) + index * size, &expected, size), 0)
        << "rank " << rank_ << " operation " << number << " kind " << o.kind << " type " << type
        << " op " << o.op << " element " << index << ", seed " << seed_;
  }

  void Verify(const Operation& o, size_t count, ccl_datatype_t type, uint64_t number) {
    const void* out = recv_.data();
    const auto rank = static_cast<size_t>(rank_);
    const bool is_root = rank_ == o.root;
    // A few places of every result, its ends among them: the sums of all of them would take longer
    // than the calls.
    const size_t step = std::max<size_t>(1, count / 17);
    for (size_t at = 0; at < count + step && count > 0; at += step) {
      const size_t i = std::min(at, count - 1);
      switch (o.kind) {
        case 0: Expect(type, out, i, Fold(o.op, number, i), o, number); break;
        case 1: Expect(type, out, i, Fold(o.op, number, rank * count + i), o, number); break;
        case 2:
          for (int r = 0; r < kRanks; ++r) {
            Expect(type, out, static_cast<size_t>(r) * count + i, Value(number, r, i), o, number);
          }
          break;
        case 3: Expect(type, out, i, Value(number, o.root, i), o, number); break;
        case 4:
          if (is_root) Expect(type, out, i, Fold(o.op, number, i), o, number);
          break;
        case 5:
          for (int r = 0; r < kRanks; ++r) {
            Expect(type, out, static_cast<size_t>(r) * count + i,
                   Value(number, r, rank * count + i), o, number);
          }
          break;
        case 6:
          for (int r = 0; r < kRanks && is_root; ++r) {
            Expect(type, out, static_cast<size_t>(r) * count + i, Value(number, r, i), o, number);
          }
          break;
        case 7: Expect(type, out, i, Value(number, o.root, rank * count + i), o, number); break;
        case 8: {
          float got = 0;
          std::memcpy(&got, static_cast<const char*>(out) + i * sizeof got, sizeof got);
          ASSERT_LE(std::fabs(got - static_cast<double>(Fold(CCL_SUM, number, i))),
                    stats_.error_bound * (1 + 1e-6))
              << "operation " << number;
          break;
        }
        case 9:
          Expect(type, out, i, Value(number, (rank_ + kRanks - 1) % kRanks, i), o, number);
          break;
        default: Expect(type, send_.data(), i, Fold(o.op, number, i), o, number); break;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  const int rank_;
  const ccl_comm_t comm_;
  const uint64_t seed_;
  const ccl_stream_t stream_;
  std::vector<char> send_, recv_;
  ccl_compression_stats_t stats_ = CCL_COMPRESSION_STATS_INIT;
};

TEST(StressTest, SixteenRanksTwoCommunicatorsEach) {
  const uint64_t seed = Seed();
  const int operations = Operations();
  std::printf("INCCL_TEST_SEED=%llu, %d operations on each of two communicators of %d ranks\n",
              static_cast<unsigned long long>(seed), operations, kRanks);
  RunProcesses(
      kRanks,
      [&](int rank, ccl_comm_t comm) {
        ccl_comm_t other = nullptr;
        ccl_stream_t streams[2] = {};
        CHECK_OK(ccl_comm_split(comm, 0, rank, &other, nullptr));
        for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
        Worker first(rank, comm, seed, streams[0]), second(rank, other, seed + 1, streams[1]);
        const auto both = [&](int count) {
          std::thread beside([&] { second.Run(count); });
          first.Run(count);
          beside.join();
        };
        both(operations / 3);  // opens all lanes, touches all memory
        const Holdings before = Holdings::Now();
        const size_t kib_before = AnonymousKib();
        both(operations);
        const Holdings after = Holdings::Now();
        const size_t kib_after = AnonymousKib();
        EXPECT_LE(after.fds, before.fds);  // those of the rendezvous may just be closing
        EXPECT_EQ(after.threads, before.threads);
        if (rank == 0)
          std::fprintf(stderr, "memory: %zu KiB, then %zu KiB\n", kib_before, kib_after);
        if (!kSanitized) {
          EXPECT_LT(kib_after, kib_before + (4u << 10));
        }
        for (ccl_stream_t stream : streams) CHECK_OK(ccl_stream_destroy(stream));
        CHECK_OK(ccl_comm_destroy(other));
      },
      3600 * 1000);
}

}  // namespace
}  // namespace inccl::test
