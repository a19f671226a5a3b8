// SPDX-License-Identifier: Apache-2.0
#include "tools/info/sections.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <thread>

#include "bootstrap/unique_id.h"
#include "compress/simd.h"
#include "inccl/ccl.h"
#include "topology/processors.h"
#include "topology/topology.h"

namespace inccl::tools {
namespace {

// A number that the system does not tell is null.
Json Known(uint64_t number) { return number == 0 ? Json() : Json(number); }

Json LimitOf(__rlimit_resource resource, const char* means) {
  rlimit limit{};
  const bool known = getrlimit(resource, &limit) == 0;
  const auto number = [&](rlim_t value) {
    if (!known) return Json();
    return value == RLIM_INFINITY ? Json("unlimited") : Json(value);
  };
  return {{"soft", number(limit.rlim_cur)}, {"hard", number(limit.rlim_max)}, {"means", means}};
}

}  // namespace

Json BuildSection() {
  return {{"version", fmt::format("{}.{}.{}", CCL_MAJOR, CCL_MINOR, CCL_PATCH)},
          {"version_code", CCL_VERSION_CODE},
          {"compiler", INCCL_INFO_COMPILER},
          {"build_type", INCCL_INFO_BUILD_TYPE},
          {"sanitizers", *INCCL_INFO_SANITIZE == '\0' ? Json() : Json(INCCL_INFO_SANITIZE)},
          {"fmt", INCCL_INFO_FMT},
          {"highway", INCCL_INFO_HIGHWAY},
          {"openssl", INCCL_INFO_OPENSSL},
          {"hwloc", HwlocVersion().empty() ? Json() : Json(HwlocVersion())},
          {"ucx", *INCCL_INFO_UCX == '\0' ? Json() : Json(INCCL_INFO_UCX)},
          {"verbs", *INCCL_INFO_VERBS == '\0' ? Json() : Json(INCCL_INFO_VERBS)},
          {"cuda", *INCCL_INFO_CUDA == '\0' ? Json() : Json(INCCL_INFO_CUDA)}};
}

Json SimdSection() {
  return {{"in_use", SimdTargetName()},
          {"possible_here", SimdTargets()},
          {"built_in", SimdTargetsBuilt()}};
}

Json TopologySection() {
  const Topology topology = ReadTopology();
  const CpuSet allowed = AllowedCpus();
  Json json = {{"source", topology.source},
               {"packages", Known(static_cast<uint64_t>(topology.packages))},
               {"cores", Known(static_cast<uint64_t>(topology.cores))},
               {"processors", FormatCpuList(topology.cpus)},
               {"allowed", FormatCpuList(allowed)},
               {"cpu_quota", CpuQuota() > 0 ? Json(CpuQuota()) : Json()},
               {"usable_cores", UsableCores()}};
  json["numa_nodes"] = Json::array();
  for (const Topology::Node& node : topology.nodes) {
    json["numa_nodes"].push_back({{"id", node.id},
                                  {"processors", FormatCpuList(node.cpus)},
                                  {"memory_bytes", Known(node.memory_bytes)}});
  }
  json["caches"] = Json::array();
  for (const Topology::Cache& cache : topology.caches) {
    json["caches"].push_back({{"level", cache.level},
                              {"type", cache.type},
                              {"bytes", Known(cache.bytes)},
                              {"count", cache.count}});
  }
  return json;
}

Json LimitsSection() {
  return {
      {"nofile", LimitOf(RLIMIT_NOFILE,
                         "descriptors; joining raises the soft limit to the hard "
                         "one where it must")},
      {"fsize", LimitOf(RLIMIT_FSIZE, "bytes; each rank has a sparse memory file of 1 GiB")},
      {"as", LimitOf(RLIMIT_AS, "bytes; each rank maps 1 GiB of addresses per rank of its host")},
      {"memlock", LimitOf(RLIMIT_MEMLOCK, "bytes; shm and loopback lock nothing, RDMA would")},
      {"nproc", LimitOf(RLIMIT_NPROC, "threads of this user; a communicator has one of its own")},
  };
}

namespace {

const char* AgreementSteps(const ExplainRequest& request, const Explanation& explanation) {
  if (explanation.choice->side_one_shot) return "one step";
  const bool two_levels = TraitsOf(explanation.choice->algorithm).several_hosts &&
                          explanation.codec->side_phases().size() == 1;
  // The codes of an all-gather only go from their senders to all.
  if (request.collective == Collective::kAllGather) return two_levels ? "two steps" : "one step";
  return two_levels ? "four steps" : "two steps";
}

}  // namespace

Json ExplainSection(const ExplainRequest& request, const CommOptions& options,
                    const Explanation& explanation) {
  const size_t element = SizeOf(request.type);
  Json json = {{"collective", Name(request.collective)},
               {"type", Name(request.type)},
               {"op", Name(request.op)},
               {"count", explanation.count},
               {"bytes", request.bytes},
               {"ranks", request.nranks},
               {"root", request.root},
               {"codec", explanation.codec ? explanation.codec->spec() : "none"}};
  if (explanation.codec) json["needs_residual"] = explanation.codec->needs_residual();
  if (!explanation.uncompressed_because.empty()) {
    json["uncompressed_because"] = explanation.uncompressed_because;
  }
  json["algorithm"] = explanation.choice ? Json(Name(explanation.choice->algorithm)) : Json();
  json["why"] = explanation.why;
  if (!explanation.choice) return json;
  if (request.hosts.nranks() > 0) json["hosts"] = request.hosts.hosts();
  json["agreement"] = !explanation.agreement ? Json() : Json(AgreementSteps(request, explanation));
  json["steps"] = explanation.steps;
  json["channels"] = options.channels;
  json["windows"] = explanation.windows;
  json["window_elements"] = explanation.window_elements;
  json["slice_elements"] = explanation.slice_elements;
  json["slice_bytes"] = explanation.slice_elements * element;
  json["slot_bytes"] = explanation.slots.data_bytes;
  json["slots_per_lane"] = request.hosts.hosts() > 1 ? explanation.slots.network_data_depth
                                                     : explanation.slots.data_depth;
  if (explanation.codec) json["codec_bits"] = explanation.codec_bits;
  json["per_rank"] = Json::array();
  for (size_t rank = 0; rank < explanation.ranks.size(); ++rank) {
    const RankTraffic& traffic = explanation.ranks[rank];
    const std::optional<uint64_t> expected = explanation.ExpectedBytes(traffic, request.type);
    const uint64_t headers = traffic.slices * kHeaderBytes;
    json["per_rank"].push_back(
        {{"rank", rank},
         {"slices", traffic.slices},
         {"uncompressed_bytes", traffic.raw_bytes},
         {"uncompressed_bytes_to_other_hosts", traffic.across_bytes},
         {"agreement_bytes", traffic.side_bytes},
         {"wire_bytes_expected", expected ? Json(*expected + headers) : Json()},
         {"wire_bytes_at_most", traffic.most_bytes + headers},
         {"memory_bytes", traffic.memory_bytes}});
  }
  return json;
}

}  // namespace inccl::tools
