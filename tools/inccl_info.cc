// SPDX-License-Identifier: Apache-2.0
//
// inccl-info: what this library is, what it finds here, how it is configured, and what a call would
// do (docs/tools.md). Exit status: 0; 1 if the configuration is in error; 2 command line; 3 if
// the output cannot be written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/types.h"
#include "bootstrap/interfaces.h"
#include "inccl/ccl.h"
#include "init/options.h"
#include "perf/support/output.h"
#include "tools/info/dump.h"
#include "tools/info/explain.h"
#include "tools/info/print.h"
#include "tools/info/sections.h"

namespace inccl::tools {
namespace {

constexpr int kBadConfiguration = 1;
constexpr int kBadCommandLine = 2;

struct Options {
  std::vector<std::string> only;
  std::vector<std::string> explain;  // COLLECTIVE SIZE N
  std::vector<std::string> dump;     // ALGORITHM N
  std::string collective = "allreduce";
  std::string type = "float32";
  std::string op = "sum";
  std::string codec;
  std::string algo;
  std::string hosts;
  int channels = 0;
  int root = 0;
  int rank = -1;
  bool compressed = false;
  bool side = false;
  bool dot = false;
  bool json = false;
  bool markdown = false;
};

int Fail(int status, const std::string& message) {
  perf::PrintError("inccl-info: {}\n", Escaped(message));
  return status;
}

// Text of the user's may be no UTF-8, which JSON must be.
void Print(const Json& json) {
  perf::PrintOut("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

Result<int> ParseRanks(const std::string& text) {
  Result<uint64_t> number = ParseSize(text);
  if (!number.ok() || *number > uint64_t{kMaxRanks}) {
    return InvalidArgument(fmt::format("ranks \"{}\" are not a number up to {}", text, kMaxRanks));
  }
  return static_cast<int>(*number);
}

Result<ExplainRequest> ParseExplain(const Options& options) {
  Result<Collective> collective = ParseCollective(options.explain[0]);
  if (!collective.ok()) return collective.status();
  Result<uint64_t> bytes = ParseSize(options.explain[1]);
  if (!bytes.ok()) return bytes.status();
  Result<int> ranks = ParseRanks(options.explain[2]);
  if (!ranks.ok()) return ranks.status();
  Result<HostMap> hosts = ParseHosts(options.hosts, *ranks);
  if (!hosts.ok()) return hosts.status();
  Result<DataType> type = ParseDataType(options.type);
  if (!type.ok()) return type.status();
  Result<ReduceOp> op = ParseReduceOp(options.op);
  if (!op.ok()) return op.status();
  return ExplainRequest{.collective = *collective,
                        .type = *type,
                        .op = *op,
                        .bytes = *bytes,
                        .nranks = *ranks,
                        .root = options.root,
                        .compressed = options.compressed || !options.codec.empty(),
                        .hosts = *hosts};
}

int RunExplain(const Options& options) {
  Result<ExplainRequest> request = ParseExplain(options);
  if (!request.ok()) return Fail(kBadCommandLine, request.status().message());
  // As a communicator would be made: what stands here wins over the environment.
  ccl_config_t config = CCL_CONFIG_INIT;
  if (!options.codec.empty()) config.codec = options.codec.c_str();
  if (!options.algo.empty()) config.algorithm = options.algo.c_str();
  config.channels = options.channels;
  Result<InitOptions> resolved = ResolveOptions(&config);
  if (!resolved.ok()) return Fail(kBadConfiguration, resolved.status().message());
  // Of this machine, where ranks would take the slowest of all.
  resolved->comm.tuner_table.SetLink(bootstrap::LinkMbps(resolved->environment.socket_ifname), 0);
  if (!resolved->environment.slot_bytes_given) {
    resolved->comm.slot_bytes_max =
        DefaultSlotBytes(UnderWay(resolved->comm.tuner_table.costs(), &request->hosts));
  }
  Result<Explanation> explanation = Explain(*request, resolved->comm);
  if (!explanation.ok()) return Fail(kBadCommandLine, explanation.status().message());
  const Json section = ExplainSection(*request, resolved->comm, *explanation);
  if (options.json) {
    Print(section);
  } else {
    perf::PrintOut("{}", ExplainText(section));
  }
  return 0;
}

int RunDump(const Options& options) {
  Result<Algorithm> algorithm = ParseAlgorithm(options.dump[0]);
  if (!algorithm.ok()) return Fail(kBadCommandLine, algorithm.status().message());
  Result<int> ranks = ParseRanks(options.dump[1]);
  if (!ranks.ok()) return Fail(kBadCommandLine, ranks.status().message());
  Result<Collective> collective = ParseCollective(options.collective);
  if (!collective.ok()) return Fail(kBadCommandLine, collective.status().message());
  DumpRequest request;
  request.schedule = {{.collective = *collective, .nranks = *ranks, .root = options.root},
                      *algorithm,
                      std::max(1, options.channels),
                      options.side ? 1u : 0u};
  Result<HostMap> hosts = ParseHosts(options.hosts, *ranks);
  if (!hosts.ok()) return Fail(kBadCommandLine, hosts.status().message());
  request.hosts = *hosts;
  if (options.rank >= 0) request.rank = options.rank;
  request.as = options.dot    ? DumpRequest::As::kDot
               : options.json ? DumpRequest::As::kJson
                              : DumpRequest::As::kText;
  Result<std::string> text = Dump(request);
  if (!text.ok()) return Fail(kBadCommandLine, text.status().message());
  perf::PrintOut("{}", *text);
  return 0;
}

int RunSections(const Options& options) {
  const Result<Settings> settings =
      Settings::Load([](const char* name) { return secure_getenv(name); });
  const std::vector<std::pair<std::string, std::function<Json()>>> sections = {
      {"build", BuildSection},
      {"simd", SimdSection},
      {"transports", TransportsSection},
      {"topology", TopologySection},
      {"limits", LimitsSection},
      {"environment", [&] { return EnvironmentSection(settings); }}};
  // First of all: what it sets, such as INCCL_TEST_SIMD, shows in the other sections.
  const Json environment = EnvironmentSection(settings);
  Json all;
  for (const auto& [name, make] : sections) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), name) == options.only.end()) {
      continue;
    }
    const Json section = name == "environment" ? environment : make();
    if (options.json) {
      all[name] = section;
    } else {
      perf::PrintOut("{}", SectionText(name, section));
    }
  }
  if (options.json) Print(all);
  if (environment["error"].is_null()) return 0;
  return Fail(kBadConfiguration, environment["error"].get<std::string>());
}

