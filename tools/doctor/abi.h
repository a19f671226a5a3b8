// SPDX-License-Identifier: Apache-2.0
//
// Compares the binary interface of inccl's libnccl.so.2 with an nccl.h and with another
// libnccl.so.2.
#ifndef INCCL_TOOLS_DOCTOR_ABI_H_
#define INCCL_TOOLS_DOCTOR_ABI_H_

#include <string>
#include <vector>

#include "tools/doctor/elf.h"

namespace inccl::tools {

struct AbiComparison {
  int compared = 0;                    // names, fields and numbers
  std::vector<std::string> different;  // a text each
  std::string error;                   // why nothing could be compared; "": it could
};

// Names that `other` exports and `ours` does not.
AbiComparison CompareNames(const Elf& ours, const Elf& other);

// Sizes, offsets and numbers: compiles a program with the header, by `compiler`.
AbiComparison CompareHeader(const std::string& header, const std::string& compiler);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_DOCTOR_ABI_H_
