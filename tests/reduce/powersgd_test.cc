// SPDX-License-Identifier: Apache-2.0
//
// PowerSGD against a plain implementation in fp64, and what subspace iteration promises.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "reduce/local_ranks.h"
#include "reduce/matrix.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix Zeros(size_t rows, size_t cols) { return Matrix(rows, std::vector<double>(cols)); }

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix product = Zeros(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) product[i][j] += a[i][k] * b[k][j];
    }
  }
  return product;
}

Matrix Transposed(const Matrix& a) {
  Matrix transposed = Zeros(a[0].size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) transposed[j][i] = a[i][j];
  }
  return transposed;
}

void GramSchmidt(Matrix* p) {
  const size_t rank = (*p)[0].size();
  for (size_t c = 0; c < rank; ++c) {
    for (size_t b = 0; b < c; ++b) {
      double along = 0;
      for (const std::vector<double>& row : *p) along += row[b] * row[c];
      for (std::vector<double>& row : *p) row[c] -= along * row[b];
    }
    double square = 0;
    for (const std::vector<double>& row : *p) square += row[c] * row[c];
    for (std::vector<double>& row : *p) row[c] /= std::sqrt(square);
  }
}

Matrix Reshape(const std::vector<float>& values, size_t rows, size_t cols) {
  Matrix matrix = Zeros(rows, cols);
  for (size_t i = 0; i < values.size(); ++i) matrix[i / cols][i % cols] = values[i];
  return matrix;
}

// The warm start of rank 0, which the exported state ends with.
Matrix WarmStart(LocalRanks* ranks, size_t rank, size_t cols) {
  const Result<std::vector<std::byte>> bytes = ranks->state(0)->Export();
  std::vector<float> values(rank * cols);
  std::memcpy(values.data(), bytes->data() + bytes->size() - 4 * values.size(), 4 * values.size());
  return Transposed(Reshape(values, rank, cols));
}

double Distance(const Matrix& a, const std::vector<float>& b, double* size) {
  double square = 0;
  *size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double value = a[i / a[0].size()][i % a[0].size()];
    square += (value - b[i]) * (value - b[i]);
    *size += value * value;
  }
  *size = std::sqrt(*size);
  return std::sqrt(square);
}

TEST(PowerSgdTest, IsOneStepOfSubspaceIteration) {
  constexpr size_t kRows = 40, kCols = 33, kRank = 3;
  for (const int n : {1, 2, 3, 8}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      LocalRanks ranks("powersgd:rank=3", n, kRows, kCols);
      for (uint64_t step = 0; step < 4; ++step) {
        const Vectors inputs = NormalInputs(n, kRows * kCols, TestSeed() + step);
        const Vectors before = Residuals(&ranks);
        Matrix sum = Zeros(kRows, kCols);
        for (size_t r = 0; r < inputs.size(); ++r) {
          for (size_t i = 0; i < inputs[r].size(); ++i) {
            sum[i / kCols][i % kCols] +=
                static_cast<double>(inputs[r][i] + before[r][i]) / (op == ReduceOp::kAvg ? n : 1);
          }
        }
        Matrix p = Product(sum, WarmStart(&ranks, kRank, kCols));
        GramSchmidt(&p);
        const Matrix q = Product(Transposed(sum), p);
        const Matrix expected = Product(p, Transposed(q));
        const std::vector<float> result = ranks.Run(inputs, op)[0];
        double size = 0;
        const double distance = Distance(expected, result, &size);
        EXPECT_LT(distance, 1e-4 * size);
        EXPECT_EQ(ranks.sent(), (std::vector<size_t>{4 * kRank * kRows, 4 * kRank * kCols}));
        if (op == ReduceOp::kSum) ExpectConserved(&ranks, inputs, before, result, 1e-5);
      }
    }
  }
}

// A sum of rank 2 is found at once by any factors of rank 2 or more.
TEST(PowerSgdTest, FindsMatricesOfLowRank) {
  constexpr size_t kRows = 64, kCols = 50;
  std::mt19937_64 engine(TestSeed());
  std::normal_distribution<float> normal;
  for (const char* spec : {"powersgd:rank=2", "powersgd:rank=5"}) {
    for (const float scale : {1.0f, 1e-15f, 1e15f}) {
      LocalRanks ranks(spec, 2, kRows, kCols);
      Vectors inputs(2, std::vector<float>(kRows * kCols));
      Matrix sum = Zeros(kRows, kCols);
      for (std::vector<float>& input : inputs) {
        std::vector<float> column(kRows), row(kCols);
        for (float& value : column) value = normal(engine);
        for (float& value : row) value = scale * normal(engine);
        for (size_t i = 0; i < input.size(); ++i) {
          input[i] = column[i / kCols] * row[i % kCols];
          sum[i / kCols][i % kCols] += static_cast<double>(input[i]);
        }
      }
      for (int step = 0; step < 3; ++step) {
        const std::vector<float> result = ranks.Run(inputs)[0];
        double size = 0;
        if (step == 0) {
          const double distance = Distance(sum, result, &size);
          EXPECT_LT(distance, 1e-4 * size) << spec << " " << scale;
        }
      }
    }
  }
}

