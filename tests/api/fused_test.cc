// SPDX-License-Identifier: Apache-2.0
//
// ccl_allreduce_fused. The oracle is one call on all vectors one after the other, with one
// residual.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/owned.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCounts[] = {5, 0, 300, 1, 4096, 77};

// Elements of any type with four bytes, in as many vectors as kCounts has, by a seed.
template <typename T>
std::vector<std::vector<T>> Vectors(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<T>> vectors;
  for (const size_t count : kCounts) {
    vectors.emplace_back(count);
    for (T& value : vectors.back()) value = static_cast<T>(100 * normal(engine));
  }
  return vectors;
}

template <typename T>
std::vector<T> Joined(const std::vector<std::vector<T>>& vectors) {
  std::vector<T> all;
  for (const std::vector<T>& vector : vectors) all.insert(all.end(), vector.begin(), vector.end());
  return all;
}

// Every other vector in place.
template <typename T>
std::vector<ccl_vector_t> Arguments(std::vector<std::vector<T>>* in,
                                    std::vector<std::vector<T>>* out) {
  std::vector<ccl_vector_t> arguments;
  for (size_t i = 0; i < in->size(); ++i) {
    if (i % 2 == 0) (*out)[i] = (*in)[i];
    const T* const send = i % 2 == 0 ? (*out)[i].data() : (*in)[i].data();
    arguments.push_back({send, (*out)[i].data(), (*in)[i].size(), nullptr});
  }
  return arguments;
}

template <typename T>
void CheckIsOneCall(ccl_comm_t comm, int rank, const char* spec, ccl_datatype_t type,
                    ccl_redop_t op) {
  const OwnedCodec codec = MakeCodec(spec);
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT, one = CCL_COMPRESSION_STATS_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.codec = codec.get();
  how.seed = 4;
  how.step = 9;
  std::vector<std::vector<T>> in = Vectors<T>(7 + static_cast<unsigned>(rank)), out = in;
  std::vector<T> expected = Joined(in);
  how.stats = &one;
  CHECK_OK(ccl_allreduce_compressed(expected.data(), expected.data(), expected.size(), type, op,
                                    &how, comm, nullptr));
  const std::vector<ccl_vector_t> arguments = Arguments(&in, &out);
  how.stats = &stats;
  CHECK_OK(ccl_allreduce_fused(arguments.data(), arguments.size(), type, op, &how, comm, nullptr));
  EXPECT_EQ(std::memcmp(Joined(out).data(), expected.data(), expected.size() * sizeof(T)), 0);
  EXPECT_EQ(stats.elements, expected.size());
  EXPECT_EQ(stats.payload_bytes, one.payload_bytes);
  EXPECT_EQ(stats.error_bound, one.error_bound);
}

TEST(FusedTest, IsOneCallOnAllVectors) {
  for (const int nranks : {1, kRanks}) {
    RunThreads(nranks, [&](int rank, ccl_comm_t comm) {
      for (const char* spec : {"none", "hbi:bits=6", "qsgd:q=8", "onebit", "lossless", "fp16"}) {
        SCOPED_TRACE(spec);
        CheckIsOneCall<float>(comm, rank, spec, CCL_FLOAT32, CCL_AVG);
      }
      CheckIsOneCall<int32_t>(comm, rank, "hbi", CCL_INT32, CCL_MAX);
      CHECK_OK(ccl_allreduce_fused(nullptr, 0, CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr));
    });
  }
}

// The same vectors fused, fused in another order, and one alone: what went in is what has arrived
// and what is left.
TEST(FusedTest, ResidualsBelongToVectors) {
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    const OwnedCodec codec = MakeCodec("hbi:bits=3,ag=exact");
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec.get();
    how.step = 5;
    const std::vector<std::vector<float>> in = Vectors<float>(40 + static_cast<unsigned>(rank));
    std::vector<std::vector<float>> out = in;
    std::vector<OwnedResidual> residuals;
    std::vector<ccl_vector_t> fused;
    for (size_t i = 0; i < in.size(); ++i) {
      residuals.push_back(MakeResidual(in[i].size()));
      fused.push_back({in[i].data(), out[i].data(), in[i].size(), residuals[i].get()});
    }
    const auto left = [&] {
      std::vector<std::vector<float>> values;
      for (size_t i = 0; i < in.size(); ++i) {
        values.push_back(ValuesOf(residuals[i], in[i].size()));
      }
      return Joined(values);
    };
    CHECK_OK(
        ccl_allreduce_fused(fused.data(), fused.size(), CCL_FLOAT32, CCL_SUM, &how, comm, nullptr));
    std::vector<float> arrived = Joined(out), went_in = Joined(in);
    // One residual of all vectors has the same values.
    const OwnedResidual whole = MakeResidual(went_in.size());
    std::vector<float> sum = went_in;
    how.residual = whole.get();
    CHECK_OK(ccl_allreduce_compressed(sum.data(), sum.data(), sum.size(), CCL_FLOAT32, CCL_SUM,
                                      &how, comm, nullptr));
    EXPECT_EQ(left(), ValuesOf(whole, went_in.size()));

    const std::vector<ccl_vector_t> other = {fused[4], fused[0], fused[5], fused[1], fused[3]};
    how.residual = nullptr;
    CHECK_OK(
        ccl_allreduce_fused(other.data(), other.size(), CCL_FLOAT32, CCL_SUM, &how, comm, nullptr));
    how.residual = residuals[2].get();
    CHECK_OK(ccl_allreduce_compressed(in[2].data(), out[2].data(), in[2].size(), CCL_FLOAT32,
                                      CCL_SUM, &how, comm, nullptr));
    std::vector<float> left_out = left();
    for (std::vector<float>* values : {&left_out, &went_in}) {
      CHECK_OK(ccl_allreduce(values->data(), values->data(), values->size(), CCL_FLOAT32, CCL_SUM,
                             comm, nullptr));
    }
    const std::vector<float> again = Joined(out);
    for (size_t i = 0; i < went_in.size(); ++i) {
      EXPECT_NEAR(arrived[i] + again[i] + left_out[i], 2 * went_in[i], 0.01) << i;
    }
  });
}

