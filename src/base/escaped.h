// SPDX-License-Identifier: Apache-2.0
//
// Text that somebody else wrote, made fit for a terminal, a log file and an error message.
#ifndef INCCL_BASE_ESCAPED_H_
#define INCCL_BASE_ESCAPED_H_

#include <string>
#include <string_view>

namespace inccl {

// Control characters (C0, DEL and the C1 set, which terminals act on, too) and bytes that are not
// part of well-formed UTF-8 become \xNN; everything else stays. Escaping twice changes nothing.
std::string Escaped(std::string_view text);

}  // namespace inccl

#endif  // INCCL_BASE_ESCAPED_H_
