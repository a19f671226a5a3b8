// SPDX-License-Identifier: Apache-2.0
//
// The states of all ranks in one thread, with collectives made of plain loops: what the methods
// compute, without a communicator. The sums are those of exact codecs, in the order of ranks.
#ifndef INCCL_TESTS_REDUCE_LOCAL_RANKS_H_
#define INCCL_TESTS_REDUCE_LOCAL_RANKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "reduce/reducer.h"

namespace inccl::test {

using Vectors = std::vector<std::vector<float>>;

// Normal values; the scale changes every 100 elements.
inline Vectors NormalInputs(int n, size_t count, uint64_t seed) {
  Vectors inputs(static_cast<size_t>(n), std::vector<float>(count));
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  for (std::vector<float>& input : inputs) {
    for (size_t i = 0; i < count; ++i) {
      input[i] = std::ldexp(normal(engine), static_cast<int>(i / 100 % 5) - 2);
    }
  }
  return inputs;
}

inline std::shared_ptr<const Reducer> Make(const std::string& spec) {
  Result<std::shared_ptr<const Reducer>> made = MakeReducer(spec);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

class LocalRanks {
 public:
  LocalRanks(const std::string& spec, int n, uint64_t rows, uint64_t cols)
      : reducer_(Make(spec)), count_(rows * cols) {
    for (int rank = 0; rank < n; ++rank) {
      states_.push_back(reducer_->NewState({.rows = rows, .cols = cols}));
    }
  }

  size_t n() const { return states_.size(); }
  ReducerState* state(size_t rank) { return states_[rank].get(); }
  const Lineage& lineage() const { return lineage_; }
  // Bytes that rank 0 has given to the collectives of the last call, by round.
  const std::vector<size_t>& sent() const { return sent_; }

  // Runs a call and returns the results by rank. All ranks must get equal bits.
  Vectors Run(const Vectors& inputs, ReduceOp op = ReduceOp::kSum, uint64_t seed = 0) {
    const uint64_t step = states_[0]->calls();
    Vectors results(n(), std::vector<float>(count_));
    sent_.clear();
    for (size_t rank = 0; rank < n(); ++rank) {
      EXPECT_TRUE(states_[rank]->Take(lineage_).ok());
      CollectiveArgs args;
      args.op = op;
      args.nranks = static_cast<int>(n());
      args.rank = static_cast<int>(rank);
      args.seed = seed;
      args.step = step;
      states_[rank]->Begin(args, reinterpret_cast<const std::byte*>(inputs[rank].data()),
                           reinterpret_cast<std::byte*>(results[rank].data()));
    }
    for (int round = 0; round < states_[0]->rounds(); ++round) RunRound(round);
    for (size_t rank = 0; rank < n(); ++rank) {
      states_[rank]->WriteResult();
      states_[rank]->End(CallName{lineage_.number(), ++operation_});
      if (count_ > 0) {
        EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(), count_ * sizeof(float)), 0)
            << "rank " << rank << " has other bits";
      }
    }
    return results;
  }

  // By way of the exported state.
  std::vector<float> Residual(size_t rank) {
    const Result<std::vector<std::byte>> bytes = states_[rank]->Export();
    EXPECT_TRUE(bytes.ok());
    ByteReader reader(*bytes);
    std::string identity;
    uint64_t length = 0;
    EXPECT_TRUE(reader.Skip(6) && reader.String(&identity) && reader.Skip(8));
    EXPECT_TRUE(reader.U64(&length));
    std::vector<float> values(length);
    EXPECT_TRUE(reader.Raw(std::as_writable_bytes(std::span(values))));
    return values;
  }

 private:
  using Bytes = std::vector<std::byte>;

