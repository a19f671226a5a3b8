// SPDX-License-Identifier: Apache-2.0
#include "perf/support/datasets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace inccl::perf {
namespace {

constexpr uint64_t kMany = 1 << 18;

std::vector<float> Make(const std::string& spec, int rank, int nranks, uint64_t count,
                        uint64_t seed = 1) {
  Result<std::vector<float>> data = MakeData(spec, rank, nranks, count, seed);
  EXPECT_TRUE(data.ok()) << data.status().message();
  return data.ok() ? *std::move(data) : std::vector<float>();
}

// Largest distance of the empirical distribution from `cdf`, times sqrt(count) (Kolmogorov and
// Smirnov): above 1.95 with probability 0.001 if the distribution is right; the seed is fixed.
double KolmogorovSmirnov(std::vector<float> values, const std::function<double(double)>& cdf) {
  std::sort(values.begin(), values.end());
  double distance = 0;
  const double n = static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double p = cdf(values[i]);
    const double below = static_cast<double>(i) / n;
    distance = std::max({distance, p - below, below + 1.0 / n - p});
  }
  return distance * std::sqrt(n);
}

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double Correlation(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

TEST(Datasets, DistributionsAreTheirs) {
  EXPECT_LT(KolmogorovSmirnov(Make("normal", 0, 2, kMany), NormalCdf), 1.95);
  // The check itself tells them apart.
}

TEST(Datasets, RanksAndSeedsAreIndependent) {
  for (const char* spec : {"normal", "grad"}) {
    const std::vector<float> one = Make(spec, 0, 4, kMany);
    EXPECT_LT(std::fabs(Correlation(one, Make(spec, 1, 4, kMany))), 0.01);
    EXPECT_LT(std::fabs(Correlation(one, Make(spec, 0, 4, kMany, 2))), 0.01);
  }
}

TEST(Datasets, LongerDataBeginsWithTheShorter) {
  for (const char* spec : {"normal", "grad"}) {
    const std::vector<float> longer = Make(spec, 2, 3, 5000);
    for (const uint64_t count : {0, 1, 255, 256, 257, 4999}) {
      const std::vector<float> shorter = Make(spec, 2, 3, count);
      ASSERT_EQ(shorter.size(), count);
      EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin())) << spec << count;
    }
  }
}

TEST(Datasets, NormalIsTheSameOnEveryMachine) {
  // From an independent implementation (Python integers and math): seed 1, rank 0.
  const std::vector<float> values = Make("normal", 0, 1, 4);
  const std::vector<double> expected = {0.756139313, 1.799982620, 1.100887345, -0.016276575};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << i;
}

TEST(Datasets, GradSharesScalesOverRanks) {
  const std::vector<float> a = Make("grad", 0, 2, kMany);
  const std::vector<float> b = Make("grad", 1, 2, kMany);
  std::vector<float> logs;
  double apart = 0;
  for (uint64_t s = 0; s < kMany / 256; ++s) {
    double aa = 0, bb = 0;
    for (uint64_t i = 256 * s; i < 256 * (s + 1); ++i) {
      aa += double{a[i]} * a[i];
      bb += double{b[i]} * b[i];
    }
    logs.push_back(static_cast<float>(0.5 * std::log(aa / 256)));
    apart = std::max(apart, std::fabs(0.5 * std::log(aa / bb)));
  }
  EXPECT_LT(apart, 0.5);  // the estimates of one scale differ by a few per cent, scales by e^12
  EXPECT_LT(KolmogorovSmirnov(logs,
                              [](double x) {
                                return 0.79 * NormalCdf((x + 3.99) / 1.22) +
                                       0.21 * NormalCdf((x + 16.41) / 4.63);
                              }),
            1.95);
  EXPECT_LT(std::fabs(Correlation(a, b)), 0.05);
}

class FileData : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "data_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    unsetenv("INCCL_GRADIENTS_DIR");
    std::filesystem::remove_all(directory_);
  }
  std::string Save(const std::string& name, const std::vector<float>& values,
                   const std::vector<uint64_t>& shape) const {
    std::string extents;
    for (const uint64_t extent : shape)
      extents += (extents.empty() ? "" : " ") + std::to_string(extent) + ",";
    if (shape.size() > 1) extents.pop_back();
    return SaveBytes(name, "{'descr': '<f4', 'fortran_order': False, 'shape': (" + extents + "), }",
                     {reinterpret_cast<const char*>(values.data()), 4 * values.size()});
  }
  // A file of version 1.0, padded as NumPy pads it.
  std::string SaveBytes(const std::string& name, std::string header,
                        std::string_view elements) const {
    header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
    header += '\n';
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary)
        << "\x93NUMPY\x01" << '\0' << char(header.size()) << '\0' << header << elements;
    return path;
  }
  std::string directory_;
};

