// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace inccl {
namespace {

using Text = std::string_view;

constexpr int kDayMs = 24 * 3600 * 1000;
constexpr int kMostRanks = 1 << 20;

// What is wrong with a value; "" if nothing is. Sets its field of the environment.
using ParseFunction = std::string (*)(std::string_view value, Environment* env);

struct Variable {
  VariableInfo info;
  ParseFunction parse;
};

template <typename T>
std::string ParseInteger(std::string_view value, int64_t low, int64_t high, T* field) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) return "not a whole number";
  if (number < low || number > high) return fmt::format("not in [{}, {}]", low, high);
  *field = static_cast<int>(number);
  return "";
}

std::string ParseReal(std::string_view value, double high, double* field) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) return "not a number";
  if (number < 0 || number > high) return fmt::format("not in [0, {}]", high);
  *field = number;
  return "";
}

std::string ParseFlag(std::string_view value, bool* field) {
  if (value != "0" && value != "1") return "neither 0 nor 1";
  *field = value == "1";
  return "";
}

template <typename T>
std::string ParseText(std::string_view value, T* field) {
  *field = std::string(value);
  return "";
}

std::string ParseLevel(std::string_view value, LogLevel* field) {
  return ParseLogLevel(value, field) ? "" : "not a level";
}

std::string ParseTransports(std::string_view value, std::string* field) {
  field->assign(value);
  while (true) {
    const size_t comma = value.find(',');
    const std::string_view name = value.substr(0, comma);
    if (name != "loopback" && name != "shm") {
      return fmt::format("\"{}\" is no transport of this version (loopback, shm)", name);
    }
    if (comma == std::string_view::npos) return "";
    value.remove_prefix(comma + 1);
  }
}

std::string ParseCommId(std::string_view value, std::string* field) {
  const size_t colon = value.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !ParseInteger(value.substr(colon + 1), 1, 65535, &port).empty()) {
    return "not of the form host:port";
  }
  field->assign(value);
  return "";
}

std::string ParseDebugSubsystems(std::string_view value, Environment* env) {
  std::string unknown;
  if (ParseLogSubsystems(value, &env->debug_subsys, &unknown)) return "";
  return fmt::format("\"{}\" is no subsystem", unknown);
}

constexpr const char* kMilliseconds = "milliseconds, 1 to 86400000";

