// SPDX-License-Identifier: Apache-2.0
//
// Runs a program and takes what it prints.
#ifndef INCCL_TESTS_TOOLS_RUN_PROGRAM_H_
#define INCCL_TESTS_TOOLS_RUN_PROGRAM_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace inccl::test {

struct ProgramResult {
  int status = -1;  // exit status; -1: it did not exit
  std::string out, err;
};

inline std::string FileContent(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// `arguments` are words of a shell; `before` are shell commands, such as "ulimit -n 10" or
// "export A=B".
inline ProgramResult RunProgram(const std::string& program, const std::string& arguments,
                                const std::string& before = ":") {
  std::string directory = ::testing::TempDir() + "inccl-run-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return {};
  // The limits are the program's, not those of the files that take its output.
  const std::string command = "( " + before + "; exec " + program + " " + arguments + " ) 2>" +
                              directory + "/err | cat >" + directory +
                              "/out; exit ${PIPESTATUS[0]}";
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    _exit(126);
  }
  int status = 0;
  ProgramResult result;
  if (waitpid(child, &status, 0) == child && WIFEXITED(status)) {
    result.status = WEXITSTATUS(status);
  }
  result.out = FileContent(directory + "/out");
  result.err = FileContent(directory + "/err");
  std::filesystem::remove_all(directory);
  return result;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_TOOLS_RUN_PROGRAM_H_
