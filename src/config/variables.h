// SPDX-License-Identifier: Apache-2.0
//
// The table of all environment variables: name, type, meaning, values, default. Callers pass in the
// environment (including settings from files) as a function.
#ifndef INCCL_CONFIG_VARIABLES_H_
#define INCCL_CONFIG_VARIABLES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace inccl {

// Like getenv: nullptr if the variable is not set. An empty value counts as not set.
using GetEnv = std::function<const char*(const char* name)>;
// Where a variable is set, for messages: "environment", "/etc/inccl.conf:3".
using WhereSet = std::function<std::string(const char* name)>;

// The protection of connections over a network; docs/transports.md.
enum class NetSecurity { kAuth, kEncrypt, kNone };
const char* Name(NetSecurity security);

// TCP ports; first 0: any that the kernel chooses.
struct PortRange {
  int first = 0, last = 0;

  bool operator==(const PortRange&) const = default;
};

// One checked and converted field per variable; VariableTable explains them.
struct Environment {
  std::string algo;                               // INCCL_ALGO
  std::string tuner_file;                         // INCCL_TUNER_FILE
  int channels = 1;                               // INCCL_CHANNELS
  int64_t slice_bytes = 128 * 1024;               // INCCL_SLICE_BYTES
  int64_t slot_bytes_max = 64 << 20;              // INCCL_SLOT_BYTES_MAX
  bool slot_bytes_given = false;                  // it is set
  int64_t nt_store_bytes = 16 << 20;              // INCCL_TEST_NT_STORE_BYTES
  int threads = 1;                                // INCCL_THREADS
  std::string transport;                          // INCCL_TRANSPORT: names, comma-separated
  std::string ucx_tls;                            // INCCL_UCX_TLS: names, comma-separated
  std::string ib_hca;                             // INCCL_IB_HCA
  int ib_gid_index = -1;                          // INCCL_IB_GID_INDEX
  int ib_tc = 0;                                  // INCCL_IB_TC
  int ib_timeout = 14;                            // INCCL_IB_TIMEOUT
  std::string simd;                               // INCCL_TEST_SIMD
  std::string codec;                              // INCCL_CODEC
  NetSecurity net_security = NetSecurity::kAuth;  // INCCL_NET_SECURITY
  int sockets_per_peer = 0;                       // INCCL_SOCKETS_PER_PEER; 0: as links require
  std::string comm_id;                            // INCCL_COMM_ID: host:port
  std::string secret_file;                        // INCCL_SECRET_FILE
  std::string socket_ifname;                      // INCCL_SOCKET_IFNAME
  PortRange port_range;                           // INCCL_PORT_RANGE
  std::string socket_allow;                       // INCCL_SOCKET_ALLOW: networks
  std::string hostid;                             // INCCL_HOSTID
  int control_all_pairs = 64;                     // INCCL_TEST_CONTROL_ALL_PAIRS
  LogLevel debug = LogLevel::kWarn;               // INCCL_DEBUG
  uint32_t debug_subsys = kDefaultLogSubsystems;  // INCCL_DEBUG_SUBSYS
  std::string debug_file;                         // INCCL_DEBUG_FILE
  bool reproducible = false;                      // INCCL_REPRODUCIBLE
  bool abort_on_error = false;                    // INCCL_ABORT_ON_ERROR
  bool status = true;                             // INCCL_STATUS
  int init_timeout_ms = 120000;                   // INCCL_INIT_TIMEOUT_MS
  int op_timeout_ms = 600000;                     // INCCL_OP_TIMEOUT_MS
  int heartbeat_ms = 0;            // INCCL_TEST_HEARTBEAT_MS; 0: as dead_timeout_ms requires
  int dead_timeout_ms = 10000;     // INCCL_DEAD_TIMEOUT_MS
  double link_gbps = 0;            // INCCL_TEST_LINK_GBPS
  double link_us = 0;              // INCCL_TEST_LINK_US
  std::optional<int> rank;         // INCCL_RANK
  std::optional<int> size;         // INCCL_SIZE
  std::optional<std::string> job;  // INCCL_JOB
  std::string conf_file;           // INCCL_CONF_FILE
};

// One entry of the table, for tools that print it.
struct VariableInfo {
  const char* name;
  const char* meaning;
  const char* values;
  const char* default_value;
  const char* type;  // "flag", "integer", "bytes", "list", ...; blanks count in "text" and "path"
  // The value differs between processes, so files that several processes read must not set it.
  bool environment_only = false;
  // Only tests and measurements set it.
  bool IsForTests() const { return std::string_view(name).starts_with(kTestPrefix); }

  static constexpr const char* kTestPrefix = "INCCL_TEST_";
};
std::span<const VariableInfo> VariableTable();
// Finds a variable by its name; nullptr if the library has none of that name.
const VariableInfo* FindVariable(std::string_view name);

// Reads all variables. At the first bad one a kInvalidArgument names the variable, where it is set
// (if `where` is given), its value and the allowed values; or it names two conflicting variables.
Result<Environment> ReadEnvironment(const GetEnv& get, const WhereSet& where = {});

// "; did you mean INCCL_ALGO?" for a name that is probably that one, misspelt; else "".
std::string DidYouMean(std::string_view name);

// Names in `environment` (in the format of environ: "NAME=value" pointers up to a nullptr) that
// begin with INCCL_ but are not in the table, i.e. probably misspelt. INCCL_TEST_* is for tests.
std::vector<std::string> UnknownVariables(const char* const* environment);

}  // namespace inccl

#endif  // INCCL_CONFIG_VARIABLES_H_
