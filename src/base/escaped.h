// SPDX-License-Identifier: Apache-2.0
//
// Escapes untrusted text for terminals, log files and error messages.
#ifndef INCCL_BASE_ESCAPED_H_
#define INCCL_BASE_ESCAPED_H_

#include <string>
#include <string_view>

namespace inccl {

// Control characters (C0, DEL and C1, all of which terminals interpret) and bytes that are not part
// of well-formed UTF-8 become \xNN; all other text stays. Escaping twice changes nothing.
std::string Escaped(std::string_view text);

}  // namespace inccl

#endif  // INCCL_BASE_ESCAPED_H_
