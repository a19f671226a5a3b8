// SPDX-License-Identifier: Apache-2.0
//
// What inccl-doctor looks at. Each check adds findings.
#ifndef INCCL_TOOLS_DOCTOR_CHECKS_H_
#define INCCL_TOOLS_DOCTOR_CHECKS_H_

#include <string>
#include <vector>

namespace inccl::tools {

enum class Verdict { kOk, kNote, kFix };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string text;
  std::string remedy;  // "" only with kOk
};
using Findings = std::vector<Finding>;

// inccl's libnccl.so.2: `given`, or where it lies from this program's directory; "": not found.
std::string FindOwnLibrary(const std::string& given);

// Which libnccl.so.2 the loader would give to a program or library.
void CheckProgram(const std::string& program, const std::string& own, Findings* findings);
// Which one a running process has, and whether its calls run on inccl.
void CheckProcess(int pid, const std::string& own, Findings* findings);
// Names against another libnccl.so.2; fields and numbers against an nccl.h. "": left out.
void CheckAbi(const std::string& own, const std::string& library, const std::string& header,
              Findings* findings);
// This machine: limits, memory, network, CUDA.
void CheckMachine(Findings* findings);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_DOCTOR_CHECKS_H_