  template <typename T>
  static void Fold(const InnerCall& call, const std::vector<Bytes>& sent, Bytes* out) {
    *out = sent[0];
    for (size_t rank = 1; rank < sent.size(); ++rank) {
      for (uint64_t i = 0; i < call.count; ++i) {
        T a, b;
        std::memcpy(&a, out->data() + i * sizeof a, sizeof a);
        std::memcpy(&b, sent[rank].data() + i * sizeof b, sizeof b);
        if (call.op == ReduceOp::kMax) {
          a = std::max(a, b);
        } else {
          a = static_cast<T>(a + b);
        }
        std::memcpy(out->data() + i * sizeof a, &a, sizeof a);
      }
    }
    for (uint64_t i = 0; call.op == ReduceOp::kAvg && i < call.count; ++i) {
      T a;
      std::memcpy(&a, out->data() + i * sizeof a, sizeof a);
      a = static_cast<T>(a / static_cast<T>(sent.size()));
      std::memcpy(out->data() + i * sizeof a, &a, sizeof a);
    }
  }

  void RunAllToAll(int round, const InnerCall& call, const std::vector<Bytes>& sent) {
    const size_t segment = call.count * SizeOf(call.type);
    for (size_t rank = 0; rank < n(); ++rank) {
      Bytes out;
      for (const Bytes& part : sent) {
        ASSERT_EQ(part.size(), n() * segment);
        const auto first = part.begin() + static_cast<std::ptrdiff_t>(rank * segment);
        out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(segment));
      }
      const Status status = states_[rank]->Consume(round, out, {});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  void RunRound(int round) {
    std::vector<Bytes> sent(n());
    InnerCall first;
    for (size_t rank = 0; rank < n(); ++rank) {
      ASSERT_TRUE(states_[rank]->Produce(round, &sent[rank]).ok());
      const InnerCall call = states_[rank]->Call(round);
      if (rank == 0) first = call;
      ASSERT_EQ(call.count, first.count);
      ASSERT_EQ(call.root, first.root);
      ASSERT_EQ(call.collective, first.collective);
    }
    sent_.push_back(sent[0].size());
    Bytes out;
    if (first.collective == Collective::kAllToAll) {
      return RunAllToAll(round, first, sent);
    }
    if (first.collective == Collective::kAllGather) {
      for (const Bytes& part : sent) out.insert(out.end(), part.begin(), part.end());
    } else if (first.collective == Collective::kBroadcast) {
      out = sent[static_cast<size_t>(first.root)];
    } else if (first.type == DataType::kFloat32) {
      Fold<float>(first, sent, &out);
    } else if (first.type == DataType::kUint32) {
      Fold<uint32_t>(first, sent, &out);
    } else {
      ASSERT_EQ(first.type, DataType::kUint64);
      Fold<uint64_t>(first, sent, &out);
    }
    for (const std::unique_ptr<ReducerState>& state : states_) {
      const Status status = state->Consume(round, out, {});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  const std::shared_ptr<const Reducer> reducer_;
  const uint64_t count_;
  std::vector<std::unique_ptr<ReducerState>> states_;
  std::vector<size_t> sent_;
  const Lineage lineage_;
  uint64_t operation_ = 0;
};

// inputs + former residuals = result + residuals, summed over ranks; the result is a sum.
inline void ExpectConserved(LocalRanks* ranks, const Vectors& inputs, const Vectors& before,
                            const std::vector<float>& result, double tolerance) {
  std::vector<double> in(result.size()), out(result.begin(), result.end()), size(result.size());
  for (size_t rank = 0; rank < ranks->n(); ++rank) {
    const std::vector<float> after = ranks->Residual(rank);
    for (size_t i = 0; i < result.size(); ++i) {
      in[i] += static_cast<double>(inputs[rank][i]) + static_cast<double>(before[rank][i]);
      size[i] += std::fabs(inputs[rank][i]) + std::fabs(before[rank][i]);
      out[i] += static_cast<double>(after[i]);
    }
  }
  for (size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(in[i], out[i], tolerance * (size[i] + 1)) << "element " << i;
  }
}

inline Vectors Residuals(LocalRanks* ranks) {
  Vectors residuals;
  for (size_t rank = 0; rank < ranks->n(); ++rank) residuals.push_back(ranks->Residual(rank));
  return residuals;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_REDUCE_LOCAL_RANKS_H_
