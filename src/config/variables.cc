// SPDX-License-Identifier: Apache-2.0
#include "config/variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "config/values.h"

namespace inccl {
namespace {

using Text = std::string_view;

constexpr int kDayMs = 24 * 3600 * 1000;
constexpr int kMostRanks = 1 << 20;

// Parses a value into its field of the environment. Returns what is wrong, or "".
using ParseFunction = std::string (*)(std::string_view value, Environment* env);

struct Variable {
  VariableInfo info;
  ParseFunction parse;
};

template <typename T>
std::string ParseText(std::string_view value, T* field) {
  *field = std::string(value);
  return "";
}

// Names of ours, whatever their case.
std::string ParseName(std::string_view value, std::string* field) {
  *field = Lower(value);
  return "";
}

// Names of others, which must fit their grammar.
std::string ParseNames(std::string_view value, std::string* field) {
  const Result<NameList> list = ParseNameList(value);
  if (!list.ok()) return list.status().message();
  field->assign(value);
  return "";
}

std::string ParseLevel(std::string_view value, LogLevel* field) {
  return ParseLogLevel(value, field) ? "" : "not a level";
}

// The error text for a list with an unknown word.
std::string NoSuchWord(std::string_view value, std::string_view word, const char* what) {
  return value == word ? fmt::format("no {}", what)
                       : fmt::format("a list with \"{}\", which is no {}", word, what);
}

std::string ParseTransports(std::string_view value, std::string* field) {
  *field = Lower(value);
  for (std::string_view rest = *field; true;) {
    const size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (name != "loopback" && name != "shm" && name != "verbs" && name != "ucx" && name != "tcp") {
      return NoSuchWord(value, name, "transport of this version");
    }
    if (comma == std::string_view::npos) return "";
    rest.remove_prefix(comma + 1);
  }
}

std::string ParseUcxTls(std::string_view value, std::string* field) {
  *field = Lower(value);
  const bool names = std::all_of(field->begin(), field->end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ',';
  });
  return names && value.size() <= 255 ? "" : "no list of names";
}

std::string ParseNetSecurity(std::string_view value, NetSecurity* field) {
  for (const auto security : {NetSecurity::kAuth, NetSecurity::kEncrypt, NetSecurity::kNone}) {
    if (Lower(value) != Name(security)) continue;
    *field = security;
    return "";
  }
  return "none of auth, encrypt and none";
}

std::string ParseCommId(std::string_view value, std::string* field) {
  const size_t colon = value.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0) return "no host and port";
  if (!ParseInteger(value.substr(colon + 1), 1, 65535, &port).empty()) return "no host and port";
  field->assign(value);
  return "";
}

std::string ParsePortRange(std::string_view value, PortRange* field) {
  const size_t dash = value.find('-');
  const std::string_view last = dash == std::string_view::npos ? value : value.substr(dash + 1);
  PortRange range;
  if (!ParseInteger(value.substr(0, dash), 1, 65535, &range.first).empty() ||
      !ParseInteger(last, 1, 65535, &range.last).empty() || range.first > range.last) {
    return "no range of ports";
  }
  *field = range;
  return "";
}

std::string ParseDebugFile(std::string_view value, std::string* field) {
  field->assign(value);
  return CheckLogFileName(value);
}

std::string ParseDebugSubsystems(std::string_view value, Environment* env) {
  std::string unknown;
  if (ParseLogSubsystems(value, &env->debug_subsys, &unknown)) return "";
  return NoSuchWord(value, unknown, "subsystem");
}

