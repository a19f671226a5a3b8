// SPDX-License-Identifier: Apache-2.0
#include "control/status_client.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "bootstrap/socket.h"
#include "control/status_socket.h"

namespace inccl {
namespace {

constexpr size_t kMostBytes = 64 << 20;  // of an answer

Status NoAnswer(const std::string& path, Time limit) {
  return TimeoutError(fmt::format("{}: no answer for {} ms", path, limit / kMillisecond));
}

}  // namespace

std::vector<std::string> FindStatusSockets(const std::string& directory) {
  std::vector<std::string> paths;
  if (!control::IsOwnDirectory(directory).ok()) return paths;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), &closedir);
  if (dir == nullptr) return paths;
  while (const dirent* const entry = readdir(dir.get())) {
    if (entry->d_name[0] == '.') continue;
    const std::string path = directory + "/" + entry->d_name;
    if (control::IsStatusSocket(path) && !control::RemoveIfStale(path)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<std::string> AskForStatus(const std::string& path, const std::string& request, Time limit) {
  const Time deadline = SystemClock().Now() + limit;
  int error = 0;
  Result<UniqueFd> fd = control::ConnectToStatus(path, &error);
  if (!fd.ok()) return fd.status();
  if (error == EAGAIN) return NoAnswer(path, limit);  // more clients wait than the kernel keeps
  if (error != 0) return SystemErrorErrno(path, error);
  const std::string line = request + "\n";
  if (!bootstrap::WriteAll(fd->get(), bootstrap::AsBytes(line))) {
    return SystemError(fmt::format("{}: the process has ended", path));
  }
  std::string answer;
  std::array<std::byte, 16384> buffer;
  while (true) {
    if (!bootstrap::WaitFor(fd->get(), POLLIN, deadline)) return NoAnswer(path, limit);
    const bootstrap::IoResult got = bootstrap::ReadSome(fd->get(), buffer);
    if (got.error == EAGAIN) continue;
    if (got.closed && !answer.empty()) return answer;
    if (got.closed || got.error != 0 || answer.size() > kMostBytes) {
      return SystemError(fmt::format("{}: the process ended before it answered", path));
    }
    answer.append(reinterpret_cast<const char*>(buffer.data()), got.bytes);
  }
}

}  // namespace inccl
