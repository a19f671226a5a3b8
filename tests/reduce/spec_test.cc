// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "reduce/reducer.h"

namespace inccl::test {
namespace {

struct Canonical {
  const char* given;
  const char* canonical;
};

TEST(ReducerSpecTest, CanonicalFormsHaveEveryKeyAndParseToThemselves) {
  const Canonical cases[] = {
      {"topk", "topk:block=1,k=0.01,mask=0,momentum=0,residual=1,select=exact,warm=0|none"},
      {"topk:select=sidco,k=0.0010|fp16",
       "topk:block=1,k=0.001,mask=0,momentum=0,residual=1,select=sidco,warm=0|fp16"},
      {"topk:select=sidco_gamma",
       "topk:block=1,k=0.01,mask=0,momentum=0,residual=1,select=sidco_gamma,warm=0|none"},
      {"topk:block=256|bf16",
       "topk:block=256,k=0.01,mask=0,momentum=0,residual=1,select=exact,warm=0|bf16"},
      {"topk:momentum=0.90,warm=8",
       "topk:block=1,k=0.01,mask=1,momentum=0.9,residual=1,select=exact,warm=8|none"},
      {"topk:mask=0,momentum=0.5",
       "topk:block=1,k=0.01,mask=0,momentum=0.5,residual=1,select=exact,warm=0|none"},
      {"clt_k|bf16", "clt_k:beta=0.1,k=0.01,residual=1|bf16"},
      {"count_sketch", "count_sketch|none"},
      {"powersgd:residual=0,rank=2", "powersgd:rank=2,residual=0|none"},
      {"random_k", "random_k:block=1,k=0.01,residual=1,unbiased=0|none"},
      {"random_k:unbiased=1,k=1e-3|qsgd:q=4",
       "random_k:block=1,k=0.001,residual=0,unbiased=1|qsgd:q=4"},
  };
  for (const Canonical& c : cases) {
    const auto made = MakeReducer(c.given);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ((*made)->spec(), c.canonical);
    const auto again = MakeReducer(c.canonical);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ((*again)->spec(), c.canonical);
  }
}

struct Wrong {
  const char* spec;
  const char* text;
};

TEST(ReducerSpecTest, ErrorsNameKeyAndValue) {
  const Wrong cases[] = {
      {"", "reducer spec: empty reducer name"},
      {"|none", "reducer spec: empty reducer name"},
      {"TopK", "reducer spec: reducer name \"TopK\""},
      {"bottom_k", "reducer spec: unknown method bottom_k; there are "},
      {"topk:", "is not key=value"},
      {"topk:k=2", "reducer topk: k=2 is not a fraction in (0, 1]"},
      {"topk:k=0", "reducer topk: k=0 is not"},
      {"topk:k=nan", "reducer topk: k=nan is not"},
      {"topk:k=0.1x", "reducer topk: k=0.1x is not"},
      {"topk:q=8",
       "reducer topk: unknown key q (=8); there are block, k, mask, "
       "momentum, residual, select, warm"},
      {"topk:select=best", "reducer topk: select=best is none of exact"},
      {"topk:block=0", "reducer topk: block=0 is not an integer in [1, 1048576]"},
      {"random_k:block=1048577", "reducer random_k: block=1048577 is not"},
      {"topk:residual=2", "reducer topk: residual=2"},
      {"topk:momentum=1", "momentum=1: it is below 1"},
      {"topk:momentum=-0.1", "momentum=-0.1 is not"},
      {"topk:momentum=0.9,residual=0", "momentum=0.9: it is below 1, and needs residual=1"},
      {"topk:mask=1", "mask=1 is about a velocity"},
      {"topk:warm=-1", "warm=-1 is not"},
      {"topk:k=0.1,k=0.2", "reducer spec: k is given twice, as 0.1 and as 0.2"},
      {"random_k:residual=1,unbiased=1", "unbiased=1 and residual=1"},
      {"clt_k:beta=0", "reducer clt_k: beta=0 is not"},
      {"count_sketch|hbi", "reducer count_sketch: it sums integers"},
      {"count_sketch:rows=3", "reducer count_sketch: unknown key rows (=3); it has no keys"},
      {"powersgd:rank=0", "reducer powersgd: rank=0 is not an integer in [1, 1024]"},
      {"topk|", "codec spec: empty codec name"},
      {"topk|none|none", "codec spec"},
      {"topk|hbi:bits=99", "bits=99"},
      {"topk|hbi:local=fp32", "local=fp32"},
  };
  for (const Wrong& c : cases) {
    const auto made = MakeReducer(c.spec);
    ASSERT_FALSE(made.ok()) << c.spec;
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
    EXPECT_NE(made.status().message().find(c.text), std::string::npos)
        << c.spec << ": " << made.status().message();
  }
}

TEST(ReducerSpecTest, TensorsAreChecked) {
  EXPECT_TRUE(CheckTensor({.rows = 0, .cols = 7}).ok());
  EXPECT_TRUE(CheckTensor({.rows = 1, .cols = 0xFFFFFFFF}).ok());
  EXPECT_FALSE(CheckTensor({.rows = 1, .cols = 0x100000000}).ok());
  EXPECT_FALSE(CheckTensor({.rows = uint64_t{1} << 63, .cols = 2}).ok());
  EXPECT_FALSE(CheckTensor({.rows = 1, .cols = 1, .type = DataType::kFloat64}).ok());
  EXPECT_FALSE(CheckTensor({.rows = 1, .cols = 1, .type = DataType::kInt32}).ok());
}

}  // namespace
}  // namespace inccl::test