const Variable kVariables[] = {
    {{"INCCL_ALGO", "algorithms that may be chosen",
      "ring, tree, recursive_doubling, direct; lists, ^ and collective: as in NCCL_ALGO", "any"},
     [](Text v, Environment* e) { return ParseText(v, &e->algo); }},
    {{"INCCL_CHANNELS", "independent lanes per pair of ranks", "1 to 32", "1"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, 32, &e->channels); }},
    {{"INCCL_SLICE_BYTES", "largest slice, the unit of the pipeline", "4096 to 4194304", "131072"},
     [](Text v, Environment* e) { return ParseInteger(v, 4096, 4 << 20, &e->slice_bytes); }},
    {{"INCCL_TRANSPORT", "transports that may be chosen", "loopback, shm, or a list",
      "loopback for threads, shm for processes"},
     [](Text v, Environment* e) { return ParseTransports(v, &e->transport); }},
    {{"INCCL_SIMD", "instruction set of the kernels", "scalar, avx2, avx512, ...",
      "the best this CPU has"},
     [](Text v, Environment* e) { return ParseText(v, &e->simd); }},
    {{"INCCL_CODEC", "codec of compressed calls that name none", "a codec specification",
      "hbi:bits=6"},
     [](Text v, Environment* e) { return ParseText(v, &e->codec); }},
    {{"INCCL_COMM_ID", "where rank 0 listens", "host:port", "none"},
     [](Text v, Environment* e) { return ParseCommId(v, &e->comm_id); }},
    {{"INCCL_SECRET_FILE", "file whose content is mixed into every key",
      "a path; the file must be readable by its owner only", "none"},
     [](Text v, Environment* e) { return ParseText(v, &e->secret_file); }},
    {{"INCCL_SOCKET_IFNAME", "network interface to listen on",
      "prefixes, comma-separated; = before: exact names; ^ before: all but these",
      "the loopback interface"},
     [](Text v, Environment* e) { return ParseText(v, &e->socket_ifname); }},
    {{"INCCL_HOSTID", "ranks with equal values count as being on one host", "any text",
      "from the kernel's boot id"},
     [](Text v, Environment* e) { return ParseText(v, &e->hostid); }},
    {{"INCCL_DEBUG", "what is logged", "VERSION, WARN, INFO, TRACE", "nothing"},
     [](Text v, Environment* e) { return ParseLevel(v, &e->debug); }},
    {{"INCCL_DEBUG_SUBSYS", "what INFO and TRACE lines are about",
      "INIT, BOOTSTRAP, ENV, TRANSPORT, CONTROL, COLL, CODEC, TUNING, ALL; lists; ^ before: all "
      "but",
      "INIT,BOOTSTRAP,ENV"},
     ParseDebugSubsystems},
    {{"INCCL_DEBUG_FILE", "file for the log; %h: host name, %p: process id", "a path",
      "standard error"},
     [](Text v, Environment* e) { return ParseText(v, &e->debug_file); }},
    {{"INCCL_REPRODUCIBLE", "uncompressed float sums in rank order", "0, 1", "0"},
     [](Text v, Environment* e) { return ParseFlag(v, &e->reproducible); }},
    {{"INCCL_ABORT_ON_ERROR", "the process ends at the first error of a communicator", "0, 1", "0"},
     [](Text v, Environment* e) { return ParseFlag(v, &e->abort_on_error); }},
    {{"INCCL_INIT_TIMEOUT_MS", "limit for creating a communicator", kMilliseconds, "120000"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->init_timeout_ms); }},
    {{"INCCL_OP_TIMEOUT_MS", "limit for an operation without progress", kMilliseconds, "600000"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->op_timeout_ms); }},
    {{"INCCL_HEARTBEAT_TIMEOUT_MS", "interval of signs of life between hosts", kMilliseconds,
      "1000"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->heartbeat_timeout_ms); }},
    {{"INCCL_DEAD_TIMEOUT_MS", "silence after which a peer on another host counts as dead",
      kMilliseconds, "10000"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kDayMs, &e->dead_timeout_ms); }},
    {{"INCCL_LINK_GBPS", "emulated link: rate of each rank's port", "Gbit/s; 0: off", "0"},
     [](Text v, Environment* e) { return ParseReal(v, 1e6, &e->link_gbps); }},
    {{"INCCL_LINK_US", "emulated link: one-way delay", "microseconds; 0: off", "0"},
     [](Text v, Environment* e) { return ParseReal(v, 1e7, &e->link_us); }},
    {{"INCCL_RANK", "this process's rank, where no launcher says it", "0 to size - 1", "none"},
     [](Text v, Environment* e) { return ParseInteger(v, 0, kMostRanks - 1, &e->rank); }},
    {{"INCCL_SIZE", "number of ranks, where no launcher says it", "1 to 1048576", "none"},
     [](Text v, Environment* e) { return ParseInteger(v, 1, kMostRanks, &e->size); }},
    {{"INCCL_JOB", "name that the ranks of one job share and no other job of this user has",
      "any text", "from the launcher"},
     [](Text v, Environment* e) { return ParseText(v, &e->job); }},
};

std::vector<VariableInfo> MakeTable() {
  std::vector<VariableInfo> table;
  for (const Variable& variable : kVariables) table.push_back(variable.info);
  return table;
}

}  // namespace

std::span<const VariableInfo> VariableTable() {
  static const auto* const table = new std::vector<VariableInfo>(MakeTable());
  return *table;
}

Result<Environment> ReadEnvironment(const GetEnv& get) {
  Environment env;
  for (const Variable& variable : kVariables) {
    const char* value = get(variable.info.name);
    if (value == nullptr || *value == '\0') continue;
    if (const std::string wrong = variable.parse(value, &env); !wrong.empty()) {
      return InvalidArgument(fmt::format("{}: \"{}\" is {}; it takes {}", variable.info.name, value,
                                         wrong, variable.info.values));
    }
  }
  return env;
}

std::vector<std::string> UnknownVariables(const char* const* environment) {
  std::vector<std::string> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("INCCL_") || name.starts_with("INCCL_TEST_")) continue;
    const bool known = std::any_of(std::begin(kVariables), std::end(kVariables),
                                   [&](const Variable& v) { return name == v.info.name; });
    if (!known) unknown.emplace_back(name);
  }
  return unknown;
}

}  // namespace inccl
