// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/abi.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "ext/nccl/types.h"
#include "tools/doctor/run.h"

namespace inccl::tools {
namespace {

using nccl::CollConfig;
using nccl::Config;
using nccl::ConfigExt;
using nccl::SimInfo;

using Fields = std::vector<std::pair<const char*, size_t>>;  // in NCCL's words

// The structs that a caller passes by pointer: newer versions append fields.
const std::map<std::string, Fields>& Structs() {
  static const std::map<std::string, Fields> structs = {
      {"ncclConfig_t",
       {{"size", offsetof(Config, size)},
        {"magic", offsetof(Config, magic)},
        {"version", offsetof(Config, version)},
        {"blocking", offsetof(Config, blocking)},
        {"cgaClusterSize", offsetof(Config, cga_cluster_size)},
        {"minCTAs", offsetof(Config, min_ctas)},
        {"maxCTAs", offsetof(Config, max_ctas)},
        {"netName", offsetof(Config, net_name)},
        {"splitShare", offsetof(Config, split_share)},
        {"trafficClass", offsetof(Config, traffic_class)},
        {"commName", offsetof(Config, comm_name)},
        {"collnetEnable", offsetof(Config, collnet_enable)},
        {"CTAPolicy", offsetof(Config, cta_policy)},
        {"shrinkShare", offsetof(Config, shrink_share)},
        {"nvlsCTAs", offsetof(Config, nvls_ctas)},
        {"nChannelsPerNetPeer", offsetof(Config, channels_per_net_peer)},
        {"nvlinkCentricSched", offsetof(Config, nvlink_centric_sched)},
        {"graphUsageMode", offsetof(Config, graph_usage_mode)},
        {"numRmaCtx", offsetof(Config, rma_contexts)},
        {"maxP2pPeers", offsetof(Config, max_p2p_peers)},
        {"graphStreamOrdering", offsetof(Config, graph_stream_ordering)},
        {"launchOrderImplicit", offsetof(Config, launch_order_implicit)},
        {"numRmaSig", offsetof(Config, rma_signals)},
        {"rmaEagerInit", offsetof(Config, rma_eager_init)},
        {"hostCftMode", offsetof(Config, host_cft_mode)},
        {"nvlsHostMode", offsetof(Config, nvls_host_mode)}}},
      {"ncclCollConfig_t",
       {{"size", offsetof(CollConfig, size)},
        {"magic", offsetof(CollConfig, magic)},
        {"version", offsetof(CollConfig, version)},
        {"ext", offsetof(CollConfig, ext)},
        {"minCTAs", offsetof(CollConfig, min_ctas)},
        {"maxCTAs", offsetof(CollConfig, max_ctas)},
        {"nvlsCTAs", offsetof(CollConfig, nvls_ctas)},
        {"cgaClusterSize", offsetof(CollConfig, cga_cluster_size)},
        {"algSelection", offsetof(CollConfig, alg_selection)},
        {"forceAlgSelection", offsetof(CollConfig, force_alg_selection)},
        {"CTAPolicy", offsetof(CollConfig, cta_policy)},
        {"userProfilerTag", offsetof(CollConfig, user_profiler_tag)},
        {"launchCompletionEvent", offsetof(CollConfig, launch_completion_event)}}},
      {"ncclSimInfo_t",
       {{"size", offsetof(SimInfo, size)},
        {"magic", offsetof(SimInfo, magic)},
        {"version", offsetof(SimInfo, version)},
        {"estimatedTime", offsetof(SimInfo, estimated_time)}}}};
  return structs;
}

// Numbers that a header may not have yet, and those of types that are passed by value.
const std::vector<std::pair<std::string, long>>& Numbers() {
  static const std::vector<std::pair<std::string, long>> numbers = {
      {"sizeof(ncclUniqueId)", sizeof(nccl::UniqueId)},
      {"sizeof(ncclResult_t)", sizeof(nccl::ResultCode)},
      {"sizeof(ncclRedOp_t)", sizeof(int)},
      {"sizeof(ncclDataType_t)", sizeof(int)},
      {"sizeof(ncclConfigExt_t)", sizeof(ConfigExt)},
      {"offsetof(ncclConfigExt_t, key)", offsetof(ConfigExt, key)},
      {"offsetof(ncclConfigExt_t, val)", offsetof(ConfigExt, val)},
      {"ncclSuccess", CCL_SUCCESS},
      {"ncclUnhandledCudaError", CCL_UNHANDLED_CUDA_ERROR},
      {"ncclSystemError", CCL_SYSTEM_ERROR},
      {"ncclInternalError", CCL_INTERNAL_ERROR},
      {"ncclInvalidArgument", CCL_INVALID_ARGUMENT},
      {"ncclInvalidUsage", CCL_INVALID_USAGE},
      {"ncclRemoteError", CCL_REMOTE_ERROR},
      {"ncclInProgress", CCL_IN_PROGRESS},
      {"ncclTimeout", CCL_TIMEOUT},
      {"ncclSum", CCL_SUM},
      {"ncclProd", CCL_PROD},
      {"ncclMax", CCL_MAX},
      {"ncclMin", CCL_MIN},
      {"ncclAvg", CCL_AVG},
      {"ncclInt8", CCL_INT8},
      {"ncclUint8", CCL_UINT8},
      {"ncclInt32", CCL_INT32},
      {"ncclUint32", CCL_UINT32},
      {"ncclInt64", CCL_INT64},
      {"ncclUint64", CCL_UINT64},
      {"ncclFloat16", CCL_FLOAT16},
      {"ncclFloat32", CCL_FLOAT32},
      {"ncclFloat64", CCL_FLOAT64},
      {"ncclBfloat16", CCL_BFLOAT16},
      {"ncclFloat8e4m3", CCL_FLOAT8E4M3},
      {"ncclFloat8e5m2", CCL_FLOAT8E5M2},
      {"ncclScalarDevice", CCL_SCALAR_DEVICE},
      {"ncclScalarHostImmediate", CCL_SCALAR_HOST_IMMEDIATE},
      {"NCCL_SPLIT_NOCOLOR", CCL_SPLIT_NOCOLOR},
      {"NCCL_SHRINK_ABORT", CCL_SHRINK_ABORT}};
  return numbers;
}

// The names of a struct's fields, or none. NCCL's structs have no nested braces but in options.
std::vector<std::string> FieldsOf(const std::string& text, const std::string& name) {
  const size_t end = text.find("} " + name + ";");
  if (end == std::string::npos) return {};
  const size_t begin = text.rfind("typedef struct", end);
  std::string body = text.substr(begin, end - begin);
  body = std::regex_replace(body, std::regex(R"(/\*[^*]*\*+([^/*][^*]*\*+)*/|//[^\n]*)"), "");
  std::vector<std::string> fields;
  const std::regex field(R"((\w+)\s*;)");
  for (std::sregex_iterator at(body.begin(), body.end(), field), last; at != last; ++at) {
    fields.push_back((*at)[1]);
  }
  return fields;
}

std::string WordOf(const std::string& expression) {
  std::smatch word;
  return std::regex_search(expression, word, std::regex(R"((nccl|NCCL_)\w+)")) ? word.str() : "";
}

// A directory that is deleted at the end.
struct Directory {
  std::string path = (std::filesystem::temp_directory_path() / "inccl-doctor-XXXXXX").string();
  bool made = mkdtemp(path.data()) != nullptr;
  Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    std::error_code ignored;
    if (made) std::filesystem::remove_all(path, ignored);
  }
};

// The part of CUDA's headers that nccl.h needs.
bool WriteCudaHeaders(const std::string& directory) {
  for (const char* name : {"cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"}) {
    if (!std::ofstream(directory + "/" + name)) return false;
  }
  std::ofstream file(directory + "/cuda_runtime.h");
  file << "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n";
  file.close();
  return !file.fail();
}

}  // namespace

