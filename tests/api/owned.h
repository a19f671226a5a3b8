// SPDX-License-Identifier: Apache-2.0
//
// Codecs and residuals of the C API that free themselves.
#ifndef INCCL_TESTS_API_OWNED_H_
#define INCCL_TESTS_API_OWNED_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

struct FreeCodec {
  void operator()(ccl_codec_t codec) const { ccl_codec_destroy(codec); }
};
struct FreeResidual {
  void operator()(ccl_residual_t residual) const { ccl_residual_destroy(residual); }
};
using OwnedCodec = std::unique_ptr<ccl_codec, FreeCodec>;
using OwnedResidual = std::unique_ptr<ccl_residual, FreeResidual>;

inline OwnedCodec MakeCodec(const char* spec) {
  ccl_codec_t codec = nullptr;
  EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  return OwnedCodec(codec);
}

inline OwnedResidual MakeResidual(size_t count, ccl_datatype_t storage = CCL_FLOAT32,
                                  float keep = 0) {
  ccl_residual_config_t config = CCL_RESIDUAL_CONFIG_INIT;
  config.storage = storage;
  config.keep = keep;
  ccl_residual_t residual = nullptr;
  EXPECT_EQ(ccl_residual_create(&residual, count, &config), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  return OwnedResidual(residual);
}

inline std::vector<float> ValuesOf(const OwnedResidual& residual, size_t count) {
  std::vector<float> values(count);
  EXPECT_EQ(ccl_residual_export(residual.get(), values.data(), count), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  return values;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_OWNED_H_
