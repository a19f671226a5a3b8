// SPDX-License-Identifier: Apache-2.0
//
// One operation of every collective and algorithm, compressed ones too, with a check of its result.
#ifndef INCCL_TESTS_FAULTS_OPERATION_CASES_H_
#define INCCL_TESTS_FAULTS_OPERATION_CASES_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

struct Operation {
  const char* collective;
  const char* algorithm;  // as INCCL_ALGO; nullptr: there is no choice
  bool compressed = false;
  bool registered = false;  // buffers of ccl_mem_alloc

  std::string Name() const {
    return std::string(collective) + (compressed ? "_compressed_" : "_") +
           (registered ? "registered_" : "") + (algorithm == nullptr ? "" : algorithm);
  }
};

inline std::vector<Operation> AllOperations() {
  std::vector<Operation> all;
  for (const char* algorithm :
       {"ring", "tree", "recursive_doubling", "direct_one_shot", "direct_two_shot"}) {
    all.push_back({"allreduce", algorithm});
  }
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct_two_shot"}) {
    all.push_back({"allreduce", algorithm, true});
  }
  for (const char* collective : {"reduce_scatter", "allgather", "broadcast", "reduce"}) {
    all.push_back({collective, "ring"});
    all.push_back({collective, "direct"});
  }
  all.push_back({"allreduce", "direct_two_shot", false, true});
  for (const char* collective : {"reduce_scatter", "allgather", "broadcast"}) {
    all.push_back({collective, "direct", false, true});
  }
  all.push_back({"broadcast", "tree"});
  all.push_back({"reduce", "tree"});
  for (const char* collective : {"alltoall", "gather", "scatter", "sendrecv"}) {
    all.push_back({collective, nullptr});
  }
  return all;
}

// Runs an operation again and again on constant inputs whose result is known.
class OperationRunner {
 public:
  OperationRunner(const Operation& operation, int rank, int nranks, size_t count)
      : operation_(operation),
        rank_(rank),
        nranks_(static_cast<size_t>(nranks)),
        count_(count),
        own_(operation.registered ? 0 : 2 * count * nranks_),
        registered_(operation.registered ? Allocate(2 * count * nranks_) : nullptr),
        send_(operation.registered ? registered_.get() : own_.data(), count * nranks_),
        recv_(send_.data() + send_.size(), send_.size()) {}

  ccl_result_t Run(ccl_comm_t comm, float value) {
    value_ = value;
    std::fill(send_.begin(), send_.end(), value * static_cast<float>(rank_ + 1));
    std::fill(recv_.begin(), recv_.end(), -1.0f);
    const std::string name = operation_.collective;
    float* const send = send_.data();
    float* const recv = recv_.data();
    if (operation_.compressed) {
      ccl_compression_t compression = CCL_COMPRESSION_INIT;
      compression.stats = &stats_;
      return ccl_allreduce_compressed(send, recv, count_, CCL_FLOAT32, CCL_SUM, &compression, comm,
                                      nullptr);
    }
    if (name == "allreduce") {
      return ccl_allreduce(send, recv, count_, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    }
    if (name == "reduce_scatter") {
      return ccl_reduce_scatter(send, recv, count_, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    }
    if (name == "allgather") return ccl_allgather(send, recv, count_, CCL_FLOAT32, comm, nullptr);
    if (name == "broadcast") {
      return ccl_broadcast(send, recv, count_, CCL_FLOAT32, kRoot, comm, nullptr);
    }
    if (name == "alltoall") return ccl_alltoall(send, recv, count_, CCL_FLOAT32, comm, nullptr);
    if (name == "gather") {
      return ccl_gather(send, recv, count_, CCL_FLOAT32, kRoot, comm, nullptr);
    }
    if (name == "scatter") {
      return ccl_scatter(send, recv, count_, CCL_FLOAT32, kRoot, comm, nullptr);
    }
    if (name == "sendrecv") return ShiftByOne(comm);
    return ccl_reduce(send, recv, count_, CCL_FLOAT32, CCL_SUM, kRoot, comm, nullptr);
  }

  // Whether what the last successful call gave is right.
  bool Right() const {
    const std::string name = operation_.collective;
    if ((name == "reduce" || name == "gather") && rank_ != kRoot) return true;
    const bool segments = name == "allgather" || name == "gather" || name == "alltoall";
    const size_t elements = segments ? count_ * nranks_ : count_;
    const size_t left = (static_cast<size_t>(rank_) + nranks_ - 1) % nranks_;
    const double sum = value_ * static_cast<double>(nranks_ * (nranks_ + 1) / 2);
    for (size_t i = 0; i < elements; ++i) {
      double expected = sum;
      if (segments) expected = value_ * static_cast<double>(i / count_ + 1);
      if (name == "broadcast" || name == "scatter") expected = value_ * (kRoot + 1);
      if (name == "sendrecv") expected = value_ * static_cast<double>(left + 1);
      const double allowed = operation_.compressed ? stats_.error_bound : 0;
      if (!(std::fabs(recv_[i] - expected) <= allowed)) return false;
    }
    return true;
  }

 private:
  static constexpr int kRoot = 0;

  struct Free {
    void operator()(float* memory) const { ccl_mem_free(memory); }
  };

  // As much as the library shares.
  static float* Allocate(size_t elements) {
    void* memory = nullptr;
    const size_t bytes = std::max<size_t>(elements * sizeof(float), 1u << 20);
    return ccl_mem_alloc(&memory, bytes) == CCL_SUCCESS ? static_cast<float*>(memory) : nullptr;
  }

  // In one group: to the right, from the left.
  ccl_result_t ShiftByOne(ccl_comm_t comm) {
    const int n = static_cast<int>(nranks_);
    ccl_group_start();
    const ccl_result_t sent =
        ccl_send(send_.data(), count_, CCL_FLOAT32, (rank_ + 1) % n, comm, nullptr);
    const ccl_result_t received =
        ccl_recv(recv_.data(), count_, CCL_FLOAT32, (rank_ + n - 1) % n, comm, nullptr);
    const ccl_result_t result = ccl_group_end();
    if (result != CCL_SUCCESS) return result;
    return sent != CCL_SUCCESS ? sent : received;
  }

  const Operation operation_;
  const int rank_;
  const size_t nranks_, count_;
  float value_ = 0;
  std::vector<float> own_;
  std::unique_ptr<float, Free> registered_;
  const std::span<float> send_, recv_;
  ccl_compression_stats_t stats_ = CCL_COMPRESSION_STATS_INIT;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAULTS_OPERATION_CASES_H_
