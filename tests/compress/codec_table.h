// SPDX-License-Identifier: Apache-2.0
//
// Every codec, as the conformance tests want to know it. A new codec gets a row here. What a codec
// refuses (Codec::Fits) must be refused, what its route does not admit is not run.
#ifndef INCCL_TESTS_COMPRESS_CODEC_TABLE_H_
#define INCCL_TESTS_COMPRESS_CODEC_TABLE_H_

#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>

namespace inccl::test {

// What elements have in common.
enum class Share { kElement, kBlock, kSuperblock, kVector };

struct CodecRow {
  const char* spec;
  // Inputs and sums of the tests stay below it: the format's range.
  double largest;
  // What one rounding may cost below the format's full precision.
  double floor;
  // Who else may become NaN by an element that is not finite.
  Share poison;
  // Whose largest magnitude the bound is relative to.
  Share bound;
  bool any_order;  // sums do not depend on the algorithm
  bool lossless;   // the results are those of "none", bit for bit
};

// For INSTANTIATE_TEST_SUITE_P.
inline std::string CodecRowName(const testing::TestParamInfo<CodecRow>& row) {
  std::string name = row.param.spec;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) == 0 ? '_' : c;
  return name;
}

inline void PrintTo(const CodecRow& row, std::ostream* out) { *out << row.spec; }

constexpr CodecRow kCodecTable[] = {
    {"none", 1e30, 0x1p-149, Share::kElement, Share::kBlock, false, true},
    {"hbi", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:bits=4", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:bits=8,ag=exact", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:k=7,k2=15,ref=ring", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:code=entropy", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:bits=2.5,code=entropy", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true,
     false},
    {"hbi:m=2", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:k=15,k2=31,m=3", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"hbi:k=1", 1e30, 0x1p-88, Share::kSuperblock, Share::kSuperblock, true, false},
    {"bf16", 1e30, 0x1p-134, Share::kElement, Share::kBlock, false, false},
    {"fp16", 65504, 0x1p-25, Share::kElement, Share::kBlock, false, false},
    {"fp8", 448, 0x1p-10, Share::kElement, Share::kBlock, false, false},
    {"fp8:format=e5m2", 57344, 0x1p-17, Share::kElement, Share::kBlock, false, false},
    {"lossless", 1e30, 0x1p-149, Share::kElement, Share::kBlock, false, true},
    {"mxfp8", 1e30, 0x1p-130, Share::kBlock, Share::kBlock, false, false},
    {"dither", 1e30, 0x1p-100, Share::kSuperblock, Share::kSuperblock, true, false},
    {"dither:bits=8,block=32", 1e30, 0x1p-100, Share::kBlock, Share::kBlock, false, false},
    {"dither:bits=2,norm=l2,sparse=1", 1e30, 0x1p-100, Share::kSuperblock, Share::kSuperblock, true,
     false},
    {"dither:bits=4,levels=pow2,sparse=1", 1e30, 0x1p-100, Share::kSuperblock, Share::kSuperblock,
     true, false},
    {"dither:bits=5,block=32,levels=pow2,norm=l2", 1e30, 0x1p-100, Share::kBlock, Share::kBlock,
     true, false},
    {"onebit", 1e30, 0x1p-149, Share::kSuperblock, Share::kSuperblock, true, false},
    {"onebit:block=32", 1e30, 0x1p-149, Share::kBlock, Share::kBlock, true, false},
    {"qsgd", 1e30, 0x1p-149, Share::kVector, Share::kVector, true, false},
    {"qsgd:q=1", 1e30, 0x1p-149, Share::kVector, Share::kVector, true, false},
    {"qsgd:q=16", 1e30, 0x1p-149, Share::kVector, Share::kVector, true, false},
    {"qsgd_ms", 1e30, 0x1p-149, Share::kVector, Share::kVector, true, false},
    {"qsgd_ms:q=1+3+9+16", 1e30, 0x1p-149, Share::kVector, Share::kVector, true, false},
    {"mxfp8:format=e5m2", 1e30, 0x1p-130, Share::kBlock, Share::kBlock, false, false},
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_CODEC_TABLE_H_
