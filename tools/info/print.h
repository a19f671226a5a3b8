// SPDX-License-Identifier: Apache-2.0
//
// The sections as text for people.
#ifndef INCCL_TOOLS_INFO_PRINT_H_
#define INCCL_TOOLS_INFO_PRINT_H_

#include <string>

#include "tools/info/sections.h"

namespace inccl::tools {

// "name" heads the section. Any of those of sections.h.
std::string SectionText(const std::string& name, const Json& section);
std::string ExplainText(const Json& section);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_INFO_PRINT_H_