// Names variables that conflict; "" if none do.
std::string CheckTogether(const Environment& env) {
  if (env.net_security == NetSecurity::kNone) return "";
  for (std::string_view rest = env.ucx_tls; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (name == "tcp" || name == "all") {
      return fmt::format(
          "\"{}\" opens a TCP port on which UCX authenticates no peer: any process that reaches "
          "it can write into this one; INCCL_NET_SECURITY=none admits that, auth, the default, "
          "does not",
          name);
    }
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return "";
}

constexpr size_t kLongestName = 64;  // no name of the table is nearly as long

// Levenshtein's: how many letters to insert, drop or change.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

constexpr const char* kMilliseconds = "milliseconds, 1 to 86400000";

const Variable kVariables[] = {
    {{"INCCL_ALGO", "algorithms that may run; the tuner chooses among them",
      "ring, tree, recursive_doubling, direct, direct_one_shot, direct_two_shot, hierarchical, in "
      "NCCL_ALGO's "
      "grammar: ring,tree; ^tree; ring;allreduce:direct",
      "any", "list"},
     [](Text v, Environment* e) { return ParseName(v, &e->algo); }},
    {{"INCCL_TUNER_FILE", "what inccl-tune has measured: the tuner's table; equal on all ranks",
      "a path (docs/tools.md)", "none", "path"},
     [](Text v, Environment* e) { return ParseText(v, &e->tuner_file); }},
    {{"INCCL_CHANNELS", "independent lanes per pair of ranks", "1 to 32", "1", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 32, &e->channels); }},
    {{"INCCL_SLICE_BYTES",
      "bytes of a slot: the largest slice, the unit of the pipeline; where nothing is set and all "
      "ranks have a device (CUDA), 524288",
      "4096 to 4194304 (4K to 4M)", "131072", "bytes"},
     [](Text v, Environment* e) { return ParseBytes(v, 4096, 4 << 20, &e->slice_bytes); }},
    {{"INCCL_SLOT_BYTES_MAX",
      "bytes of data slots that one algorithm may take per rank and communicator; slices become "
      "smaller, and the library chooses algorithms with fewer peers, until they fit; where nothing "
      "is "
      "set and links are long, eight times what they hold, at most 1G",
      "65536 to 1099511627776 (64K to 1024G)", "67108864", "bytes"},
     [](Text v, Environment* e) {
       e->slot_bytes_given = true;
       return ParseBytes(v, int64_t{1} << 16, int64_t{1} << 40, &e->slot_bytes_max);
     }},
    {{"INCCL_THREADS",
      "threads that share the work of a rank inside one call, the calling thread included; results "
      "do not depend on it; give each rank as many processors (docs/threads.md)",
      "1 to 64", "1", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 64, &e->threads); }},
    {{"INCCL_TRANSPORT",
      "transports that may be chosen: each pair of ranks takes the first that both can use; shm "
      "joins ranks of one host only, loopback ranks of one process only",
      "loopback, shm, verbs, ucx, tcp, or a list in order of preference",
      "loopback for threads; shm,verbs,ucx,tcp for processes", "list"},
     [](Text v, Environment* e) { return ParseTransports(v, &e->transport); }},
    {{"INCCL_UCX_TLS", "UCX's transports for the transport ucx, as in UCX_TLS",
      "names, comma-separated: sysv, posix, rc, ...; tcp and all only with INCCL_NET_SECURITY=none",
      "sysv", "list"},
     [](Text v, Environment* e) { return ParseUcxTls(v, &e->ucx_tls); }},
    {{"INCCL_IB_HCA",
      "ports of RDMA devices that the transport verbs may use; it takes the fastest ones near to "
      "the "
      "process",
      "device or device:port, comma-separated, as prefixes; = before: exact names; ^ before: all "
      "but these",
      "all", "list"},
     [](Text v, Environment* e) { return ParseNames(v, &e->ib_hca); }},
    {{"INCCL_IB_GID_INDEX", "GID of the RDMA port",
      "-1 to 255; -1: RoCE v2, not link-local, IPv4 before IPv6", "-1", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, -1, 255, &e->ib_gid_index); }},
    {{"INCCL_IB_TC", "traffic class of RDMA packets", "0 to 255", "0", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 0, 255, &e->ib_tc); }},
    {{"INCCL_IB_TIMEOUT",
      "an RDMA device sends again after 4.096 us * 2^N without an answer, and gives up after 7 "
      "times",
      "1 to 31", "14", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 31, &e->ib_timeout); }},
    {{"INCCL_CODEC", "codec of compressed calls that name none",
      "a codec specification (docs/codecs.md)", "hbi:bits=6", "codec"},
     [](Text v, Environment* e) { return ParseName(v, &e->codec); }},
    {{"INCCL_NET_SECURITY",
      "what protects the ranks' data over a network: auth, a tag over every header with the data's "
      "checksum; encrypt, AES-128-GCM; none, a checksum; equal on all ranks",
      "auth, encrypt, none", "auth", "name"},
     [](Text v, Environment* e) { return ParseNetSecurity(v, &e->net_security); }},
    {{"INCCL_SOCKETS_PER_PEER", "TCP connections that carry data between two ranks; equal on all",
      "1 to 32", "1; more over long links", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 32, &e->sockets_per_peer); }},
    {{"INCCL_COMM_ID",
      "where rank 0 listens for the ranks of a launcher's job on several hosts; equal on all "
      "ranks, "
      "with INCCL_SECRET_FILE",
      "host:port, 192.0.2.1:port, [2001:db8::1]:port", "none", "address"},
     [](Text v, Environment* e) { return ParseCommId(v, &e->comm_id); }},
    {{"INCCL_SECRET_FILE",
      "file whose content ranks need to join, besides the unique id or what the launcher says; for "
      "all ranks and the maker of the id, or for none",
      "a path; the file has 16 bytes or more and is readable by its owner only (mode 0600)", "none",
      "path"},
     [](Text v, Environment* e) { return ParseText(v, &e->secret_file); }},
    {{"INCCL_SOCKET_IFNAME",
      "interface on which ranks listen for ranks of other machines, and the creator of a unique id "
      "for all",
      "prefixes, comma-separated; = before: exact names; ^ before: all but these",
      "^lo,docker,virbr; without one, lo", "list"},
     [](Text v, Environment* e) { return ParseNames(v, &e->socket_ifname); }},
    {{"INCCL_PORT_RANGE",
      "TCP ports at which ranks listen for ranks of other machines, and the creator of a unique id",
      "first-last, 1 to 65535", "any, chosen by the kernel", "range"},
     [](Text v, Environment* e) { return ParsePortRange(v, &e->port_range); }},
    {{"INCCL_SOCKET_ALLOW",
      "networks whose TCP connections a rank accepts, besides those of its own host",
      "addresses or networks, comma-separated: 10.0.0.0/8,2001:db8::/32", "any", "list"},
     [](Text v, Environment* e) { return ParseText(v, &e->socket_allow); }},
    {{"INCCL_HOSTID",
      "ranks with equal values count as being on one host, ranks with different ones as on "
      "different hosts, to fake several hosts on one machine; with machine: before it the value "
      "stands for the machine, too, for virtual machines that were copied from a running one",
      "any text, machine:NAME", "from the kernel's boot id and the network namespace", "text"},
     [](Text v, Environment* e) { return ParseText(v, &e->hostid); }},
    {{"INCCL_DEBUG", "what is logged; each level contains those before it",
      "NONE, VERSION, WARN, INFO, TRACE", "WARN", "level"},
     [](Text v, Environment* e) { return ParseLevel(v, &e->debug); }},
    {{"INCCL_DEBUG_SUBSYS", "what INFO and TRACE lines are about",
      "INIT, BOOTSTRAP, ENV, TRANSPORT, CONTROL, COLL, CODEC, TUNING, ALL; lists; ^ before: all "
      "but",
      "INIT,BOOTSTRAP,ENV", "list"},
     ParseDebugSubsystems},
    {{"INCCL_DEBUG_FILE", "file that the log is appended to",
      "a path; %h: host name, %p: process id, %%: %", "standard error", "path"},
     [](Text v, Environment* e) { return ParseDebugFile(v, &e->debug_file); }},
    {{"INCCL_REPRODUCIBLE", "1: float sums in rank order, compressed or not", "0, 1", "0", "flag"},
     [](Text v, Environment* e) { return ParseFlag(v, &e->reproducible); }},
    {{"INCCL_ABORT_ON_ERROR",
      "1: the process aborts at the first fatal error of a communicator, during a call or between "
      "calls",
      "0, 1", "0", "flag"},
     [](Text v, Environment* e) { return ParseFlag(v, &e->abort_on_error); }},
    {{"INCCL_STATUS", "1: inccl-status sees the communicators of this process", "0, 1", "1",
      "flag"},
     [](Text v, Environment* e) { return ParseFlag(v, &e->status); }},
    {{"INCCL_INIT_TIMEOUT_MS", "limit for creating a communicator", kMilliseconds, "120000",
      "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->init_timeout_ms); }},
    {{"INCCL_OP_TIMEOUT_MS", "limit for an operation without progress", kMilliseconds, "600000",
      "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->op_timeout_ms); }},
    {{"INCCL_DEAD_TIMEOUT_MS",
      "silence after which a process counts as dead, at least 3; signs of life come ten times as "
      "often, and once per second at least; one that ends is "
      "seen at once; 0, or more time, for ranks that are stopped in a debugger",
      "milliseconds, 1 to 86400000; 0: never", "10000", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 0, kDayMs, &e->dead_timeout_ms); }},
    {{"INCCL_RANK", "this process's rank, where no launcher says it", "0 to size - 1", "none",
      "integer", true},
     [](Text v, Environment* e) { return ParseInteger(v, 0, kMostRanks - 1, &e->rank); }},
    {{"INCCL_SIZE", "number of ranks, where no launcher says it", "1 to 1048576", "none", "integer",
      true},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kMostRanks, &e->size); }},
    {{"INCCL_JOB",
      "name that the ranks of one job share and no other job of this user has; needed where no "
      "launcher names the job, as beside INCCL_RANK",
      "any text", "from the launcher", "text", true},
     [](Text v, Environment* e) { return ParseText(v, &e->job); }},
    {{"INCCL_CONF_FILE", "configuration file that is read in place of the user's", "a path",
      "$XDG_CONFIG_HOME/inccl.conf, else ~/.inccl.conf", "path", true},
     [](Text v, Environment* e) { return ParseText(v, &e->conf_file); }},
    // For tests and measurements.
    {{"INCCL_TEST_NT_STORE_BYTES",
      "results of this size or more that are not in place are written with non-temporal stores; "
      "about half of a last-level cache",
      "0 to 2^62", "16777216", "bytes"},
     [](Text v, Environment* e) { return ParseBytes(v, 0, int64_t{1} << 62, &e->nt_store_bytes); }},
    {{"INCCL_TEST_SIMD",
      "instruction set of the kernels, for measuring; results do not depend on it",
      "best, scalar, ssse3, sse4, avx2, avx512, avx512dl, ... (what this CPU has)", "best", "name"},
     [](Text v, Environment* e) { return ParseName(v, &e->simd); }},
    {{"INCCL_TEST_CONTROL_ALL_PAIRS",
      "control and TCP data connections join all pairs of a communicator with so many ranks or "
      "fewer; with more ranks, each has control connections to ranks at distances of powers of two "
      "and to those of its host, and connects for data when it needs a peer; equal on all ranks",
      "1 to 4096", "64", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 4096, &e->control_all_pairs); }},
    {{"INCCL_TEST_HEARTBEAT_MS", "interval of the signs of life between processes", kMilliseconds,
      "a tenth of INCCL_DEAD_TIMEOUT_MS, 1000 at most", "integer"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->heartbeat_ms); }},
    {{"INCCL_TEST_LINK_GBPS", "emulated link: rate of each rank's port, in 10^9 bit/s",
      "0 to 1000000; 0: off", "0", "number"},
     [](Text v, Environment* e) { return ParseReal(v, 1e6, &e->link_gbps); }},
    {{"INCCL_TEST_LINK_US", "emulated link: one-way delay in microseconds", "0 to 10000000; 0: off",
      "0", "number"},
     [](Text v, Environment* e) { return ParseReal(v, 1e7, &e->link_us); }},
};

