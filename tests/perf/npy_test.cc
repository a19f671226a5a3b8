// SPDX-License-Identifier: Apache-2.0
#include "perf/support/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"

namespace inccl::perf {
namespace {

class NpyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "npy_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string Write(const std::string& bytes) const {
    const std::string path = Path("written.npy");
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
    return path;
  }

  std::string directory_;
};

// A version 1.0 file around this header text.
std::string FileOf(std::string header, const std::vector<float>& values) {
  header += "\n";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xFF));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  return bytes;
}

TEST_F(NpyTest, ReadsWhatNumpyWrote) {
  // numpy.save of numpy.array([[1, -2.5, 0], [1e-40, inf, 3]], numpy.float32).
  std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
  bytes += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  bytes.append(0x76 - 59 - 1, ' ').append("\n");
  bytes += std::string("\x00\x00\x80\x3f\x00\x00\x20\xc0\x00\x00\x00\x00", 12);
  bytes += std::string("\xc2\x16\x01\x00\x00\x00\x80\x7f\x00\x00\x40\x40", 12);
  const Result<NpyArray> array = ReadNpy(Write(bytes));
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->shape, (std::vector<uint64_t>{2, 3}));
  const std::vector<float> expected = {
      1.0f, -2.5f, 0.0f, 1e-40f, std::numeric_limits<float>::infinity(), 3.0f};
  EXPECT_EQ(array->values, expected);
}

// The bytes of `values` behind a header that says `type`.
template <class T>
std::string TypedFile(const std::string& type, const std::vector<T>& values) {
  std::string bytes = FileOf("{'descr': '" + type + "', 'fortran_order': False, 'shape': (" +
                                 std::to_string(values.size()) + ",), }",
                             {});
  bytes.append(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size());
  return bytes;
}

TEST_F(NpyTest, ReadsHalfPrecisionExactly) {
  // Zeros, the smallest and largest subnormal, the smallest normal, 1, pi, the largest, infinity.
  const std::vector<uint16_t> codes = {0x0000, 0x8000, 0x0001, 0x83FF, 0x0400,
                                       0x3C00, 0xC248, 0x7BFF, 0xFC00};
  const std::vector<float> expected = {
      0.0f,          -0.0f,    0x1p-24f,
      -0x1.FF8p-15f, 0x1p-14f, 1.0f,
      -3.140625f,    65504.0f, -std::numeric_limits<float>::infinity()};
  const Result<NpyArray> array = ReadNpy(Write(TypedFile("<f2", codes)));
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->values, expected);
  EXPECT_TRUE(std::signbit(array->values[1]));
  const Result<NpyArray> nan = ReadNpy(Write(TypedFile<uint16_t>("<f2", {0x7E00})));
  ASSERT_TRUE(nan.ok());
  EXPECT_TRUE(std::isnan(nan->values[0]));
}

TEST_F(NpyTest, RoundsDoublesAndRefusesThoseThatFloatLacks) {
  const std::vector<double> doubles = {1.0, 1.0 + 0x1p-24, 1.0 + 0x3p-24, -0.0,
                                       std::numeric_limits<double>::infinity()};
  const std::vector<float> expected = {1.0f, 1.0f, 1.0f + 0x1p-22f, -0.0f,
                                       std::numeric_limits<float>::infinity()};
  const Result<NpyArray> array = ReadNpy(Write(TypedFile("<f8", doubles)));
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->values, expected);
  const Result<NpyArray> large = ReadNpy(Write(TypedFile<double>("<f8", {0, 0, 1e39})));
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().code(), Code::kInvalidArgument);
  EXPECT_NE(large.status().message().find("element 2 is 1e+39"), std::string::npos);
  const Result<NpyArray> small = ReadNpy(Write(TypedFile<double>("<f8", {0, -1e-50})));
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), Code::kInvalidArgument);
  EXPECT_NE(small.status().message().find("element 1 is -1e-50"), std::string::npos);
}

TEST_F(NpyTest, WritesTheHeaderThatNumpyWrites) {
  const std::vector<uint64_t> shape = {5};
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }";
  expected.append(128 - expected.size() - 1, ' ').append("\n");
  EXPECT_EQ(FormatNpyHeader(shape), expected);
}

TEST_F(NpyTest, RoundTripsBitForBit) {
  Rng rng(test::TestSeed());
  const std::vector<std::vector<uint64_t>> shapes = {{0}, {1}, {1000}, {7, 13}, {0, 4}, {3, 0}};
  for (const std::vector<uint64_t>& shape : shapes) {
    const uint64_t count = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(rng.Uniform() - 0.5);
    const Status written = WriteNpy(Path("a.npy"), values, shape);
    ASSERT_TRUE(written.ok()) << written.message();
    const Result<NpyArray> array = ReadNpy(Path("a.npy"));
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->shape, shape);
    EXPECT_EQ(array->values, values);
  }
}

