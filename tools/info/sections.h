// SPDX-License-Identifier: Apache-2.0
//
// What inccl-info tells, as JSON values; print.h makes text of them.
#ifndef INCCL_TOOLS_INFO_SECTIONS_H_
#define INCCL_TOOLS_INFO_SECTIONS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "config/config_files.h"
#include "tools/info/explain.h"

namespace inccl::tools {

using Json = nlohmann::ordered_json;  // keys stay in their order

Json BuildSection();
Json SimdSection();
Json TopologySection();
Json LimitsSection();
// Each transport with whether it works here, tried out, and why not.
Json TransportsSection();
// Every variable with its value and where that comes from; the files; "ok" or what is wrong.
Json EnvironmentSection(const Result<Settings>& settings);
Json ExplainSection(const ExplainRequest& request, const CommOptions& options,
                    const Explanation& explanation);

// The table of docs/environment.md.
std::string EnvironmentMarkdown();

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_INFO_SECTIONS_H_
