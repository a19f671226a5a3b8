// SPDX-License-Identifier: Apache-2.0
//
// Random operations on a communicator that all ranks draw alike: collectives, types, reductions,
// codecs, sizes and streams. The data are small whole numbers, so the results are known from the
// draws alone.
#ifndef INCCL_TESTS_API_RANDOM_OPERATIONS_H_
#define INCCL_TESTS_API_RANDOM_OPERATIONS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "api/values.h"
#include "base/rng.h"
#include "inccl/ccl.h"

namespace inccl::test {

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
inline int64_t DrawnValue(uint64_t operation, int rank, uint64_t index) {
  if (rank % 2 == 1) return 0;
  return static_cast<int64_t>(
      Mix64(operation * 1315423911u + static_cast<uint64_t>(rank) * 2654435761u + index) & 1);
}

struct RandomOperation {
  enum Kind : uint8_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kReduce,
    kAllToAll,
    kGather,
    kScatter,
    kCompressed,
    kSendRecv,  // to the next rank, from the previous one
    kInPlace,   // all-reduce
    kKinds
  };
  Kind kind = kAllReduce;
  ccl_datatype_t type = CCL_FLOAT32;
  ccl_redop_t op = CCL_SUM;
  size_t count = 0;  // per rank where the ranks have segments
  int root = 0;
  size_t codec = 0;  // index in OperationLimits::codecs
  bool on_stream = false;

  bool HasSegments() const {
    return kind == kReduceScatter || kind == kAllGather || (kind >= kAllToAll && kind <= kScatter);
  }
};

struct OperationLimits {
  size_t most_bytes = size_t{1} << 20;  // of a buffer
  std::vector<const char*> codecs = {"hbi:min_bytes=0"};
};

inline RandomOperation MakeOperation(uint64_t seed, uint64_t number, int nranks,
                                     const OperationLimits& limits) {
  constexpr uint64_t kMostBits = 17;  // of the number of elements
  Draw draw(seed, number);
  RandomOperation o;
  o.kind = static_cast<RandomOperation::Kind>(draw.Below(RandomOperation::kKinds));
  o.type = static_cast<ccl_datatype_t>(draw.Below(12));
  o.op = static_cast<ccl_redop_t>(draw.Below(4));
  // Log-uniform, few large ones.
  const uint64_t bits = draw.Below(draw.Below(16) == 0 ? kMostBits + 1 : 11);
  o.count = static_cast<size_t>(draw.Below((uint64_t{1} << bits) + 1));
  o.root = static_cast<int>(draw.Below(static_cast<uint64_t>(nranks)));
  o.on_stream = draw.Below(4) == 0;
  if (o.kind == RandomOperation::kCompressed) {
    o.type = CCL_FLOAT32;
    o.codec = draw.Below(limits.codecs.size());
  }
  o.count = std::min(o.count, limits.most_bytes / SizeOfType(o.type));
  if (o.HasSegments()) o.count /= static_cast<size_t>(nranks);
  return o;
}

