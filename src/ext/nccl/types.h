// SPDX-License-Identifier: Apache-2.0
//
// The binary interface of libnccl.so.2: types and numbers that calls of NCCL have, written from its
// documentation. Enumerations are ints, so that a value that a newer header names is no undefined
// behaviour.
#ifndef INCCL_EXT_NCCL_TYPES_H_
#define INCCL_EXT_NCCL_TYPES_H_

#include <inccl/ccl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

namespace inccl::nccl {

using ResultCode = int;   // ncclResult_t; the numbers are those of ccl_result_t
using Comm = ccl_comm_t;  // ncclComm_t: the shim has no object of its own around a communicator
using CudaStream = void*;
using Window = void*;

struct UniqueId {
  char internal[128];
};
static_assert(sizeof(UniqueId) == sizeof(ccl_unique_id_t));

inline constexpr int kUndefined = INT_MIN;            // of an int in a configuration
inline constexpr unsigned kConfigMagic = 0xcafebeef;  // also of CollConfig

// ncclConfig_t. Newer versions append fields; `version` is the caller's.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* comm_name;
  int collnet_enable;
  int cta_policy;
  int shrink_share;
  int nvls_ctas;
  int channels_per_net_peer;
  int nvlink_centric_sched;  // the last one of 2.28
  int graph_usage_mode;
  int rma_contexts;
  int max_p2p_peers;
  int graph_stream_ordering;
  int launch_order_implicit;
  int rma_signals;
  int rma_eager_init;
  int host_cft_mode;
  int nvls_host_mode;
};

// ncclConfigExt_t: an option of a vendor, in a list.
struct ConfigExt {
  ConfigExt* next;
  struct {
    int vendor_id;
    int option_id;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
};

// ncclCollConfig_t: the configuration of one call, since 2.31.
struct CollConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  ConfigExt* ext;
  int min_ctas;
  int max_ctas;
  int nvls_ctas;
  int cga_cluster_size;
  const char* alg_selection;
  int force_alg_selection;
  int cta_policy;
  uint64_t user_profiler_tag;  // the last one of 2.31
  void* launch_completion_event;
};

// ncclSimInfo_t.
struct SimInfo {
  size_t size;
  unsigned magic;
  unsigned version;
  float estimated_time;
};
inline constexpr unsigned kSimInfoMagic = 0x74685283;

// ncclTeam_t, which functions return by value.
struct Team {
  int nranks;
  int rank;
  int stride;
};

}  // namespace inccl::nccl

// How libnccl.so.2 exports a function: a strong pncclX and a weak ncclX for the same code, so that
// a tool can define ncclX and call pncclX.

#define INCCL_NCCL_VISIBLE __attribute__((visibility("default")))

// INCCL_NCCL_EXPORT(type, AllReduce, (parameters)) { body }
#define INCCL_NCCL_EXPORT(type, name, parameters)            \
  extern "C" INCCL_NCCL_VISIBLE type pnccl##name parameters; \
  extern "C" INCCL_NCCL_VISIBLE type nccl##name parameters   \
      __attribute__((weak, alias("pnccl" #name)));           \
  extern "C" type pnccl##name parameters

#endif  // INCCL_EXT_NCCL_TYPES_H_
