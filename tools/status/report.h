// SPDX-License-Identifier: Apache-2.0
//
// What inccl-status makes of the answers of processes (docs/tools.md).
#ifndef INCCL_TOOLS_STATUS_REPORT_H_
#define INCCL_TOOLS_STATUS_REPORT_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace inccl::tools {

using Json = nlohmann::json;

// The communicators of these answers, each once: what each of its ranks says of itself, else what
// another rank knows of it; the connections of the ranks that have answered; "late", the ranks that
// others wait for (for `late_ms` or longer) and that do not wait themselves, each with those that
// wait for it. A communicator whose ranks all wait for each other has a "circle".
Json JoinAnswers(std::span<const Json> answers, int late_ms);

std::string StatusText(const Json& communicators, bool connections);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_STATUS_REPORT_H_