AbiComparison CompareNames(const Elf& ours, const Elf& other) {
  AbiComparison comparison;
  for (const std::string& name : other.exported) {
    if (name.rfind("nccl", 0) != 0 && name.rfind("pnccl", 0) != 0) continue;
    ++comparison.compared;
    if (ours.exported.count(name) == 0) comparison.different.push_back(name + " is missing");
  }
  if (comparison.compared == 0) comparison.error = "it exports no function of NCCL";
  return comparison;
}

AbiComparison CompareHeader(const std::string& header, const std::string& compiler) {
  AbiComparison comparison;
  std::ostringstream read;
  read << std::ifstream(header).rdbuf();
  const std::string text = read.str();
  if (text.find("ncclResult_t") == std::string::npos) {
    comparison.error = "it is not an nccl.h";
    return comparison;
  }
  std::vector<std::pair<std::string, long>> expected;
  for (const auto& [expression, value] : Numbers()) {
    if (text.find(WordOf(expression)) != std::string::npos)
      expected.emplace_back(expression, value);
  }
  for (const auto& [name, fields] : Structs()) {
    const std::map<std::string, size_t> known(fields.begin(), fields.end());
    for (const std::string& field : FieldsOf(text, name)) {
      const auto found = known.find(field);
      if (found == known.end()) {
        ++comparison.compared;
        comparison.different.push_back(name + "." + field + " is unknown");
        continue;
      }
      expected.emplace_back(fmt::format("offsetof({}, {})", name, field),
                            static_cast<long>(found->second));
    }
  }
  const Directory directory;
  const bool headers = WriteCudaHeaders(directory.path);
  const std::string source = directory.path + "/abi.c", program = directory.path + "/abi";
  std::ofstream code(source);
  code << "#include <stddef.h>\n#include <stdio.h>\n#include \""
       << std::filesystem::absolute(header).string() << "\"\nint main(void) {\n";
  for (const auto& [expression, value] : expected) {
    code << "  printf(\"%ld\\n\", (long)(" << expression << "));\n";
  }
  code << "  return 0;\n}\n";
  code.close();
  if (!directory.made || !headers || !code) {
    comparison.error = directory.path + " cannot be written";
    return comparison;
  }
  const Output compiled = RunAndRead({compiler, "-w", "-I", directory.path, source, "-o", program});
  const Output ran = compiled.status == 0 ? RunAndRead({program}) : compiled;
  if (ran.status != 0) {
    comparison.error = fmt::format("{} cannot compile a program with it: {}", compiler, ran.text);
    return comparison;
  }
  std::istringstream values(ran.text);
  for (const auto& [expression, value] : expected) {
    long is = 0;
    values >> is;
    ++comparison.compared;
    if (is != value) {
      comparison.different.push_back(fmt::format("{} is {}, expected {}", expression, is, value));
    }
  }
  return comparison;
}

}  // namespace inccl::tools