TEST(FusedTest, AFailedCallLeavesResidualsAlone) {
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    std::vector<std::vector<float>> in = Vectors<float>(1), out = in;
    std::vector<ccl_vector_t> vectors = Arguments(&in, &out);
    const OwnedResidual residual = MakeResidual(kCounts[2]);
    const std::vector<float> values(kCounts[2], 0.25f);
    CHECK_OK(ccl_residual_import(residual.get(), values.data(), values.size()));
    vectors[2].residual = residual.get();
    // As many elements in all, but one rank has two vectors in another order.
    if (rank == 1) std::swap(vectors[0], vectors[5]);
    EXPECT_EQ(ccl_allreduce_fused(vectors.data(), vectors.size(), CCL_FLOAT32, CCL_SUM, nullptr,
                                  comm, nullptr),
              CCL_INVALID_USAGE);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("on 6 vectors of lengths"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_EQ(ValuesOf(residual, values.size()), values);
  });
}

void ExpectError(ccl_result_t result, const char* text) {
  EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(text), std::string::npos)
      << ccl_get_last_error(nullptr);
}

TEST(FusedTest, WrongArgumentsAreNamed) {
  RunThreads(2, [&](int, ccl_comm_t comm) {
    std::vector<float> a(100), b(100), c(100);
    const OwnedResidual residual = MakeResidual(10);
    const auto call = [&](const std::vector<ccl_vector_t>& vectors,
                          ccl_datatype_t type = CCL_FLOAT32, ccl_redop_t op = CCL_SUM,
                          const ccl_compression_t* how = nullptr) {
      return ccl_allreduce_fused(vectors.data(), vectors.size(), type, op, how, comm, nullptr);
    };
    const ccl_vector_t good = {a.data(), b.data(), 10, residual.get()};
    ExpectError(ccl_allreduce_fused(nullptr, 2, CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr),
                "vectors: NULL");
    ExpectError(ccl_allreduce_fused(&good, SIZE_MAX, CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr),
                "nvectors: 18446744073709551615");
    ExpectError(call({good, {nullptr, c.data(), 1, nullptr}}), "vectors[1].send: NULL");
    ExpectError(call({good, {c.data(), nullptr, 1, nullptr}}), "vectors[1].recv: NULL");
    ExpectError(call({good, {c.data(), c.data(), SIZE_MAX / 2, nullptr}}), "vectors[1].count");
    ExpectError(call({{c.data(), c.data(), SIZE_MAX - 5, nullptr}, good}), "vectors[0].count");
    ExpectError(call({good, {c.data(), c.data(), 10, residual.get()}}),
                "vectors[1].residual: another vector has it");
    ExpectError(call({{c.data(), c.data(), 11, residual.get()}}),
                "vectors[0].residual: of 10 elements, send has 11");
    ExpectError(call({good}, CCL_INT32), "vectors[0].residual: type int32");
    ExpectError(call({good}, CCL_FLOAT32, CCL_MAX), "vectors[0].residual: reduction max");
    ExpectError(call({good, {c.data(), b.data() + 9, 1, nullptr}}),
                "vectors[0] and vectors[1]: their buffers overlap");
    ExpectError(call({good, {c.data(), a.data() + 5, 2, nullptr}}), "vectors[0] and vectors[1]");
    ExpectError(call({{a.data(), a.data() + 1, 10, nullptr}}), "vectors[0] and vectors[0]");
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.residual = residual.get();
    ExpectError(call({good}, CCL_FLOAT32, CCL_SUM, &how), "compression->residual: must be NULL");
    // Inputs may share memory, and neighbours touch.
    CHECK_OK(call({good,
                   {a.data() + 5, b.data() + 10, 10, nullptr},
                   {b.data() + 20, b.data() + 20, 3, nullptr}}));
  });
}

TEST(FusedTest, InAGroupAndOnAStream) {
  RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<float> a(50, 1.0f), b(60, static_cast<float>(rank)), c(3, 2.0f);
    CHECK_OK(ccl_group_start());
    {
      // The library has read the list when the function returns.
      const std::vector<ccl_vector_t> vectors = {{a.data(), a.data(), a.size(), nullptr},
                                                 {b.data(), b.data(), b.size(), nullptr}};
      const OwnedCodec none = MakeCodec("none");
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = none.get();
      CHECK_OK(ccl_allreduce_fused(vectors.data(), vectors.size(), CCL_FLOAT32, CCL_SUM, &how, comm,
                                   stream));
    }
    CHECK_OK(ccl_allreduce(c.data(), c.data(), c.size(), CCL_FLOAT32, CCL_SUM, comm, stream));
    CHECK_OK(ccl_group_end());
    CHECK_OK(ccl_stream_synchronize(stream));
    EXPECT_EQ(a, std::vector<float>(50, kRanks));
    EXPECT_EQ(b, std::vector<float>(60, 3.0f));
    EXPECT_EQ(c, std::vector<float>(3, 2.0f * kRanks));
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

}  // namespace
}  // namespace inccl::test