std::vector<VariableInfo> MakeTable() {
  std::vector<VariableInfo> table;
  for (const Variable& variable : kVariables) table.push_back(variable.info);
  return table;
}

}  // namespace

const char* Name(NetSecurity security) {
  switch (security) {
    case NetSecurity::kAuth: return "auth";
    case NetSecurity::kEncrypt: return "encrypt";
    case NetSecurity::kNone: break;
  }
  return "none";
}

std::span<const VariableInfo> VariableTable() {
  static const auto* const table = new std::vector<VariableInfo>(MakeTable());
  return *table;
}

const VariableInfo* FindVariable(std::string_view name) {
  const std::span<const VariableInfo> table = VariableTable();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const VariableInfo& info) { return name == info.name; });
  return found == table.end() ? nullptr : &*found;
}

Result<Environment> ReadEnvironment(const GetEnv& get, const WhereSet& where) {
  Environment env;
  for (const Variable& variable : kVariables) {
    const char* const name = variable.info.name;
    const char* const value = get(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view type = variable.info.type;
    const bool literal = type == "text" || type == "path";
    const std::string text = literal ? value : WithoutBlanks(value);
    if (text.empty()) continue;
    if (const std::string wrong = variable.parse(text, &env); !wrong.empty()) {
      const std::string source = where ? fmt::format(" ({})", where(name)) : "";
      return InvalidArgument(Escaped(fmt::format("{}{}: \"{}\" is {}; it takes {}", name, source,
                                                 value, wrong, variable.info.values)));
    }
  }
  if (const std::string wrong = CheckTogether(env); !wrong.empty()) {
    const std::string source = where ? fmt::format(" ({})", where("INCCL_UCX_TLS")) : "";
    return InvalidArgument(fmt::format("INCCL_UCX_TLS{}: {}", source, wrong));
  }
  return env;
}

std::string DidYouMean(std::string_view name) {
  // Also a name with NCCL's prefix, one of tests without its prefix, and one that is cut or goes
  // on.
  if (name.size() > kLongestName) return "";
  const size_t prefix = name.starts_with("INCCL_") ? 6 : name.starts_with("NCCL_") ? 5 : 0;
  const std::string own = "INCCL_" + std::string(name.substr(prefix));
  const std::string test = VariableInfo::kTestPrefix + own.substr(6);
  constexpr size_t kShortest = 10;  // of what two names have in common
  std::string_view nearest;
  size_t least = 2;  // more changes make another name
  for (const VariableInfo& info : VariableTable()) {
    const std::string_view known = info.name;
    const bool goes_on = std::min(known.size(), own.size()) >= kShortest &&
                         (known.starts_with(own) || own.starts_with(known));
    size_t changes = known == test ? 0 : EditDistance(known, own);
    if (goes_on) changes = std::min<size_t>(changes, 2);
    if (changes > least || (changes == least && known.size() <= nearest.size())) continue;
    least = changes;
    nearest = known;
  }
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

std::vector<std::string> UnknownVariables(const char* const* environment) {
  std::vector<std::string> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("INCCL_") || name.starts_with(VariableInfo::kTestPrefix)) continue;
    // Read by the Python package and by libnccl.so.2.
    if (name == "INCCL_LIBRARY" || name.starts_with("INCCL_NCCL_")) continue;
    if (FindVariable(name) == nullptr) unknown.emplace_back(name);
  }
  return unknown;
}

}  // namespace inccl
