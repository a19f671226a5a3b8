// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/config.h"

#include <stdlib.h>
#include <string.h>

#include "ext/nccl/environment.h"
#include "ext/nccl/error.h"

namespace inccl::nccl {
namespace {

struct Field {
  const char* name;
  int Config::*value;
  unsigned since;  // the version of NCCL that added it
  int least, most;
};

constexpr Field kFields[] = {
    {"blocking", &Config::blocking, 21400, 0, 1},
    {"cgaClusterSize", &Config::cga_cluster_size, 21700, 0, INT_MAX},
    {"minCTAs", &Config::min_ctas, 21700, 1, INT_MAX},
    {"maxCTAs", &Config::max_ctas, 21700, 1, INT_MAX},
    {"splitShare", &Config::split_share, 21800, 0, 1},
    {"trafficClass", &Config::traffic_class, 22600, 0, INT_MAX},
    {"collnetEnable", &Config::collnet_enable, 22700, 0, 1},
    {"CTAPolicy", &Config::cta_policy, 22700, 0, INT_MAX},
    {"shrinkShare", &Config::shrink_share, 22700, 0, 1},
    {"nvlsCTAs", &Config::nvls_ctas, 22700, 1, INT_MAX},
    {"nChannelsPerNetPeer", &Config::channels_per_net_peer, 22800, 1, INT_MAX},
    {"nvlinkCentricSched", &Config::nvlink_centric_sched, 22800, 0, 1},
};
constexpr unsigned kCommNameSince = 22700;

ResultCode Copy(const Config& given, Config* config) {
  if (given.size < offsetof(Config, blocking)) {
    Warn("ncclConfig_t: size %zu is too small", given.size);
    return CCL_INVALID_ARGUMENT;
  }
  const size_t bytes = given.size < sizeof *config ? given.size : sizeof *config;
  memcpy(static_cast<void*>(config), &given, bytes);
  if (config->magic != kConfigMagic) {
    Warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    return CCL_INVALID_ARGUMENT;
  }
  for (const Field& field : kFields) {
    int* const value = &(config->*field.value);
    if (config->version < field.since) *value = kUndefined;
    if (*value == kUndefined || (*value >= field.least && *value <= field.most)) continue;
    Warn("Invalid config %s attribute value %d", field.name, *value);
    return CCL_INVALID_ARGUMENT;
  }
  if (config->version < kCommNameSince) config->comm_name = nullptr;
  if (config->min_ctas != kUndefined && config->max_ctas != kUndefined &&
      config->min_ctas > config->max_ctas) {
    Warn("Invalid config: minCTAs %d is greater than maxCTAs %d", config->min_ctas,
         config->max_ctas);
    return CCL_INVALID_ARGUMENT;
  }
  return CCL_SUCCESS;
}

}  // namespace

ResultCode Convert(const Config* given, OwnConfig* own) {
  Config config{};
  for (const Field& field : kFields) config.*field.value = kUndefined;
  if (given != nullptr) {
    const ResultCode result = Copy(*given, &config);
    if (result != CCL_SUCCESS) return result;
  }
  const char* const blocking = Variable("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && (strcmp(blocking, "0") == 0 || strcmp(blocking, "1") == 0)) {
    config.blocking = blocking[0] - '0';
  }
  own->config.blocking = config.blocking == 0 ? 0 : 1;
  if (config.comm_name != nullptr) {
    strncpy(own->name, config.comm_name, sizeof own->name - 1);
    own->config.name = own->name;
  }
  return CCL_SUCCESS;
}

}  // namespace inccl::nccl
