// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <initializer_list>

#include "ext/nccl/error.h"

namespace inccl::nccl {
namespace {

struct Pair {
  const char* nccl;
  const char* inccl;
};

// Variables with the same values in both libraries.
constexpr Pair kSame[] = {
    {"NCCL_DEBUG_FILE", "INCCL_DEBUG_FILE"},
    {"NCCL_SOCKET_IFNAME", "INCCL_SOCKET_IFNAME"},
    {"NCCL_HOSTID", "INCCL_HOSTID"},
    {"NCCL_IB_HCA", "INCCL_IB_HCA"},
    {"NCCL_IB_GID_INDEX", "INCCL_IB_GID_INDEX"},
    {"NCCL_IB_TC", "INCCL_IB_TC"},
    {"NCCL_IB_TIMEOUT", "INCCL_IB_TIMEOUT"},
};

const char* Value(const char* name) {
  const char* const value = secure_getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

// libinccl has no level ABORT, and logs warnings unless it is told not to.
void TranslateDebug() {
  if (Value("INCCL_DEBUG") != nullptr) return;
  const char* const level = Value("NCCL_DEBUG");
  const char* ours = "NONE";
  if (level != nullptr && strcasecmp(level, "WARN") == 0) ours = "WARN";
  for (const char* more : {"INFO", "ABORT", "TRACE"}) {
    if (level != nullptr && strcasecmp(level, more) == 0) ours = "INFO";
  }
  setenv("INCCL_DEBUG", ours, 0);
}

}  // namespace

void TranslateEnvironment() {
  TranslateDebug();
  for (const Pair& pair : kSame) {
    const char* const value = Value(pair.nccl);
    if (value == nullptr || Value(pair.inccl) != nullptr) continue;
    setenv(pair.inccl, value, 1);
    Info("%s=%s is used as %s", pair.nccl, value, pair.inccl);
  }
  for (const char* name : {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
                           "NCCL_ALGO", "NCCL_PROTO", "NCCL_COMM_ID"}) {
    if (Value(name) != nullptr) Info("%s is ignored by inccl", name);
  }
}

}  // namespace inccl::nccl