void AddOptions(CLI::App* app, Options* options) {
  app->add_flag("--json", options->json, "JSON instead of text");
  app->add_option("--only", options->only,
                  "sections: build, simd, transports, topology, limits, environment")
      ->delimiter(',')
      ->check(CLI::IsMember({"build", "simd", "transports", "topology", "limits", "environment"}));
  app->add_flag("--environment-markdown", options->markdown,
                "the tables of docs/environment.md and CONTRIBUTING.md");
  auto* explain =
      app->add_option("--explain", options->explain,
                      "what a call would do: COLLECTIVE SIZE RANKS, e.g. allreduce 1M 8")
          ->expected(3);
  auto* dump = app->add_option("--dump", options->dump, "a schedule: ALGORITHM RANKS, e.g. ring 4")
                   ->expected(2)
                   ->excludes(explain);
  app->add_option("--type", options->type, "element type (float32)")->needs(explain);
  app->add_option("--op", options->op, "reduction (sum)")->needs(explain);
  app->add_option("--codec", options->codec, "a compressed call with this codec")->needs(explain);
  app->add_flag("--compressed", options->compressed, "a compressed call with the default codec")
      ->needs(explain);
  app->add_option("--algo", options->algo, "as INCCL_ALGO")->needs(explain);
  app->add_option("--collective", options->collective, "of --dump (allreduce)")->needs(dump);
  app->add_option("--rank", options->rank, "of --dump: this rank only")
      ->needs(dump)
      ->check(CLI::Range(0, 255));
  app->add_flag("--side", options->side, "of --dump: with the agreement of compressed calls")
      ->needs(dump);
  app->add_flag("--dot", options->dot, "of --dump: Graphviz")->needs(dump);
  app->add_option(
      "--hosts", options->hosts,
      "ranks of each host, e.g. 4,4: ranks 0..3 and 4..7 (one host); / begins another site");
  app->add_option("--root", options->root, "of broadcast and reduce (0)");
  app->add_option("--channels", options->channels, "independent lanes (configured; --dump: 1)")
      ->check(CLI::Range(1, 32));
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("What the inccl library is, finds and would do. Manual: docs/tools.md");
  app.set_version_flag("--version", fmt::format("inccl {}.{}.{}", CCL_MAJOR, CCL_MINOR, CCL_PATCH));
  AddOptions(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadCommandLine;
  }
  if (options.markdown) {
    perf::PrintOut("{}", EnvironmentMarkdown());
    return 0;
  }
  if (!options.explain.empty()) return RunExplain(options);
  if (!options.dump.empty()) return RunDump(options);
  return RunSections(options);
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::tools::Run(argc, argv); });
}
