// SPDX-License-Identifier: Apache-2.0
#include "perf/support/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>

namespace inccl::perf {
namespace {

std::atomic<int> first_error{0};  // of standard output, since it was last reported

}  // namespace

void WriteTo(std::FILE* file, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file) == text.size() || file != stdout) return;
  int none = 0;
  first_error.compare_exchange_strong(none, errno);
}

Status FlushOutput() {
  errno = 0;
  std::cout.flush();  // of libraries that print themselves
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  const int earlier = first_error.exchange(0), error = earlier != 0 ? earlier : errno;
  __fpurge(stdout);
  std::clearerr(stdout);
  return error == 0 ? SystemError("standard output: a part of it could not be written")
                    : SystemErrorErrno("standard output", error);
}

Status WriteFile(const std::string& path, std::string_view text) {
  using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  const bool plain =
      kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
  const std::string beside = path + ".part";
  Stream file(plain ? std::fopen(beside.c_str(), "w") : nullptr, &std::fclose);
  const bool whole = file != nullptr;
  if (!whole) file.reset(std::fopen(path.c_str(), "w"));
  if (file == nullptr) return SystemErrorErrno(path, errno);
  bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  int error = errno;
  if (std::fclose(file.release()) != 0 ||
      (whole && written && std::rename(beside.c_str(), path.c_str()) != 0)) {
    if (written) error = errno;
    written = false;
  }
  if (written) return {};
  if (whole) (void)std::remove(beside.c_str());
  return SystemErrorErrno(path, error);
}

int RunProgram(const std::function<int()>& body, int failed) {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0) {
      (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest that is free
    }
  }
  const int code = body();
  const Status status = FlushOutput();
  if (status.ok()) return code;
  PrintError("{}: {}\n", program_invocation_short_name, status.message());
  return code == 0 ? failed : code;
}

}  // namespace inccl::perf