// With error feedback, the sum of the results approaches the sum of the inputs.
TEST(PowerSgdTest, WhatIsLeftOutArrivesLater) {
  constexpr size_t kRows = 30, kCols = 30, kSteps = 60;
  LocalRanks ranks("powersgd:rank=2", 2, kRows, kCols);
  const Vectors inputs = NormalInputs(2, kRows * kCols, TestSeed());
  Matrix sum = Zeros(kRows, kCols);
  std::vector<float> mean(kRows * kCols);
  for (size_t i = 0; i < mean.size(); ++i) {
    sum[i / kCols][i % kCols] = static_cast<double>(inputs[0][i]) + inputs[1][i];
  }
  double first = 0, size = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    const std::vector<float> result = ranks.Run(inputs)[0];
    if (step == 0) first = Distance(sum, result, &size);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += result[i] / kSteps;
  }
  EXPECT_GT(first, 0.3 * size);
  EXPECT_LT(Distance(sum, mean, &size), 0.4 * first);
}

TEST(PowerSgdTest, SmallAndFlatTensorsTravelWhole) {
  const size_t shapes[][2] = {{1, 100}, {100, 1}, {4, 4}, {8, 8}, {0, 5}, {2, 3}};
  for (const auto& [rows, cols] : shapes) {
    LocalRanks ranks("powersgd:rank=4", 3, rows, cols);
    const Vectors inputs = NormalInputs(3, rows * cols, TestSeed());
    std::vector<float> sum(rows * cols);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = inputs[0][i] + inputs[1][i] + inputs[2][i];
    EXPECT_EQ(ranks.Run(inputs)[0], sum);
    EXPECT_EQ(ranks.sent(), std::vector<size_t>{4 * rows * cols});
    for (const std::vector<float>& residual : Residuals(&ranks)) {
      EXPECT_EQ(residual, std::vector<float>(rows * cols));
    }
  }
}

TEST(PowerSgdTest, RecoversFromZeroAndFromNaN) {
  constexpr size_t kCount = 400;
  LocalRanks ranks("powersgd:rank=2", 2, 20, 20);
  const Vectors zeros(2, std::vector<float>(kCount));
  EXPECT_EQ(ranks.Run(zeros)[0], std::vector<float>(kCount));
  Vectors inputs = NormalInputs(2, kCount, TestSeed());
  inputs[0][7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> spoiled = ranks.Run(inputs)[0];
  for (const float value : spoiled) EXPECT_TRUE(std::isnan(value));
  const Vectors after = Residuals(&ranks);
  for (const std::vector<float>& residual : after) {
    EXPECT_EQ(residual, std::vector<float>(kCount));
  }
  inputs[0][7] = 1;
  double square = 0;
  const std::vector<float> result = ranks.Run(inputs)[0];
  for (const float value : result) {
    ASSERT_TRUE(std::isfinite(value));
    square += static_cast<double>(value) * value;
  }
  EXPECT_GT(square, 1);
}

TEST(PowerSgdTest, ColumnsBecomeOrthonormalOrZero) {
  constexpr size_t kRows = 100, kRank = 6;
  std::mt19937_64 engine(TestSeed());
  std::normal_distribution<float> normal;
  std::vector<float> p(kRows * kRank);
  for (float& value : p) value = normal(engine);
  for (size_t i = 0; i < kRows; ++i) p[i * kRank + 3] = 2 * p[i * kRank] - p[i * kRank + 1];
  Orthonormalize(p, kRows, kRank);
  for (size_t a = 0; a < kRank; ++a) {
    for (size_t b = 0; b < kRank; ++b) {
      double dot = 0;
      for (size_t i = 0; i < kRows; ++i) {
        dot += static_cast<double>(p[i * kRank + a]) * p[i * kRank + b];
      }
      EXPECT_NEAR(dot, a == b && a != 3 ? 1 : 0, 1e-5) << a << " " << b;
    }
  }
}

}  // namespace
}  // namespace inccl::test