TEST_F(NpyTest, AcceptsOtherOrdersAndVersions) {
  const std::vector<float> two = {1.0f, 2.0f};
  for (const char* header : {
           "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}",
           "{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(1,2)}",
           "{ 'fortran_order' : False , 'descr' : '<f4' , 'shape' : ( 2 , 1 , ) , } ",
       }) {
    const Result<NpyArray> array = ParseNpy(FileOf(header, two), "name");
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->values, two) << header;
  }
  // Versions 2.0 and 3.0 have a length of four bytes.
  for (const char version : {'\x02', '\x03'}) {
    std::string bytes = FileOf("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", two);
    bytes[6] = version;
    bytes.insert(10, 2, '\0');
    EXPECT_TRUE(ParseNpy(bytes, "name").ok());
  }
}

TEST_F(NpyTest, RefusesWithTheNameAndTheCause) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  struct Case {
    std::string header, cause;
  };
  const std::vector<Case> cases = {
      {"", "no '{'"},
      {"{}", "missing"},
      {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", "'<i8'"},
      {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", "'<f16'"},
      {"{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }", "'>f8'"},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", "2 elements"},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", "2 elements"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", "'>f4'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "not a string"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", "Fortran"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", "neither False nor True"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': 2, }", "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "no dimension"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2), }", "more than two"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "not a number"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 1), }", "between extents"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "too large"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "overflow"},
      {"{'descr': '<f4', 'fortran_order': False, }", "'shape' is missing"},
      {"{'descr': '<f4', 'shape': (2,), }", "missing"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "twice"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': '1', }", "extra"},
      {"{'descr': '<f4' 'fortran_order': False, 'shape': (2,), }", "neither ','"},
      {"{'descr: '<f4', 'fortran_order': False, 'shape': (2,), }", "':'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x", "behind"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "3 elements"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1 elements"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846975,), }", "elements"},
      {good.substr(0, good.size() - 1), "no quoted key"},
      {good.substr(0, good.size() - 3), "neither ','"},
  };
  ASSERT_TRUE(ParseNpy(FileOf(good, {1.0f, 2.0f}), "name").ok());
  for (const Case& c : cases) {
    const std::string bytes = FileOf(c.header, {1.0f, 2.0f});
    for (const Result<NpyArray>& array : {ParseNpy(bytes, "the.npy"), ReadNpy(Write(bytes))}) {
      ASSERT_FALSE(array.ok()) << c.header;
      EXPECT_EQ(array.status().code(), Code::kInvalidArgument);
      EXPECT_NE(array.status().message().find(".npy"), std::string::npos);
      EXPECT_NE(array.status().message().find(c.cause), std::string::npos)
          << c.header << " gave: " << array.status().message();
    }
  }
}

TEST_F(NpyTest, RefusesEveryTruncationAndSurvivesEveryDamagedByte) {
  const std::string good =
      FileOf("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", {1.0f, 2.0f});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseNpy(std::string_view(good).substr(0, size), "cut").ok()) << size;
  }
  EXPECT_FALSE(ParseNpy(good + '\0', "long").ok());
  for (size_t at = 0; at < good.size() - 8; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      const Result<NpyArray> array = ParseNpy(bytes, "damaged");
      EXPECT_EQ(array.ok() ? array->values.size() : 2u, 2u) << at << " " << value;
    }
  }
}

TEST_F(NpyTest, NamesAFileThatIsNotThere) {
  const Result<NpyArray> array = ReadNpy(Path("absent.npy"));
  ASSERT_FALSE(array.ok());
  EXPECT_EQ(array.status().code(), Code::kSystemError);
  EXPECT_NE(array.status().message().find("absent.npy"), std::string::npos);
  const std::vector<float> one = {1.0f};
  EXPECT_EQ(WriteNpy(directory_ + "/no/where.npy", one, std::vector<uint64_t>{1}).code(),
            Code::kSystemError);
}

TEST_F(NpyTest, WritesOnlyWhatFillsTheShape) {
  const std::vector<float> six(6);
  for (const std::vector<uint64_t>& shape : std::vector<std::vector<uint64_t>>{
           {}, {5}, {7}, {4, 1}, {2, 2}, {0, 6}, {1, 2, 3}, {uint64_t{1} << 63, 12}}) {
    EXPECT_EQ(WriteNpy(Path("x.npy"), six, shape).code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(WriteNpy(Path("x.npy"), six, std::vector<uint64_t>{2, 3}).ok());
}

}  // namespace
}  // namespace inccl::perf