inline int64_t Fold(ccl_redop_t op, int nranks, uint64_t number, uint64_t index) {
  int64_t sum = 0, product = 1, most = 0, least = 1;
  for (int r = 0; r < nranks; ++r) {
    const int64_t v = DrawnValue(number, r, index);
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

// Runs operations of one rank. A thread at a time.
class RandomOperationRunner {
 public:
  // `stream` is for the operations that are on one; nullptr: none is.
  RandomOperationRunner(int rank, int nranks, ccl_comm_t comm, uint64_t seed, ccl_stream_t stream,
                        const OperationLimits& limits)
      : rank_(rank),
        nranks_(nranks),
        comm_(comm),
        seed_(seed),
        stream_(stream),
        limits_(limits),
        codecs_(limits.codecs.size()),
        send_(limits.most_bytes + 64),
        recv_(limits.most_bytes + 64) {
    for (size_t i = 0; i < codecs_.size(); ++i) {
      EXPECT_EQ(ccl_codec_create(&codecs_[i], limits.codecs[i]), CCL_SUCCESS)
          << ccl_get_last_error(nullptr);
    }
  }
  ~RandomOperationRunner() {
    for (ccl_codec_t codec : codecs_) ccl_codec_destroy(codec);
  }
  RandomOperationRunner(const RandomOperationRunner&) = delete;
  RandomOperationRunner& operator=(const RandomOperationRunner&) = delete;

  // Runs the operations [first, first + count) up to the first error or wrong result. Returns the
  // error. A wrong result is a failure of the test.
  ccl_result_t Run(uint64_t first, uint64_t count) {
    for (uint64_t number = first; number < first + count; ++number) {
      if (::testing::Test::HasFailure()) return CCL_SUCCESS;
      const RandomOperation o = MakeOperation(seed_, number, nranks_, limits_);
      const ccl_result_t result = Call(o, number);
      if (result != CCL_SUCCESS) return result;
      Verify(o, number);
      ++completed_;
    }
    return CCL_SUCCESS;
  }
  uint64_t completed() const { return completed_; }

 private:
  ccl_result_t Call(const RandomOperation& o, uint64_t number) {
    ccl_stream_t stream = o.on_stream ? stream_ : nullptr;
    void *in = send_.data(), *out = recv_.data();
    const size_t size = SizeOfType(o.type);
    const auto n = static_cast<size_t>(nranks_);
    const bool sends_all = o.kind == RandomOperation::kReduceScatter ||
                           o.kind == RandomOperation::kAllToAll ||
                           o.kind == RandomOperation::kScatter;
    for (size_t i = 0; i < o.count * (sends_all ? n : 1); ++i) {
      Store(o.type, in, i, DrawnValue(number, rank_, i));
    }
    std::memset(out, 0x5a, o.count * size * (o.HasSegments() ? n : 1));
    stats_ = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codecs_[o.codec];
    how.stats = &stats_;
    how.seed = number;
    ccl_result_t result = CCL_SUCCESS;
    switch (o.kind) {
      case RandomOperation::kAllReduce:
        result = ccl_allreduce(in, out, o.count, o.type, o.op, comm_, stream);
        break;
      case RandomOperation::kReduceScatter:
        result = ccl_reduce_scatter(in, out, o.count, o.type, o.op, comm_, stream);
        break;
      case RandomOperation::kAllGather:
        result = ccl_allgather(in, out, o.count, o.type, comm_, stream);
        break;
      case RandomOperation::kBroadcast:
        result = ccl_broadcast(in, out, o.count, o.type, o.root, comm_, stream);
        break;
      case RandomOperation::kReduce:
        result = ccl_reduce(in, out, o.count, o.type, o.op, o.root, comm_, stream);
        break;
      case RandomOperation::kAllToAll:
        result = ccl_alltoall(in, out, o.count, o.type, comm_, stream);
        break;
      case RandomOperation::kGather:
        result = ccl_gather(in, out, o.count, o.type, o.root, comm_, stream);
        break;
      case RandomOperation::kScatter:
        result = ccl_scatter(in, out, o.count, o.type, o.root, comm_, stream);
        break;
      case RandomOperation::kCompressed:
        result = ccl_allreduce_compressed(in, out, o.count, o.type, CCL_SUM, &how, comm_, stream);
        break;
      case RandomOperation::kSendRecv: {
        result = ccl_group_start();
        const ccl_result_t sent =
            ccl_send(in, o.count, o.type, (rank_ + 1) % nranks_, comm_, stream);
        const ccl_result_t received =
            ccl_recv(out, o.count, o.type, (rank_ + nranks_ - 1) % nranks_, comm_, stream);
        const ccl_result_t ended = ccl_group_end();
        for (const ccl_result_t each : {sent, received, ended}) {
          if (result == CCL_SUCCESS) result = each;
        }
        break;
      }
      default: result = ccl_allreduce(in, in, o.count, o.type, o.op, comm_, stream); break;
    }
    if (stream == nullptr) return result;
    const ccl_result_t synchronized = ccl_stream_synchronize(stream);
    return result == CCL_SUCCESS ? synchronized : result;
  }

  void Expect(const RandomOperation& o, const void* buffer, size_t index, int64_t value,
              uint64_t number) {
    int64_t expected = 0;
    Store(o.type, &expected, 0, value);
    const size_t size = SizeOfType(o.type);
    ASSERT_EQ(std::memcmp(static_cast<const char*>(buffer) + index * size, &expected, size), 0)
        << "rank " << rank_ << " operation " << number << " kind " << int{o.kind} << " type "
        << o.type << " op " << o.op << " element " << index << ", seed " << seed_;
  }

  // A few places of every result, its ends among them: the sums of all of them would take longer
  // than the calls.
  void Verify(const RandomOperation& o, uint64_t number) {
    const size_t step = std::max<size_t>(1, o.count / 17);
    for (size_t at = 0; at < o.count + step && o.count > 0; at += step) {
      VerifyElement(o, std::min(at, o.count - 1), number);
      if (::testing::Test::HasFailure()) return;
    }
  }

  void VerifyElement(const RandomOperation& o, size_t i, uint64_t number) {
    const void* out = recv_.data();
    const auto rank = static_cast<size_t>(rank_);
    const int previous = (rank_ + nranks_ - 1) % nranks_;
    const auto sum = [&](size_t at) { return Fold(o.op, nranks_, number, at); };
    switch (o.kind) {
      case RandomOperation::kAllReduce: return Expect(o, out, i, sum(i), number);
      case RandomOperation::kReduceScatter:
        return Expect(o, out, i, sum(rank * o.count + i), number);
      case RandomOperation::kAllGather:
      case RandomOperation::kGather:
        if (o.kind == RandomOperation::kGather && rank_ != o.root) return;
        for (int r = 0; r < nranks_; ++r) {
          Expect(o, out, static_cast<size_t>(r) * o.count + i, DrawnValue(number, r, i), number);
        }
        return;
      case RandomOperation::kBroadcast:
        return Expect(o, out, i, DrawnValue(number, o.root, i), number);
      case RandomOperation::kReduce:
        if (rank_ == o.root) Expect(o, out, i, sum(i), number);
        return;
      case RandomOperation::kAllToAll:
        for (int r = 0; r < nranks_; ++r) {
          Expect(o, out, static_cast<size_t>(r) * o.count + i,
                 DrawnValue(number, r, rank * o.count + i), number);
        }
        return;
      case RandomOperation::kScatter:
        return Expect(o, out, i, DrawnValue(number, o.root, rank * o.count + i), number);
      case RandomOperation::kCompressed: {
        float got = 0;
        std::memcpy(&got, recv_.data() + i * sizeof got, sizeof got);
        const auto exact = static_cast<double>(Fold(CCL_SUM, nranks_, number, i));
        ASSERT_LE(std::fabs(got - exact), stats_.error_bound * (1 + 1e-6))
            << "rank " << rank_ << " operation " << number << " codec " << limits_.codecs[o.codec]
            << " element " << i << ", seed " << seed_;
        return;
      }
      case RandomOperation::kSendRecv:
        return Expect(o, out, i, DrawnValue(number, previous, i), number);
      default: return Expect(o, send_.data(), i, sum(i), number);
    }
  }

  const int rank_, nranks_;
  const ccl_comm_t comm_;
  const uint64_t seed_;
  const ccl_stream_t stream_;
  const OperationLimits limits_;
  std::vector<ccl_codec_t> codecs_;
  std::vector<char> send_, recv_;
  ccl_compression_stats_t stats_ = CCL_COMPRESSION_STATS_INIT;
  uint64_t completed_ = 0;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_RANDOM_OPERATIONS_H_
