// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/run.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace inccl::tools {

Output RunAndRead(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execvp(words[0], words.data());
    _exit(127);
  }
  close(ends[1]);
  Output output;
  std::array<char, 4096> buffer{};
  while (child > 0) {
    const ssize_t bytes = read(ends[0], buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    output.text.append(buffer.data(), static_cast<size_t>(bytes));
  }
  close(ends[0]);
  int status = 0;
  if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)) {
    output.status = WEXITSTATUS(status);
  }
  return output;
}

}  // namespace inccl::tools
