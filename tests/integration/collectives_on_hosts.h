// SPDX-License-Identifier: Apache-2.0
//
// Every uncompressed collective of a communicator, with integers whose results are known.
#ifndef INCCL_TESTS_INTEGRATION_COLLECTIVES_ON_HOSTS_H_
#define INCCL_TESTS_INTEGRATION_COLLECTIVES_ON_HOSTS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

inline int32_t Value(int rank, size_t i) {
  return static_cast<int32_t>((static_cast<size_t>(rank) + 1) * (i % 100003 + 1));
}

inline std::vector<int32_t> Values(int rank, size_t count) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

// Elements of `result` that are not expected(i).
template <typename T>
size_t Wrong(std::span<const T> result, const std::function<T(size_t)>& expected) {
  size_t wrong = 0;
  for (size_t i = 0; i < result.size(); ++i) wrong += result[i] != expected(i) ? 1 : 0;
  return wrong;
}
inline size_t Wrong(const std::vector<int32_t>& result,
                    const std::function<int32_t(size_t)>& expected) {
  return Wrong<int32_t>(std::span(result), expected);
}

class CollectivesOnHosts {
 public:
  CollectivesOnHosts(int rank, int nranks, ccl_comm_t comm, size_t count)
      : rank_(rank), nranks_(nranks), n_(static_cast<size_t>(nranks)), comm_(comm), count_(count) {}

  void RunAll() {
    AllReduce();
    ReduceScatter();
    AllGather();
    AllToAll();
    for (int root = 0; root < nranks_; ++root) Rooted(root);
    Sends();
  }

  void AllReduce() {
    std::vector<int32_t> data = Values(rank_, count_);
    Check(ccl_allreduce(data.data(), data.data(), count_, CCL_INT32, CCL_SUM, comm_, nullptr));
    EXPECT_EQ(Wrong(data, [&](size_t i) { return Sum(i); }), 0u) << "all-reduce";
  }

 private:
  int32_t Sum(size_t i) const {
    int32_t sum = 0;
    for (int rank = 0; rank < nranks_; ++rank) sum += Value(rank, i);
    return sum;
  }
  void Check(ccl_result_t result) const {
    EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm_);
  }

  void ReduceScatter() {
    const std::vector<int32_t> in = Values(rank_, count_ * n_);
    std::vector<int32_t> out(count_, -1);
    Check(ccl_reduce_scatter(in.data(), out.data(), count_, CCL_INT32, CCL_SUM, comm_, nullptr));
    const size_t first = static_cast<size_t>(rank_) * count_;
    EXPECT_EQ(Wrong(out, [&](size_t i) { return Sum(first + i); }), 0u) << "reduce-scatter";
  }

  void AllGather() {
    const std::vector<int32_t> in = Values(rank_, count_);
    std::vector<int32_t> out(count_ * n_, -1);
    Check(ccl_allgather(in.data(), out.data(), count_, CCL_INT32, comm_, nullptr));
    EXPECT_EQ(Wrong(out, [&](size_t i) { return Value(static_cast<int>(i / count_), i % count_); }),
              0u)
        << "all-gather";
  }

  void AllToAll() {
    const std::vector<int32_t> in = Values(rank_, count_ * n_);
    std::vector<int32_t> out(count_ * n_, -1);
    Check(ccl_alltoall(in.data(), out.data(), count_, CCL_INT32, comm_, nullptr));
    const size_t first = static_cast<size_t>(rank_) * count_;
    EXPECT_EQ(
        Wrong(out,
              [&](size_t i) { return Value(static_cast<int>(i / count_), first + i % count_); }),
        0u)
        << "all-to-all";
  }

  void Rooted(int root) {
    std::vector<int32_t> data = Values(rank_, count_);
    Check(ccl_broadcast(data.data(), data.data(), count_, CCL_INT32, root, comm_, nullptr));
    EXPECT_EQ(Wrong(data, [&](size_t i) { return Value(root, i); }), 0u) << "broadcast " << root;
    data = Values(rank_, count_);
    std::vector<int32_t> out(count_, -1);
    Check(ccl_reduce(data.data(), out.data(), count_, CCL_INT32, CCL_SUM, root, comm_, nullptr));
    EXPECT_EQ(Wrong(out, [&](size_t i) { return rank_ == root ? Sum(i) : -1; }), 0u)
        << "reduce " << root;
    std::vector<int32_t> all(rank_ == root ? count_ * n_ : 0, -1);
    Check(ccl_gather(data.data(), all.data(), count_, CCL_INT32, root, comm_, nullptr));
    EXPECT_EQ(Wrong(all, [&](size_t i) { return Value(static_cast<int>(i / count_), i % count_); }),
              0u)
        << "gather " << root;
    const std::vector<int32_t> from = Values(root, rank_ == root ? count_ * n_ : 0);
    Check(ccl_scatter(from.data(), out.data(), count_, CCL_INT32, root, comm_, nullptr));
    const size_t first = static_cast<size_t>(rank_) * count_;
    EXPECT_EQ(Wrong(out, [&](size_t i) { return Value(root, first + i); }), 0u)
        << "scatter " << root;
  }

  // Every rank to every other one at once.
  void Sends() {
    const std::vector<int32_t> in = Values(rank_, count_);
    std::vector<std::vector<int32_t>> out(n_, std::vector<int32_t>(count_, -1));
    Check(ccl_group_start());
    for (int peer = 0; peer < nranks_; ++peer) {
      if (peer == rank_) continue;
      Check(ccl_send(in.data(), count_, CCL_INT32, peer, comm_, nullptr));
      Check(
          ccl_recv(out[static_cast<size_t>(peer)].data(), count_, CCL_INT32, peer, comm_, nullptr));
    }
    Check(ccl_group_end());
    for (int peer = 0; peer < nranks_; ++peer) {
      if (peer == rank_) continue;
      EXPECT_EQ(Wrong(out[static_cast<size_t>(peer)], [&](size_t i) { return Value(peer, i); }), 0u)
          << "from " << peer;
    }
  }

  const int rank_, nranks_;
  const size_t n_;
  ccl_comm_t comm_;
  const size_t count_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_INTEGRATION_COLLECTIVES_ON_HOSTS_H_