TEST_F(FileData, OneDimensionIsDealtOut) {
  const std::string path = Save("a.npy", {0, 1, 2, 3, 4}, {5});
  EXPECT_EQ(Make(path, 0, 3, 2), (std::vector<float>{0, 1}));
  EXPECT_EQ(Make(path, 1, 3, 2), (std::vector<float>{2, 3}));
  EXPECT_EQ(Make(path, 2, 3, 7), (std::vector<float>{4, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(*NaturalCount(path), 5u);
}

TEST_F(FileData, TwoDimensionsHaveARowPerRank) {
  const std::string path = Save("b.npy", {0, 1, 2, 3, 4, 5}, {2, 3});
  EXPECT_EQ(Make(path, 1, 2, 5), (std::vector<float>{3, 4, 5, 3, 4}));
  EXPECT_EQ(*NaturalCount(path), 3u);
  const Result<std::vector<float>> missing = MakeData(path, 2, 3, 1, 0);
  EXPECT_EQ(missing.status().code(), Code::kInvalidArgument);
  EXPECT_NE(missing.status().message().find("rank 2"), std::string::npos);
}

TEST_F(FileData, ThePlaceholderNamesTheRank) {
  Save("c0.npy", {1, 2}, {2});
  Save("c1.npy", {3, 4, 5, 6}, {2, 2});
  const std::string spec = directory_ + "/c{rank}.npy";
  EXPECT_EQ(Make(spec, 0, 2, 3), (std::vector<float>{1, 2, 1}));
  EXPECT_EQ(Make(spec, 1, 2, 4), (std::vector<float>{3, 4, 5, 6}));
  EXPECT_EQ(MakeData(spec, 2, 3, 1, 0).status().code(), Code::kSystemError);
}

TEST_F(FileData, OtherFilesAreRefused) {
  const auto refused = [&](const char* header, size_t bytes, const char* why) {
    const std::string path = SaveBytes("d.npy", header, std::string(bytes, '\0'));
    const Status status = MakeData(path, 0, 1, 1, 0).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << header;
    EXPECT_EQ(status.message().find(path + ": " + why), 0u) << status.message();
  };
  const char* const no = "not as numpy.save writes an array of float32 with one or two dimensions";
  const char* const size = "16 bytes of elements, not what its shape (";
  refused("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", 16, no);
  refused("{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }", 16, no);
  refused("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", 16, no);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 2), }", 16, no);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, no);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", 16, size);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 16, size);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 16, size);
  refused("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999999, 999999999999999), }",
          16, size);
  std::filesystem::create_directory(directory_ + "/folder.npy");
  EXPECT_EQ(MakeData(directory_ + "/folder.npy", 0, 1, 1, 0).status().code(), Code::kSystemError);
  const std::string cut = directory_ + "/e.npy";
  for (const char* content : {"", "\x93NUMPY", "\x93NUMPY\x01", "text that is no array"}) {
    std::ofstream(cut, std::ios::binary) << content;
    EXPECT_EQ(MakeData(cut, 0, 1, 1, 0).status().code(), Code::kInvalidArgument) << content;
  }
}

TEST_F(FileData, RecordedStepsAreNamedByTheirOrder) {
  setenv("INCCL_GRADIENTS_DIR", directory_.c_str(), 1);
  for (const int step : {5, 100, 20}) {
    Save("step" + std::to_string(step) + "_rank0.npy", {float(step)}, {1});
    Save("step" + std::to_string(step) + "_rank1.npy", {float(step) + 0.5f}, {1});
  }
  EXPECT_EQ(Make("gradients:early", 0, 2, 1), (std::vector<float>{5}));
  EXPECT_EQ(Make("gradients:middle", 1, 2, 1), (std::vector<float>{20.5}));
  EXPECT_EQ(Make("gradients:late", 1, 2, 2), (std::vector<float>{100.5, 100.5}));
  EXPECT_EQ(MakeData("gradients:last", 0, 1, 1, 0).status().code(), Code::kInvalidArgument);
  Save("step7_rank0.npy", {7}, {1});
  EXPECT_EQ(MakeData("gradients:late", 0, 1, 1, 0).status().code(), Code::kInvalidArgument);
}

TEST(Datasets, TheSampleOfTheRepositoryIsWhole) {
  for (const char* which : {"early", "middle", "late"}) {
    const std::string spec = std::string("gradients:") + which;
    const Result<uint64_t> count = NaturalCount(spec);
    ASSERT_TRUE(count.ok()) << count.status().message();
    EXPECT_EQ(*count, 81920u);
    std::vector<std::vector<float>> ranks;
    for (int rank = 0; rank < 8; ++rank) {
      ranks.push_back(Make(spec, rank, 8, *count));
      EXPECT_TRUE(std::all_of(ranks[size_t(rank)].begin(), ranks[size_t(rank)].end(),
                              [](float x) { return std::isfinite(x); }));
      for (int other = 0; other < rank; ++other) {
        EXPECT_NE(ranks[size_t(rank)], ranks[size_t(other)]);
      }
    }
  }
}

TEST(Datasets, BadArgumentsAreNamed) {
  const Result<std::vector<float>> unknown = MakeData("uniform", 0, 1, 1, 0);
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("'uniform'"), std::string::npos);
  EXPECT_EQ(MakeData("normal", 2, 2, 1, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeData("normal", -1, 2, 1, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeData("absent.npy", 0, 1, 1, 0).status().code(), Code::kSystemError);
}

}  // namespace
}  // namespace inccl::perf
