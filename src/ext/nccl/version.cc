// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/version.h"

#include <stdio.h>
#include <stdlib.h>

#include "ext/nccl/error.h"
#include "ext/nccl/export.h"

namespace inccl::nccl {
namespace {

int ReadVersion() {
  const char* const text = secure_getenv("INCCL_NCCL_VERSION");
  if (text == nullptr || text[0] == '\0') return kDefaultVersion;
  int major = 0, minor = 0, patch = 0, end = 0;
  if (sscanf(text, "%d.%d.%d%n", &major, &minor, &patch, &end) == 3 && text[end] == '\0' &&
      major == 2 && minor >= 9 && minor < 100 && patch >= 0 && patch < 100) {
    return major * 10000 + minor * 100 + patch;
  }
  end = 0;
  if (sscanf(text, "%d%n", &major, &end) == 1 && text[end] == '\0' && major >= 20900 &&
      major < 30000) {
    return major;
  }
  Warn("INCCL_NCCL_VERSION: %s is not of the form 2.30.7 or 23007", text);
  return kDefaultVersion;
}

}  // namespace

int ReportedVersion() {
  static int known = 0;  // two threads may both find it out
  int version = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (version == 0) {
    version = ReadVersion();
    __atomic_store_n(&known, version, __ATOMIC_RELAXED);
  }
  return version;
}

}  // namespace inccl::nccl

INCCL_NCCL_EXPORT(int, GetVersion, (int* version)) {
  if (version == nullptr) {
    inccl::nccl::Warn("ncclGetVersion: version is NULL");
    return CCL_INVALID_ARGUMENT;
  }
  *version = inccl::nccl::ReportedVersion();
  return CCL_SUCCESS;
}
