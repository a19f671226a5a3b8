// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TOOLS_DOCTOR_RUN_H_
#define INCCL_TOOLS_DOCTOR_RUN_H_

#include <string>
#include <vector>

namespace inccl::tools {

struct Output {
  int status = -1;   // exit status; -1: it did not start or did not exit
  std::string text;  // standard output and error
};

// Runs a program, without a shell.
Output RunAndRead(const std::vector<std::string>& arguments);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_DOCTOR_RUN_H_
